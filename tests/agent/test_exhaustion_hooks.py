"""What is said of an error of memory is said once, and the hooks of the program stay its own."""

from __future__ import annotations

import sys

import pytest

from watchdog_app.agent.exhaustion import exhaustion_hooks


class Training:
    def __init__(self):
        self.heard = []

    def exhausted(self, error):
        self.heard.append(error)


@pytest.fixture
def shown(monkeypatch):
    """What a hook of the program was given: the notes, as they stood then."""
    found = []
    monkeypatch.setattr(
        sys, "excepthook", lambda kind, error, trace: found.append(list(error.__notes__))
    )
    monkeypatch.setattr(exhaustion_hooks, "_before", None)
    monkeypatch.setattr(exhaustion_hooks, "_stays", False)
    return found


def test_what_was_said_at_once_is_not_said_again_below_the_traceback(shown, capsys):
    """A Keras fit is over before its error leaves the program."""
    error = MemoryError("no")
    error.add_note("of somebody else")

    exhaustion_hooks.say_and_note(error, "memory ran out in a callback")
    assert "watchdog: memory ran out in a callback" in error.__notes__  # for whoever catches it
    sys.excepthook(MemoryError, error, None)

    assert [["of somebody else"]] == shown
    assert "watchdog: memory ran out in a callback\n" == capsys.readouterr().err


def test_a_training_that_is_over_leaves_the_hook_of_the_program(shown):
    """Nothing was said: everything is as it was."""
    own, training = sys.excepthook, Training()

    exhaustion_hooks.watch(training)
    assert own is not sys.excepthook
    exhaustion_hooks.forget(training)

    assert own is sys.excepthook
    assert [] == training.heard
