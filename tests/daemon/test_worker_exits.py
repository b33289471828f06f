"""Workers that end wake the daemon by themselves."""

from __future__ import annotations

import os
import subprocess
import time

from watchdog_app.core.model.machine import ProcessInfo, ProcessKey, ProcessSample, Task, TaskKind
from watchdog_app.daemon.poller import Poller
from watchdog_app.daemon.worker_exits import WorkerExits


def task(*pids: int) -> Task:
    samples = tuple(ProcessSample(ProcessKey(pid, 1), 1, "S", 0, 0, 0, 0, 0.0) for pid in pids)
    info = ProcessInfo(samples[0].key, 1, 0, None, None, (), None, TaskKind.SCRIPT, "a.py")
    return Task(samples[0].key, "a.py", TaskKind.SCRIPT, 0, samples, 0, 0, 0.0, info)


def test_the_end_of_a_worker_wakes_the_loop_once():
    """Not that of the root, which is followed elsewhere; nothing is left open."""
    poller = Poller(lambda error: None)
    woken: list[float] = []
    ends = WorkerExits(poller, lambda: woken.append(time.monotonic()))
    before = len(os.listdir("/proc/self/fd"))
    with subprocess.Popen(["sleep", "60"]) as worker:
        ends.follow([task(os.getpid(), worker.pid)])
        assert not poller.wait(0)
        worker.kill()
        assert poller.wait(20)
    assert 1 == len(woken)
    assert not poller.wait(0)

    ends.follow([task(os.getpid())])
    ends.close()
    assert before == len(os.listdir("/proc/self/fd"))
    poller.close()


def test_a_worker_that_is_gone_already_is_no_error():
    """Its end shows in the next look anyhow: nobody is woken, and no descriptor is kept."""
    poller = Poller(lambda error: None)
    woken = []
    ends = WorkerExits(poller, lambda: woken.append(True))
    before = len(os.listdir("/proc/self/fd"))

    ends.follow([task(os.getpid(), 2**22 - 1)])

    assert before == len(os.listdir("/proc/self/fd"))
    ends.follow([])
    assert not poller.wait(0)
    assert [] == woken
    ends.close()
    poller.close()
