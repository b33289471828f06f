"""How late looks are, how many were missed, and whose doing that was."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from watchdog_app.daemon.loop_lag import LoopLag
from watchdog_app.daemon.poller import Poller

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
    ("waited", "overslept", "own"),
    [
        pytest.param(0.0, 0.0, 6, id="nothing excuses it"),
        pytest.param(0.65, 0.0, 0, id="ready all the time, without a processor"),
        pytest.param(0.0, 0.65, 0, id="its sleep ended late: stopped, or the machine was"),
        pytest.param(0.35, 0.35, 3, id="what waited at the end of a sleep counts once"),
        pytest.param(0.44, 0.0, 2, id="a third of it was its own"),
        pytest.param(5.0, 5.0, 0, id="waited before, too, when there was time"),
    ],
)
def test_a_missed_look_is_its_own_unless_the_kernel_says_otherwise(
    tmp_path, waited, overslept, own
):
    """At ten a second, 0.65 s late: six were missed."""
    schedstat, slept = tmp_path / "schedstat", [7.0]
    schedstat.write_text("5 3000000000 9\n")
    loop_lag = LoopLag(lambda: slept[0], waits=str(schedstat))

    loop_lag.begins(100.0, 100.0, 0.1)
    schedstat.write_text(f"5 {3_000_000_000 + int(waited * 1e9)} 9\n")
    slept[0] += overslept
    loop_lag.begins(100.1, 100.75, 0.1)

    assert 6 == loop_lag.missed
    assert own == loop_lag.missed_own
    loop_lag.close()


def test_a_kernel_without_figures_excuses_nothing(tmp_path):
    """What cannot be known is the daemon's own."""
    loop_lag = LoopLag(waits=str(tmp_path / "none"))

    loop_lag.begins(100.0, 103.5, 1.0)

    assert (3, 3) == (loop_lag.missed, loop_lag.missed_own)
    loop_lag.close()


def test_the_kernel_is_asked_of_the_thread_that_looks():
    """Its own work is no wait for a processor, however long it takes."""
    loop_lag = LoopLag()
    began = time.thread_time()
    while time.thread_time() - began < 0.05:
        pass

    loop_lag.begins(100.0, 1100.0, 1.0)

    assert loop_lag.missed_own > 900, "no machine waits as long as is claimed here"
    loop_lag.close()


def test_a_wait_that_outlasts_its_time_is_told_apart_from_one_that_does_not():
    """By the loop itself: nothing else can know how long it meant to sleep."""
    poller = Poller(lambda error: None)
    read, write = os.pipe()
    try:
        os.write(write, b"x")
        poller.add(read, 1, lambda _: None)
        poller.wait(3600)
        early = poller.overslept_s
        poller.wait(-5)
        poller.remove(read)
        poller.wait(0.001)
        late = poller.overslept_s
    finally:
        poller.close()
        os.close(read)
        os.close(write)

    assert 0.0 == early
    assert late > 0.0, "a thousandth of a second is never met exactly"


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
