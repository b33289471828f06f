"""How late looks are, how many were missed, and what held them up."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from watchdog_app.daemon.pace import LoopLag

AUTOGROUP = """
import os
from watchdog_app.base.own_process import go_first
print(go_first(), open("/proc/self/autogroup").read().split()[-1])
"""


@pytest.mark.parametrize(
    ("due", "now", "interval", "late", "missed"),
    [
        pytest.param(100.0, 100.0, 1.0, 0.0, 0, id="in time"),
        pytest.param(100.0, 100.2, 1.0, 0.2, 0, id="as late as machines at work are"),
        pytest.param(100.0, 100.6, 1.0, 0.6, 0, id="late, and none was missed"),
        pytest.param(100.0, 100.65, 0.1, 0.65, 6, id="at the fast rate six were missed"),
        pytest.param(100.0, 107.5, 1.0, 7.5, 7, id="seven were missed"),
        pytest.param(100.0, 99.0, 1.0, 0.0, 0, id="sooner than due"),
    ],
)
def test_lateness_is_counted_by_the_clock(due, now, interval, late, missed):
    """By how much, and how many fell due meanwhile."""
    loop_lag = LoopLag()

    assert late == pytest.approx(loop_lag.begins(due, now, interval))
    assert missed == loop_lag.missed
    assert (late if late >= 0.25 else 0.0) == pytest.approx(loop_lag.latest_s(now))
    assert (late >= 1.0) == (loop_lag.fault(now) is not None)
    assert loop_lag.fault(now + 61) is None, "a minute later it is over"
    assert 0.0 == loop_lag.latest_s(now + 61)
    loop_lag.close()


@pytest.mark.parametrize(
    ("waited_s", "computed_s", "why"),
    [
        pytest.param(3.0, 0.0, "for a processor", id="ready, without a processor"),
        pytest.param(0.0, 3.0, "busy with other work", id="it computed"),
        pytest.param(0.0, 0.0, "stood still", id="neither"),
    ],
)
def test_it_is_told_what_held_a_look_up(tmp_path, monkeypatch, waited_s, computed_s, why):
    """By the kernel's figures of the thread that looks; a major fault of the test is none of it."""
    schedstat, computed = tmp_path / "schedstat", [7.0]
    schedstat.write_text("5 3000000000 9\n")
    monkeypatch.setattr(time, "thread_time", lambda: computed[0])
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_majflt=0))
    loop_lag = LoopLag(waits=str(schedstat))

    schedstat.write_text(f"5 {3_000_000_000 + int(waited_s * 1e9)} 9\n")
    computed[0] += computed_s
    loop_lag.begins(100.0, 103.5, 1.0)

    assert why in loop_lag.fault(103.5).message
    loop_lag.close()


def test_a_kernel_without_figures_hides_nothing(tmp_path):
    """It is told all the same."""
    loop_lag = LoopLag(waits=str(tmp_path / "none"))

    loop_lag.begins(100.0, 103.5, 1.0)

    assert 3 == loop_lag.missed
    assert loop_lag.fault(103.5) is not None
    loop_lag.close()


@pytest.mark.skipif(not os.path.exists("/proc/self/autogroup"), reason="no autogroups here")
@pytest.mark.parametrize("alone", [True, False])
def test_in_a_session_of_its_own_the_whole_session_goes_first(alone):
    """A nice value counts within a session alone; one with others in it is left as it is."""
    argv = [sys.executable, "-c", AUTOGROUP]
    if not alone:
        argv = ["/bin/sh", "-c", '"$@"; exit $?', "sh", *argv]
    done = subprocess.run(
        argv, start_new_session=True, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    nice, session = map(int, done.stdout.split())

    assert (min(0, nice) if alone else 0) == session


COMPUTING = """
import threading, time
from watchdog_app.base.own_process import wait_briefly_for_threads

def look():
    begun = time.perf_counter()
    for _ in range(30):
        time.sleep(0.0001)  # like a file that is read: whoever computes gets the turn
    return time.perf_counter() - begun

def compute():
    while True:
        sum(range(100))

threading.Thread(target=compute, daemon=True).start()
before = min(look() for _ in range(3))
wait_briefly_for_threads()
print(min(look() for _ in range(3)) / before)
"""


def test_a_thread_that_computes_holds_up_no_look_by_much():
    """Python lets each turn of another thread last ten times as long by itself."""
    done = subprocess.run(
        [sys.executable, "-c", COMPUTING],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip

    assert float(done.stdout) < 0.5
