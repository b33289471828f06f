"""The memory that forked workers share with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import count

import pytest

from watchdog_app.core.model.machine import ProcessKey, ProcessSample
from watchdog_app.core.model.tasks import group_processes, resident_bytes
from watchdog_app.machine.sensors.machine import LinuxMachine
from watchdog_app.machine.sensors.shared_pages import SharedPages

MIB = 1 << 20

FORKER = """
import os, sys, time
data = bytearray(b"x" * (120 << 20))
for worker in range(3):
    if os.fork() == 0:
        if worker == 0:
            for at in range(0, len(data), 4096):
                data[at] = 1
        print(flush=True)
        time.sleep(60)
        os._exit(0)
time.sleep(60)
"""


def sample(pid: int, ppid: int = 0, rss: int = 100, shared: int = 10) -> ProcessSample:
    """A process; sizes in MiB."""
    return ProcessSample(ProcessKey(pid, pid), ppid, "S", rss * MIB, shared * MIB, 0, None, 0.0)


def write_rollup(proc, pid: int, private: float, pss: float | None = None) -> None:
    """Write a smaps_rollup with this private memory, and this proportional share (Pss), in MiB."""
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    part = "" if pss is None else f"Pss_Anon: {round(pss * 1024)} kB\n"
    (proc / f"{pid}/smaps_rollup").write_text(
        f"0-f ---p [rollup]\n{part}Private_Clean: 0 kB\nPrivate_Dirty: {round(private * 1024)} kB\n"
    )


def held(samples) -> int:
    """MiB that the family holds, summed as all readers of samples do."""
    return resident_bytes(samples) // MIB


def test_newborn_fork_shares_what_its_parent_has(tmp_path):
    """Until it is measured: the sum must not jump when workers start."""
    forks = SharedPages(str(tmp_path), lambda _: "same")

    parent, child = forks.add_cow_bytes([sample(1, rss=100), sample(2, ppid=1, rss=95)], 0.0)

    assert (None, 85 * MIB) == (parent.cow_bytes, child.cow_bytes)


def test_child_by_exec_shares_nothing(tmp_path):
    """It runs another program, or an unknown one."""
    programs = {1: "a", 2: "b", 3: None}
    forks = SharedPages(str(tmp_path), programs.get)

    found = forks.add_cow_bytes([sample(1), sample(2, ppid=1), sample(3, ppid=1)], 0.0)

    assert [None, None, None] == [part.cow_bytes for part in found]


def test_process_that_is_its_own_parent_is_no_fork(tmp_path):
    """Files that are read at different moments can say so."""
    forks = SharedPages(str(tmp_path), lambda _: "same")

    assert forks.add_cow_bytes([sample(1, ppid=1)], 0.0)[0].cow_bytes is None


def test_measured_fork_shares_what_is_not_its_own(tmp_path):
    """After a second; the value stays until the next measurement, bounded by the present size."""
    write_rollup(tmp_path, 2, private=30)
    forks = SharedPages(str(tmp_path), lambda _: "same")
    pair = [sample(1), sample(2, ppid=1)]
    forks.add_cow_bytes(pair, 0.0)

    measured = forks.add_cow_bytes(pair, 1.5)[1]
    write_rollup(tmp_path, 2, private=80)
    soon = forks.add_cow_bytes(pair, 2.5)[1]
    shrunk = forks.add_cow_bytes([sample(1), sample(2, ppid=1, rss=20)], 3.5)[1]
    later = forks.add_cow_bytes(pair, 60.0)[1]

    assert [60, 60, 10, 10] == [part.cow_bytes // MIB for part in (measured, soon, shrunk, later)]


def test_measuring_stops_when_the_budget_is_spent(tmp_path):
    """The others follow at the next tick."""
    for pid in (1, 2, 3, 4):
        write_rollup(tmp_path, pid, private=90)
    now = [0.0]

    def clock() -> float:
        now[0] += 0.004  # the time of one walk
        return now[0]

    forks = SharedPages(str(tmp_path), lambda _: "same", clock)
    family = [sample(1), *(sample(pid, ppid=1) for pid in (2, 3, 4))]
    forks.add_cow_bytes(family, 0.0)

    counts = [
        sum(part.cow_bytes == 0 for part in forks.add_cow_bytes(family, 2.0 + tick))
        for tick in range(4)
    ]

    assert [0, 1, 2, 3] == counts  # their parent was measured first


def test_what_siblings_share_without_their_parent_is_counted_once(tmp_path):
    """Their parent has written to it and has a copy: two copies exist, but no process has grown."""
    family = [sample(1, shared=0), sample(2, ppid=1, shared=0), sample(3, ppid=1, shared=0)]
    forks = SharedPages(str(tmp_path), lambda _: "same")
    for pid in (1, 2, 3):
        write_rollup(tmp_path, pid, private=0, pss=100 / 3)
    forks.add_cow_bytes(family, 0.0)
    before = held(forks.add_cow_bytes(family, 2.0))

    write_rollup(tmp_path, 1, private=100, pss=100)
    for pid in (2, 3):
        write_rollup(tmp_path, pid, private=0, pss=50)
    after = held(forks.add_cow_bytes(family, 60.0))

    assert pytest.approx(100, abs=1) == before
    assert pytest.approx(200, abs=1) == after


def test_near_a_ceiling_copies_are_seen_within_two_seconds(tmp_path):
    """Ticks are fast there, and half a minute would be too late."""
    write_rollup(tmp_path, 1, private=0, pss=50)
    write_rollup(tmp_path, 2, private=0, pss=50)
    pair = [sample(1, shared=0), sample(2, ppid=1, shared=0)]
    near, at_rest = (SharedPages(str(tmp_path), lambda _: "same") for _ in range(2))
    for tick in range(30):
        near.add_cow_bytes(pair, tick / 10)
    for second in range(4):
        at_rest.add_cow_bytes(pair, float(second))

    for pid in (1, 2):
        write_rollup(tmp_path, pid, private=100, pss=100)
    soon = [held(near.add_cow_bytes(pair, 3.0 + tick / 10)) for tick in range(20)]

    assert 200 == soon[-1]
    assert 100 == held(at_rest.add_cow_bytes(pair, 5.0))


def test_near_a_ceiling_a_family_costs_a_hundredth_of_a_core(tmp_path):
    """Walks of 2.5 ms each: those of five processes repeat after 1.25 s."""
    calls = count()
    forks = SharedPages(str(tmp_path), lambda _: "same", lambda: next(calls) * 0.0025)
    family = [sample(1), *(sample(pid, ppid=1) for pid in range(2, 6))]
    for pid in (1, 3, 4, 5):
        write_rollup(tmp_path, pid, private=30)
    seen = set()

    for tick in range(600):
        write_rollup(tmp_path, 2, private=tick / 10)
        seen.add(forks.add_cow_bytes(family, tick / 10)[1].cow_bytes)

    assert 30 <= len(seen) <= 60 / 1.25 + 1


def test_fork_that_may_not_be_measured_keeps_its_first_guess(tmp_path):
    """No smaps_rollup (kernels before 4.14), or no right to read it."""
    forks = SharedPages(str(tmp_path), lambda _: "same")
    pair = [sample(1), sample(2, ppid=1)]
    forks.add_cow_bytes(pair, 0.0)

    assert 90 * MIB == forks.add_cow_bytes(pair, 2.0)[1].cow_bytes


def test_real_forks_are_counted_once():
    """120 MiB, shared by three workers, one of which wrote to all of it: 240, not 480."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKER], stdout=subprocess.PIPE, start_new_session=True
    )
    machine = LinuxMachine()
    try:
        for _ in range(3):
            process.stdout.readline()
        # A busy machine may need some samples more to describe and measure them.
        for second in range(100):
            snapshot = machine.sample(float(second), time.time())
            # Not the tests' own Pythons, which are above it.
            family = tuple(
                sample
                for sample in snapshot.processes
                if process.pid in (sample.key.pid, sample.ppid)
            )
            tasks = group_processes(family, snapshot.infos)
            task = next((task for task in tasks if task.key.pid == process.pid), None)
            known = task is not None and len(task.members) == 4
            if second >= 7 and known and 235 * MIB < task.rss_bytes < 320 * MIB:
                break
            time.sleep(0.02 * (second >= 7))
    finally:
        machine.close()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    assert task is not None
    assert 4 == len(task.members)
    assert 480 * MIB < sum(member.rss_bytes for member in task.members)
    assert 235 * MIB < task.rss_bytes < 320 * MIB
