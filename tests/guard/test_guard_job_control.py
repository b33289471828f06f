"""Ctrl-Z, fg, bg and kill of a program that is held: the shell has its terminal back."""

from __future__ import annotations

import os
import signal

import pytest

from watchdog_app.guard.policy import Copies, Do, Policy, Stage

NOBODY = Copies(0, 0, 0)


def held() -> Policy:
    policy = Policy(hold_s=60.0)
    policy.limit_met(1.0)
    policy.copied(2.0, NOBODY)
    assert policy.stage is Stage.HELD
    return policy


def test_what_is_to_stop_runs_for_that_alone_and_is_held_as_before():
    """The time after which a hold ends goes on to count."""
    policy = held()

    assert [Do.GIVE_LITTLE, Do.THAW] == policy.stopped(40.0)
    assert Stage.ASIDE is policy.stage
    assert [] == policy.limit_met(40.1)
    assert [Do.FREEZE, Do.TAKE_BACK] == policy.stands_aside()
    assert Stage.HELD is policy.stage
    assert policy.tick(63.0, 99, 100)
    assert Stage.ENDING is policy.stage


@pytest.mark.parametrize("way", ["limit", "time"])
def test_what_does_not_stop_is_held_again_soon_and_not_asked_all_the_time(way):
    """A program that handles Ctrl-Z by itself gets no memory by it."""
    policy = held()
    policy.stopped(10.0)

    steps = policy.limit_met(10.5) if way == "limit" else policy.tick(11.5, 99, 100)

    assert [Do.FREEZE, Do.TAKE_BACK] == steps
    assert [] == policy.stopped(11.6)
    assert policy.stopped(14.0)


def test_what_ends_or_is_given_more_meanwhile_is_heard():
    """Ctrl-C after Ctrl-Z; a limit raised in the same moment."""
    first, second = held(), held()
    first.stopped(10.0)
    second.stopped(10.0)

    assert [Do.GIVE_ALL, Do.THAW] == first.interrupted(10.1)
    assert Do.THAW in second.raised(10.1)
    assert Stage.CALM is second.stage


def test_a_stopped_program_that_is_to_end_waits_for_its_shell_and_is_asked_again_later():
    """SIGTERM reaches it with fg; until then it is held, and nothing is said anew."""
    policy = held()
    policy.interrupted(20.0)

    assert [] == policy.stays(20.5)
    assert [Do.FREEZE, Do.TAKE_BACK] == policy.stays(21.5)
    assert [] == policy.interrupted(22.0)
    assert [Do.GIVE_ALL, Do.THAW] == policy.interrupted(40.0)


def stopped(pid: int) -> bool:
    """Whether the parent was told that its child has stopped, as a shell is."""
    found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
    return bool(found) and os.WIFSTOPPED(status)


def test_ctrl_z_gives_the_shell_its_terminal_back_and_what_is_held_goes_on_with_fg(desk):
    """Held before and after; a limit that is raised meanwhile counts, and nothing is lost."""
    hog = desk.hog(200, 0, limit="60M", options=("--no-refuse",))
    desk.stage(hog, "held")

    for _ in range(2):
        os.kill(hog.pid, signal.SIGTSTP)
        desk.until(lambda: stopped(hog.pid), "the shell would wait for ever")
        desk.stage(hog, "held")
        os.kill(hog.pid, signal.SIGCONT)
    os.kill(hog.pid, signal.SIGTSTP)
    desk.until(lambda: stopped(hog.pid), "the shell would wait for ever")
    desk.stage(hog, "held")
    raised = desk.run("limit", str(hog.pid), "400M")
    assert hog.poll() is None
    os.kill(hog.pid, signal.SIGCONT)

    assert 0 == raised.returncode, raised.stderr
    assert ("all of it\n", 0) == (hog.stdout.read(), desk.end(hog))
    assert "It was stopped, as with Ctrl-Z: fg lets it run" in hog.said()


def test_what_was_stopped_and_is_to_end_ends_when_it_goes_on(desk):
    """As `kill %1` of a shell does it: SIGTERM, then SIGCONT."""
    hog = desk.hog(200, 0, limit="60M", options=("--no-refuse",))
    desk.stage(hog, "held")
    os.kill(hog.pid, signal.SIGTSTP)
    desk.until(lambda: stopped(hog.pid), "the shell would wait for ever")
    desk.stage(hog, "held")

    os.kill(hog.pid, signal.SIGTERM)
    os.kill(hog.pid, signal.SIGCONT)

    assert -signal.SIGTERM == desk.end(hog)
