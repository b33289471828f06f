"""The daemon as a unit of the user's systemd, from the packaged file."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from guest import until
from guest_groups import groups_locked

from watchdog_app.machine.sensors import groups


def test_systemd_starts_the_daemon_and_hears_that_it_turns(me):
    """Type=notify: started means that it answers; it reports each turn of the loop to systemd."""
    client = me.start_daemon(override="WatchdogSec=20\n")

    assert me.show("watchdog.service", "ActiveState") == "active"
    assert client.daemon_pid == me.daemon_pid()
    first = me.show("watchdog.service", "WatchdogTimestampMonotonic")
    until(lambda: me.show("watchdog.service", "WatchdogTimestampMonotonic") != first, "a beat")


def test_a_daemon_that_is_killed_is_there_again(me):
    """kill -9: systemd starts another, which answers."""
    first = me.start_daemon().daemon_pid

    os.kill(first, signal.SIGKILL)

    again = until(lambda: me.daemon_pid() not in (0, first) and me.client().daemon_pid, "restarted")
    assert again != first
    assert int(me.show("watchdog.service", "NRestarts")) == 1


def test_a_daemon_that_hangs_is_replaced(me):
    """The loop hangs: systemd misses its report and starts another."""
    first = me.start_daemon(override="WatchdogSec=20\nTimeoutAbortSec=5\n").daemon_pid

    os.kill(first, signal.SIGSTOP)

    until(lambda: me.daemon_pid() not in (0, first), "replaced")
    assert me.client().daemon_pid != first


def test_the_daemon_goes_on_while_the_kernel_keeps_all_groups_locked(me, record_property):
    """No sample waits for the lock; systemd gets its reports, and the status shows the fault."""
    me.start_daemon(override="WatchdogSec=20\n")
    me.until_watched(me.train("--seconds", "1200"))
    first = me.daemon_pid()

    def fault() -> list[str]:
        return [e["message"] for e in me.status()["problems"] if e["source"] == groups.MEMBERSHIPS]

    with groups_locked() as locked:
        held_at_first = locked()
        said = until(fault, "the fault is shown")
        before = me.status()["daemon"]["samples"]
        for _ in range(25):  # longer than systemd waits for a report
            time.sleep(1)
            samples = me.status()["daemon"]["samples"] - before
        held_to_the_end = locked()
    record_property("said, and looks in 25 s", [said, samples])
    until(lambda: not fault(), "the fault is over")

    def interval(text: str) -> bool:
        return me.show("watchdog.service", "WatchdogUSec") == text

    # WATCHDOG_USEC=: twenty times as long under pressure, until a minute has been calm.
    until(lambda: interval("6min 40s"), "systemd waits longer")
    until(lambda: interval("20s"), "systemd waits as its unit says")

    assert held_at_first
    assert held_to_the_end
    assert samples >= 3
    assert first == me.daemon_pid()
    assert 0 == int(me.show("watchdog.service", "NRestarts"))


def test_the_daemon_is_protected_as_its_unit_says(me, record_property):
    """The kernel kills the user's programs before it; memory is locked as far as allowed."""
    pid = me.start_daemon().daemon_pid
    record_property(
        "limits",
        Path(f"/proc/{pid}/limits").read_text().split("Max locked memory")[1].split("\n")[0],
    )
    record_property("status", me.status()["daemon"])
    lines = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    record_property("VmLck", lines["VmLck"].strip())

    assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) == 100
    assert me.show("watchdog.service", "OOMPolicy") == "continue"
    # The attribute that systemd-oomd reads before it kills a group.
    group = me.show("watchdog.service", "ControlGroup")
    assert os.getxattr(f"/sys/fs/cgroup{group}", "user.oomd_avoid") == b"1"
