"""How late samples are, how many were missed, and how the daemon keeps them on time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.finished import finished

from watchdog_app.daemon.pace import LoopLag

AUTOGROUP = """
import os
from watchdog_app.base.own_process import raise_priority
print(raise_priority(), open("/proc/self/autogroup").read().split()[-1])
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
    """The delay, and the number of samples that became due meanwhile."""
    loop_lag = LoopLag()

    loop_lag.record(due, now, interval)

    assert missed == loop_lag.missed
    assert (late if late >= 0.25 else 0.0) == pytest.approx(loop_lag.latest_s(now))
    assert (late >= 1.0) == (loop_lag.fault(now) is not None)
    assert loop_lag.fault(now + 61) is None, "a minute later it is over"
    assert 0.0 == loop_lag.latest_s(now + 61)


@pytest.mark.skipif(not os.path.exists("/proc/self/autogroup"), reason="no autogroups here")
@pytest.mark.parametrize("alone", [True, False])
def test_in_a_session_of_its_own_the_whole_session_goes_first(alone):
    """A nice value counts only within a session; a shared session keeps its value."""
    argv = [sys.executable, "-c", AUTOGROUP]
    if not alone:
        argv = ["/bin/sh", "-c", '"$@"; exit $?', "sh", *argv]
    done = finished(argv, check=True, start_new_session=True, stdin=subprocess.DEVNULL)
    nice, session = map(int, done.stdout.split())

    assert (min(0, nice) if alone else 0) == session


def test_a_thread_that_computes_holds_up_no_look_by_much():
    """By default Python gives each turn of another thread ten times as long."""
    code = (
        "import sys; from watchdog_app.base.own_process import shorten_switch_interval as shorten\n"
        "before = sys.getswitchinterval(); shorten(); print(sys.getswitchinterval() / before)"
    )
    done = finished([sys.executable, "-c", code], check=True, stdin=subprocess.DEVNULL)

    assert float(done.stdout) <= 0.11
