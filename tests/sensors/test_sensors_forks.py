"""What forked workers share with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from watchdog_app.core.records import ProcessKey, ProcessSample
from watchdog_app.core.tasks import group
from watchdog_app.sensors.forks import Forks
from watchdog_app.sensors.machine import Machine

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
    """Sizes in MiB."""
    return ProcessSample(ProcessKey(pid, pid), ppid, "S", rss * MIB, shared * MIB, 0, None, 0.0)


def write_rollup(proc, pid: int, private: int) -> None:
    """A smaps_rollup with so many MiB of its own."""
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    (proc / f"{pid}/smaps_rollup").write_text(
        f"0-f ---p [rollup]\nPrivate_Clean: 0 kB\nPrivate_Dirty: {private * 1024} kB\n"
    )


def test_newborn_fork_shares_what_its_parent_has(tmp_path):
    """Until it is measured: no leap of the sum when workers start."""
    forks = Forks(str(tmp_path), lambda _: "same")

    parent, child = forks.complete([sample(1, rss=100), sample(2, ppid=1, rss=95)], 0.0)

    assert (None, 85 * MIB) == (parent.cow_bytes, child.cow_bytes)


def test_child_by_exec_shares_nothing(tmp_path):
    """Another program, or one that cannot be told."""
    programs = {1: "a", 2: "b", 3: None}
    forks = Forks(str(tmp_path), programs.get)

    found = forks.complete([sample(1), sample(2, ppid=1), sample(3, ppid=1)], 0.0)

    assert [None, None, None] == [part.cow_bytes for part in found]


def test_process_that_is_its_own_parent_is_no_fork(tmp_path):
    """Files of different moments can say so."""
    forks = Forks(str(tmp_path), lambda _: "same")

    assert forks.complete([sample(1, ppid=1)], 0.0)[0].cow_bytes is None


def test_measured_fork_shares_what_is_not_its_own(tmp_path):
    """After a second; then it stands until the next measurement, within what there is."""
    write_rollup(tmp_path, 2, private=30)
    forks = Forks(str(tmp_path), lambda _: "same")
    pair = [sample(1), sample(2, ppid=1)]
    forks.complete(pair, 0.0)

    measured = forks.complete(pair, 1.5)[1]
    write_rollup(tmp_path, 2, private=80)
    soon = forks.complete(pair, 2.5)[1]
    shrunk = forks.complete([sample(1), sample(2, ppid=1, rss=20)], 3.5)[1]
    later = forks.complete(pair, 60.0)[1]

    assert [60, 60, 10, 10] == [part.cow_bytes // MIB for part in (measured, soon, shrunk, later)]


def test_measuring_stops_when_the_budget_is_spent(tmp_path):
    """The others have their turn at the next tick."""
    for pid in (2, 3, 4):
        write_rollup(tmp_path, pid, private=90)
    now = [0.0]

    def clock() -> float:
        now[0] += 0.002
        return now[0]

    forks = Forks(str(tmp_path), lambda _: "same", clock)
    family = [sample(1), *(sample(pid, ppid=1) for pid in (2, 3, 4))]
    forks.complete(family, 0.0)

    counts = [
        sum(part.cow_bytes == 0 for part in forks.complete(family, 2.0 + tick)) for tick in range(3)
    ]

    assert [1, 2, 3] == counts


def test_nothing_is_measured_near_a_ceiling(tmp_path):
    """Fast ticks have no time for page tables."""
    write_rollup(tmp_path, 2, private=30)
    forks = Forks(str(tmp_path), lambda _: "same")
    pair = [sample(1), sample(2, ppid=1)]

    found = [forks.complete(pair, tick / 10)[1].cow_bytes for tick in range(40)]

    assert {90 * MIB} == set(found)


def test_fork_that_may_not_be_measured_keeps_its_first_guess(tmp_path):
    """No smaps_rollup (kernels before 4.14), or no right to read it."""
    forks = Forks(str(tmp_path), lambda _: "same")
    pair = [sample(1), sample(2, ppid=1)]
    forks.complete(pair, 0.0)

    assert 90 * MIB == forks.complete(pair, 2.0)[1].cow_bytes


def test_real_forks_are_counted_once():
    """120 MiB, taken over by three workers of which one wrote to all of it: 240, not 480."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKER], stdout=subprocess.PIPE, start_new_session=True
    )
    machine = Machine(runtime_dirs=[])
    try:
        for _ in range(3):
            process.stdout.readline()
        for second in range(8):
            snapshot = machine.sample(float(second), time.time())
        tasks = group(snapshot.processes, snapshot.infos)
        task = next(task for task in tasks if task.key.pid == process.pid)
    finally:
        machine.close()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    assert 4 == len(task.members)
    assert 480 * MIB < sum(member.rss_bytes for member in task.members)
    assert 235 * MIB < task.rss_bytes < 320 * MIB
