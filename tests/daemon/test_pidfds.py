"""Processes that end wake the daemon through their pidfd."""

from __future__ import annotations

import os
import subprocess

from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon.poller import PidFds, Poller


def keys(*pids: int) -> list[ProcessKey]:
    return [ProcessKey(pid, 1) for pid in pids]


def test_the_end_of_a_process_wakes_the_loop_once():
    """Its handle is still open then; no descriptor stays open afterwards."""
    poller = Poller(lambda error: None)
    woken: list[bool] = []
    ends = PidFds(poller, lambda key: woken.append(ends.fd(key) is not None))
    before = len(os.listdir("/proc/self/fd"))
    with subprocess.Popen(["sleep", "60"]) as worker:
        ends.follow(keys(os.getpid(), worker.pid))
        assert not poller.wait(0)
        worker.kill()
        assert poller.wait(20)
    assert [True] == woken
    assert not poller.wait(0)

    ends.follow(keys(os.getpid()))
    ends.close()
    assert before == len(os.listdir("/proc/self/fd"))
    poller.close()


def test_a_process_that_is_gone_already_is_no_error():
    """The next sample shows its end: no wake-up, and no open descriptor."""
    poller = Poller(lambda error: None)
    woken = []
    ends = PidFds(poller, lambda _: woken.append(True))
    before = len(os.listdir("/proc/self/fd"))

    ends.follow(keys(2**22 - 1))

    assert before == len(os.listdir("/proc/self/fd"))
    ends.follow([])
    assert not poller.wait(0)
    assert [] == woken
    ends.close()
    poller.close()
