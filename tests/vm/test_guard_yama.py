"""
Saves from outside under Yama, where other processes may not open a program's memory.

With ptrace_scope 1, as on Ubuntu, only a parent may, with 2 only root. A training opens its memory
itself and hands it over, so both must make no difference.
"""

from __future__ import annotations

import os
import signal
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest import PYTHON, until
from guest_guards import WATCHDOG

from watchdog_app.rescue.checkpoint.reader import LoadedRescue

SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
OUTSIDE = "copied from outside after it was stopped"
HOLD = ("--limit", "150M", "--at-limit", "hold")


@pytest.fixture(params=["1", "2"], ids=["ptrace_scope 1", "ptrace_scope 2"])
def restricted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set ptrace_scope during a test."""
    before = SCOPE.read_text()
    SCOPE.write_text(request.param)
    try:
        yield
    finally:
        SCOPE.write_text(before)


def assert_saved(training, held) -> None:
    """The last step is saved from outside, and complete."""
    assert (held["agents"], held["saved"]) == (1, 1), held
    (saved,) = held["rescues"][-1:]
    with LoadedRescue(saved["path"]) as rescue:
        rescue.verify()
        weights = array("f", bytes(rescue.read("weights")))
    assert saved["step"] == training.steps()
    assert set(weights[:1000]) == {float(saved["step"])}
    assert not any(weights[1000:])


def test_a_training_is_copied_although_nobody_else_may_read_it(me, guarded_training, restricted):
    """A jump between two steps: stopped, saved by the supervisor, and continued after a raise."""
    training = guarded_training("--jump-mb", "200", options=HOLD)
    training.until_steps()
    training.jump()

    held = training.stage("stopped")
    stranger = me.run(
        PYTHON, "-S", "-c", f"open('/proc/{held['pid']}/mem', 'rb')", check=False
    )  # fmt: skip
    assert_saved(training, held)
    me.run(*WATCHDOG, "limit", str(held["pid"]), "500M")
    training.until_steps(3)

    assert "PermissionError" in stranger


def test_another_supervisor_copies_it_as_well(guarded_training, restricted):
    """The first was killed: its successor has what the training handed over."""
    training = guarded_training("--jump-mb", "200", options=HOLD)
    training.until_steps()
    first = training.record()["supervisor_pid"]
    os.kill(first, signal.SIGKILL)
    until(lambda: training.record().get("supervisor_pid") not in (None, first), "another one")
    training.until_steps(15)
    training.jump()

    assert_saved(training, training.stage("stopped"))


def test_a_training_outside_of_any_guard_is_copied_when_it_is_stopped(me, restricted):
    """The training hands its memory to the daemon as to a supervisor."""
    me.start_daemon()
    training = me.train("--publish", "--step-s", "0.5", "--seconds", "1200")
    me.until_watched(training)
    me.run(*WATCHDOG, "checkpoint", "--wait", str(training.pid))  # from now on at each step
    until(training.rescues, "a rescue of its own")
    steps = len(training.steps())
    until(lambda: len(training.steps()) > steps + 5, "steps")

    me.run(*WATCHDOG, "pause", str(training.pid))

    try:
        until(lambda: len(training.rescues()) > 1, "a copy from outside")
    except AssertionError:
        raise AssertionError(me.daemon_log()) from None
    with LoadedRescue(str(training.rescues()[-1])) as rescue:
        rescue.verify()
        assert rescue.meta["reason"] == OUTSIDE
        assert rescue.step == training.steps()[-1][0]
    me.run(*WATCHDOG, "resume", str(training.pid))
