"""The daemon and saves from outside: segments of agents, and a copy by a separate process."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import sys

import pytest
from support.finished import finished
from support.waiting import until

from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon import out_of_process
from watchdog_app.daemon.out_of_process import OutOfProcessCopies
from watchdog_app.daemon.poller import Poller
from watchdog_app.rescue.checkpoint.owner import start_time, this_process
from watchdog_app.rescue.segment import snapshot as tables
from watchdog_app.rescue.segment.exchange import offer
from watchdog_app.rescue.segment.segment import ASK, Segment

ME = this_process()
KEY = ProcessKey(ME.pid, ME.start_time)


@pytest.fixture
def poller():
    def fails(error):
        raise error

    found = Poller(fails)
    yield found
    found.close()


@pytest.fixture
def outside(tmp_path, poller):
    found = OutOfProcessCopies(poller, str(tmp_path), lambda: None)
    yield found
    found.close()


@pytest.fixture
def page():
    with Segment(65536) as found:
        yield found


def published(page):
    """Publish one tensor of this process; returns the memory, its address and its samples."""
    memory = ctypes.create_string_buffer(b"weights!" * 512, 4096)
    address = ctypes.addressof(memory)
    places = [address + at for at in tables.sample_places(4096)]
    samples = b"".join(ctypes.string_at(each, tables.SAMPLE_BYTES) for each in places)
    return memory, struct.pack("<Q", address), samples


def test_an_agent_is_asked_until_its_training_ends(outside, poller, page, tmp_path):
    """Also an agent that hands over its segment after the daemon has asked."""
    path = outside.socket_path()
    outside.ask_every_batch(KEY, True)
    offer(path, str(tmp_path), page.fd)
    poller.wait(1.0)
    asked = bool(page.slots[ASK])
    outside.ask_every_batch(KEY, False)
    assert (True, False) == (asked, bool(page.slots[ASK]))
    assert path == outside.socket_path()
    outside.forget(KEY)
    assert not outside.copy(KEY, lambda _: None)


def test_the_segment_of_a_process_that_has_ended_goes_when_the_next_agent_comes(outside, poller):
    """The process ended without a message, on a kernel that reports no ends."""
    program = """
import sys
from watchdog_app.rescue.segment import exchange, segment
own = segment.Segment()
exchange.offer(sys.argv[1], "/", own.fd)
sys.stdin.read()
"""
    words = [sys.executable, "-c", program, outside.socket_path()]
    training = subprocess.Popen(words, stdin=subprocess.PIPE)
    key = ProcessKey(training.pid, start_time(training.pid))
    poller.wait(60.0)
    known = outside._offer(key)
    training.communicate()

    outside.socket_path()

    assert known is not None
    assert outside._offer(key) is None


def test_a_daemon_that_ends_leaves_no_socket(outside):
    """An agent sees that nobody listens."""
    path = outside.socket_path()
    kept = os.path.exists(path)

    outside.close()

    assert (True, False) == (kept, os.path.exists(path))


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "stale"])
def test_a_training_is_copied_by_a_process_of_its_own(outside, poller, page, tmp_path, fresh):
    """The rescue is reported with its step; a stale copy is refused with the reason."""
    rescues = tmp_path / "rescues"
    rescues.mkdir()
    memory, addresses, samples = published(page)
    static = tables.static_text(
        owner=str(ME),
        directory=str(rescues),
        keep=2,
        tensors=[("weights", "U8", [4096], 4096, None)],
        meta={"step": 3, "reason": ""},
    )
    parts = (static, tables.changing_text(3, (), ()), addresses, samples, b"")
    page.publish(3, tables.snapshot_bytes(parts), lambda view: tables.write(view, parts))
    if not fresh:
        page.step_begins()
    offer(outside.socket_path(), str(rescues), page.fd)
    poller.wait(1.0)
    told = []
    assert outside.copy(KEY, told.append)
    until(lambda: outside.collect() or told, "the copy ends")
    assert 4096 == len(memory)
    if fresh:
        assert (3, [os.path.basename(told[0]["path"])]) == (told[0]["step"], os.listdir(rescues))
    else:
        assert "it has trained since step 3, the last published" in told[0]["error"]
        assert [] == os.listdir(rescues)


def test_a_copy_that_hangs_is_ended(outside, poller, page, tmp_path, monkeypatch):
    """A read of the memory or a write to the disk never returns; the next copy is not kept."""
    hangs = (sys.executable, "-c", "import time; time.sleep(999)")
    monkeypatch.setattr(out_of_process.children, "module_argv", lambda _: hangs)
    monkeypatch.setattr(out_of_process, "_COPY_DEADLINE_S", 0.1)
    monkeypatch.setattr(out_of_process, "_HANG_TIMEOUT_S", 0.1)
    offer(outside.socket_path(), str(tmp_path), page.fd)
    poller.wait(1.0)
    told = []
    for _ in range(2):
        assert outside.copy(KEY, told.append)

    until(lambda: outside.collect() or len(told) == 2, "both copies end")

    assert [{"error": "the copy took too long"}] * 2 == told


def test_a_training_without_a_segment_is_not_copied(outside):
    """The agent has an older version, or the machine has no memory for segments."""
    assert not outside.copy(KEY, lambda _: None)


def test_what_the_copy_says_is_one_line_of_json(tmp_path):
    """Also if there is nothing to copy."""
    fd = os.memfd_create("no segment")
    words = [str(ME.pid), str(ME.start_time), str(tmp_path), "5", "a test", str(fd)]
    done = finished([sys.executable, "-m", "watchdog_app.guard.copier", *words], pass_fds=[fd])
    os.close(fd)
    assert 1 == done.returncode
    assert "error" in json.loads(done.stdout)
