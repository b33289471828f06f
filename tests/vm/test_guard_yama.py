"""
Saves from outside under Yama, where only a parent may read a program's memory.

With ptrace_scope 1, as on Ubuntu, the training permits its supervisor through PR_SET_PTRACER.
"""

from __future__ import annotations

import os
import signal
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest import PYTHON, until
from guest_guards import WATCHDOG, kills

from watchdog_app.rescue.checkpoint.reader import LoadedRescue

SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
OUTSIDE = "copied from outside after it was stopped"
HOLD = ("--limit", "150M", "--at-limit", "hold")


@pytest.fixture
def restricted() -> Iterator[None]:
    """Set ptrace_scope 1, as on Ubuntu, during a test."""
    before = SCOPE.read_text()
    SCOPE.write_text("1")
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


def test_another_supervisor_is_permitted_as_well(guarded_training, restricted):
    """The first was killed: the training permits its successor."""
    training = guarded_training("--jump-mb", "200", options=HOLD)
    training.until_steps()
    first = training.record()["supervisor_pid"]
    os.kill(first, signal.SIGKILL)
    until(lambda: training.record().get("supervisor_pid") not in (None, first), "another one")
    training.until_steps(15)
    training.jump()

    assert_saved(training, training.stage("stopped"))


def test_a_training_outside_of_any_guard_is_copied_when_it_is_stopped(me, restricted):
    """The daemon is permitted like a supervisor; its copier is its child process."""
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


def test_where_nobody_may_read_it_the_training_saves_itself_from_the_reserve(me, guarded_training):
    """ptrace_scope 2: the daemon requests a save at the next boundary, reached on the reserve."""
    before = SCOPE.read_text()
    SCOPE.write_text("2")
    try:
        me.start_daemon()
        training = guarded_training("--jump-mb", "140", options=HOLD)  # 9 MB beyond the limit
        training.until_steps(15)
        training.jump()
        held = training.stage("stopped")
    finally:
        SCOPE.write_text(before)

    assert (held["agents"], held["saved"]) == (1, 1), str(held)
    assert kills(held["group"]) == 0
    with LoadedRescue(held["rescues"][-1]["path"]) as rescue:
        rescue.verify()
