"""The daemon and saves from outside: pages for agents, and a copy by a separate process."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
import time

import pytest

from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon.out_of_process import OutOfProcessCopies
from watchdog_app.rescue.checkpoint.owner import this_process
from watchdog_app.rescue.segment import snapshot as tables
from watchdog_app.rescue.segment.segment import Segment
from watchdog_app.rescue.segment.segment_folder import folder

ME = this_process()
KEY = ProcessKey(ME.pid, ME.start_time)


@pytest.fixture
def outside(tmp_path, monkeypatch):
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path / "run"))
    found = OutOfProcessCopies(lambda: None)
    yield found
    found.close()
    shutil.rmtree(os.path.dirname(folder()), ignore_errors=True)


def published(page):
    """Publish one tensor of this process; returns the memory, its address and its samples."""
    memory = ctypes.create_string_buffer(b"weights!" * 512, 4096)
    address = ctypes.addressof(memory)
    places = [address + at for at in tables.sample_places(4096)]
    samples = b"".join(ctypes.string_at(each, tables.SAMPLE_BYTES) for each in places)
    return memory, struct.pack("<Q", address), samples


def test_an_agent_gets_a_page_that_goes_with_its_process(outside):
    """An agent that reconnects gets the same page."""
    path = outside.page(KEY)
    outside.ask_every_batch(KEY, True)
    with Segment(path) as page:
        asked, reader = page.asked, page.reader
    outside.ask_every_batch(KEY, False)
    with Segment(path) as page:
        assert (True, False) == (asked, page.asked)
    assert os.getpid() == reader
    assert path == outside.page(KEY)
    outside.forget(KEY)
    assert not os.path.exists(path)


def test_a_page_of_a_process_that_has_ended_goes_when_the_next_is_made(outside):
    """The process ended without a message, on a kernel that reports no ends."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = outside.page(ProcessKey(ended.pid, 1))

    path = outside.page(KEY)

    assert os.path.exists(path)
    assert not os.path.exists(left)


def test_at_the_end_no_folder_stays_in_memory_but_for_trainings_that_go_on(outside):
    """The next daemon finds the page of a living training."""
    path = outside.page(KEY)
    outside.close()
    kept = os.path.exists(path)
    outside.forget(KEY)
    outside.close()

    assert kept
    assert not os.path.exists(os.path.dirname(path))
    assert os.path.dirname(os.path.dirname(path)) == os.environ["WATCHDOG_RUNTIME_DIR"] or (
        not os.path.exists(os.path.dirname(os.path.dirname(path)))
    )


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "stale"])
def test_a_training_is_copied_by_a_process_of_its_own(outside, tmp_path, fresh):
    """The rescue is reported with its step; a stale copy is refused with the reason."""
    rescues = tmp_path / "rescues"
    rescues.mkdir()
    with Segment(outside.page(KEY)) as page:
        # A child process would need this process's permission under Yama.
        page.begin(ME.pid, ME.start_time)
        memory, addresses, samples = published(page)
        static = tables.static_text(
            owner=str(ME),
            directory=str(rescues),
            keep=2,
            tensors=[("weights", "U8", [4096], 4096, None)],
            meta={"step": 3, "reason": ""},
        )
        parts = (static, tables.changing_text(3, (), ()), addresses, samples, b"")
        page.publish(3, 4096, tables.snapshot_bytes(parts), lambda view: tables.write(view, parts))
        if not fresh:
            page.boundary(4)
        told = []
        assert outside.copy(KEY, str(rescues), told.append)
        end = time.monotonic() + 60
        while not told and time.monotonic() < end:
            outside.collect()
            time.sleep(0.05)
    assert 4096 == len(memory)
    if fresh:
        assert (3, [os.path.basename(told[0]["path"])]) == (told[0]["step"], os.listdir(rescues))
    else:
        assert "it stands at 4" in told[0]["error"]
        assert [] == os.listdir(rescues)


def test_a_training_without_a_page_is_not_copied(outside):
    """The agent has an older version, or the machine has no memory for pages."""
    assert not outside.copy(KEY, "/nowhere", lambda _: None)


def test_what_the_copy_says_is_one_line_of_json(tmp_path):
    """Also if there is nothing to copy."""
    words = [str(ME.pid), str(ME.start_time), str(tmp_path / "none"), str(tmp_path), "5", "a test"]
    done = subprocess.run(
        [sys.executable, "-m", "watchdog_app.guard.copier", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert 1 == done.returncode
    assert "error" in json.loads(done.stdout)
