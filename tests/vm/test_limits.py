"""Limits of control groups of version 2: which one applies, and that the rescue comes before it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import pytest
from guest import MB, PYTHON, swap_on, until
from guest_groups import group, move

MIB = 1 << 20
KERNEL_LOG = Path("/proc/sys/kernel/dmesg_restrict")


def ceilings_of(me, pid: int) -> list[dict]:
    """The memory groups in the status that limit a task, the tightest limit first."""
    found = [c for c in me.status()["resources"] if pid in c["tasks"] and c["kind"] == "cgroup"]
    return sorted(found, key=lambda c: c["limit"])


def test_a_scope_with_memory_max_is_rescued_before_the_kernel_kills_in_it(me, record_property):
    """systemd-run --user --scope -p MemoryMax: seen, warned, saved, and the death explained."""
    me.start_daemon()
    training = me.train(
        "--leak-mb-s", "6", properties=["MemoryMax=190M", "MemorySwapMax=0"]
    )  # fmt: skip
    pid = training.pid
    me.until_watched(training)

    assert training.wait() != 0
    died = training.last_sign_unix_s()
    saved, warned = me.first("checkpoint"), me.first("notify")
    record_property("saved, s before the end", died - (saved or died))
    record_property("warned, s before the end", died - (warned or died))
    assert training.rescues(), me.daemon_log()
    assert saved is not None
    assert saved < died
    deaths = until(lambda: [e for e in me.history("exit") if e["pid"] == pid], "the death")
    assert deaths[0]["memory"]
    assert "limit" in deaths[0]["text"]


def test_memory_high_slows_a_training_down_and_it_is_saved_while_it_lives(me, record_property):
    """Throttled above memory.high: the kernel does not kill, and the rescue is complete."""
    me.start_daemon()
    training = me.train(
        "--leak-mb-s", "6", "--seconds", "1200",
        properties=["MemoryHigh=140M", "MemoryMax=600M", "MemorySwapMax=0"],
    )  # fmt: skip
    me.until_watched(training)

    until(training.rescues, "a rescue")

    record_property(
        "used at the rescue, MB", int((training.group / "memory.current").read_text()) / MB
    )
    events = (training.group / "memory.events").read_text()
    assert training.ended() is None
    assert "oom_kill 0" in events
    (ceiling,) = ceilings_of(me, training.pid)
    assert 140 * 2**20 == ceiling["limit"]
    assert "memory.high" in ceiling["note"]


@pytest.mark.parametrize("slice_limits", [None, ["MemoryHigh=140M"]], ids=["scope", "slice above"])
def test_a_training_that_stands_still_at_memory_high_and_full_swap_is_saved_again(
    me, record_property, slice_limits
):
    """The limit that is reached is memory.high plus swap; memory.max is far away."""
    swap_on(60)
    me.start_daemon()
    properties = ["MemoryHigh=140M", "MemoryMax=600M"]
    if slice_limits:
        me.systemctl("set-property", "--runtime", "throttled.slice", *slice_limits)
        properties = ["Slice=throttled.slice", "MemoryMax=600M"]
    training = me.train(
        "--leak-mb-s", "6", "--seconds", "1200", "--step-s", "0.5", properties=properties
    )  # fmt: skip
    me.until_watched(training)

    def still() -> bool:
        last = training.last_sign_unix_s()
        return time.time() - last > 10 and bool(training.steps())

    until(still, "it stands still")
    time.sleep(20)
    lost = training.steps()[-1][0] - training.saved_step()
    (ceiling,) = [c for c in ceilings_of(me, training.pid) if c["limit"] < 300 * 2**20]
    record_property("lost steps", lost)
    stood = training.last_sign_unix_s()
    record_property("first asked to save, s after the last step", me.first("checkpoint") - stood)
    record_property("used of limit, MB", [ceiling["used"] / MB, ceiling["limit"] / MB])
    record_property("stage", ceiling["stage"])
    record_property("memory.pressure", (training.group / "memory.pressure").read_text())

    assert training.ended() is None
    assert ceiling["limit"] <= 200 * 2**20
    assert ceiling["stage"] in ("save", "pause")
    assert me.first("notify") is not None
    assert lost <= 3


def test_of_nested_limits_the_tightest_ancestor_counts(me):
    """The slice around the scope is tighter, so its limit counts."""
    me.start_daemon()
    me.systemctl("set-property", "--runtime", "tight.slice", "MemoryMax=300M")
    me.systemctl("set-property", "--runtime", "tight-inner.slice", "MemoryMax=250M")
    training = me.train(
        "--seconds", "1200", properties=["Slice=tight-inner.slice", "MemoryMax=700M"]
    )
    pid = training.pid

    found = until(lambda: ceilings_of(me, pid), "its ceilings")

    assert 250 * 2**20 == found[0]["limit"]


@pytest.mark.parametrize("options", [[], ["--no-agent"]], ids=["training", "at rest"])
def test_a_process_that_is_moved_while_it_runs_is_watched_by_its_new_limit(
    me, record_property, options
):
    """At the ordinary sampling rate, without requests: the daemon's open files show it."""
    me.start_daemon()
    daemon = me.daemon_pid()
    training = me.train("--seconds", "1200", *options)
    until(lambda: me.task(training.pid), "it is watched")
    time.sleep(15)  # until it is no longer young
    took_s = []

    with contextlib.ExitStack() as groups:
        for limit in (600 * MIB, 620 * MIB, 640 * MIB):
            folder = groups.enter_context(group(limit))
            time.sleep(5)
            moved = time.monotonic()
            move(training.pid, folder)
            until(partial(follows, daemon, folder), "its new group is watched")
            took_s.append(time.monotonic() - moved)
        limits = [ceiling["limit"] for ceiling in ceilings_of(me, training.pid)]

    record_property("watched after, s", took_s)
    assert 640 * MIB == limits[0]
    assert median(took_s) <= 4  # two seconds on real hardware


@pytest.fixture
def open_kernel_log() -> Iterator[None]:
    """Every user may read the kernel log during a test."""
    before = KERNEL_LOG.read_text()
    KERNEL_LOG.write_text("0")
    yield
    KERNEL_LOG.write_text(before)


@pytest.mark.usefixtures("open_kernel_log")
def test_a_kill_after_a_move_is_told_of_the_new_group_alone(me, record_property):
    """
    The kernel log and the counts are about one group: the old group's count must not deny the kill.
    """
    me.start_daemon()
    training = me.train("--leak-mb-s", "6", "--seconds", "1200",
                        properties=["MemoryMax=700M", "MemorySwapMax=0"])  # fmt: skip
    me.until_watched(training)
    pid = training.pid

    with group(100 * MIB) as folder:
        move(pid, folder)
        assert training.wait() != 0
        death = me.death(pid)

    record_property("reason", [death["certainty"], death["reason"]])
    record_property("evidence", [f"{e['source']}: {e['text']}" for e in death["evidence"]])
    assert "group_limit" == death["cause"]
    assert not [e for e in death["evidence"] if "killed nothing" in e["text"]]


@pytest.mark.usefixtures("open_kernel_log")
def test_a_kill_in_another_group_explains_no_other_end(me, record_property):
    """The kernel kills a hog in its group; seconds later the test ends the training."""
    me.start_daemon()
    training = me.train("--seconds", "1200")
    me.until_watched(training)
    pid = training.pid
    hog = f"{PYTHON} -S -c 'held = bytearray(b\"x\") * (200 << 20)'"
    hog = f"echo 200 > /proc/self/oom_score_adj; {hog}; true"  # the tests are protected
    me.run("systemd-run", "--user", "--scope", "--quiet", "--property=MemoryMax=50M",
           "--property=MemorySwapMax=0", "--", "sh", "-c", hog, check=False)  # fmt: skip
    time.sleep(3)

    os.kill(pid, signal.SIGKILL)
    death = me.death(pid)

    told = [f"{e['source']}: {e['text']}" for e in death["evidence"]]
    record_property("reason", [death["certainty"], death["reason"]])
    record_property("evidence", told)
    assert not death["memory"]
    assert not [text for text in told if "Memory cgroup out of memory" in text]


def follows(pid: int, folder: Path) -> bool:
    """Whether a process waits for events of a memory group."""
    wanted = str(folder / "memory.events")
    with contextlib.suppress(OSError):  # one was closed meanwhile
        return wanted in [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    return False
