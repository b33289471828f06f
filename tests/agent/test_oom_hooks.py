"""The agent reports a memory error once, and the program's hooks stay in place."""

from __future__ import annotations

import sys
from weakref import WeakSet

import pytest

from watchdog_app.agent.oom import watch


class Training:
    def __init__(self):
        self.heard = []

    def out_of_memory(self, error):
        self.heard.append(error)


@pytest.fixture
def shown(monkeypatch):
    """Return the error's notes at the time when the program's hook got it."""
    found = []
    monkeypatch.setattr(
        sys, "excepthook", lambda kind, error, trace: found.append(list(error.__notes__))
    )
    monkeypatch.setattr(watch, "_registered", WeakSet())  # ignore trainings of earlier tests
    monkeypatch.setattr(watch, "_previous_hook", None)
    monkeypatch.setattr(watch, "_keep_hook", False)
    return found


def test_what_was_said_at_once_is_not_said_again_below_the_traceback(shown, capsys):
    """A Keras fit has ended before its error leaves the program."""
    error = MemoryError("no")
    error.add_note("of somebody else")

    watch.print_and_add_note(error, "memory ran out in a callback")
    assert "watchdog: memory ran out in a callback" in error.__notes__  # for code that catches it
    sys.excepthook(MemoryError, error, None)

    assert [["of somebody else"]] == shown
    assert "watchdog: memory ran out in a callback\n" == capsys.readouterr().err


def test_in_a_notebook_it_is_said_and_not_shown_again_with_the_error(
    shown, capsys, tmp_path, monkeypatch
):
    """IPython prints an error with its notes and calls no hook before."""
    import io
    from contextlib import redirect_stdout

    from IPython.core.interactiveshell import InteractiveShell
    from IPython.terminal.interactiveshell import TerminalInteractiveShell

    def fails():
        error = MemoryError("no")
        watch.print_and_add_note(error, "memory ran out in a training step")
        raise error

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shell = TerminalInteractiveShell.instance(colors="nocolor")
    try:
        shell.user_ns["fails"] = fails
        with redirect_stdout(io.StringIO()) as out:
            shell.run_cell("fails()")
    finally:
        TerminalInteractiveShell.clear_instance()
        InteractiveShell.clear_instance()

    said = capsys.readouterr()
    whole = out.getvalue() + said.out + said.err
    assert "MemoryError: no" in whole
    assert 1 == whole.count("memory ran out in a training step\n")


def test_a_training_that_is_over_leaves_the_hook_of_the_program(shown):
    """The agent reported nothing and restores everything."""
    own, training = sys.excepthook, Training()

    watch.register(training)
    assert own is not sys.excepthook
    watch.unregister(training)

    assert own is sys.excepthook
    assert [] == training.heard
