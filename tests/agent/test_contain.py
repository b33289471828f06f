"""Errors of the agent must not reach the training."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import termios

import pytest

from watchdog_app.agent.contain import STRICT, Guard, print_message
from watchdog_app.base.text.plain import line_start


@pytest.fixture
def lenient(monkeypatch):
    """Contain errors, as in a user's process."""
    monkeypatch.delenv(STRICT, raising=False)


def test_an_error_is_held_back_counted_and_told_once(lenient, capsys):
    """The training continues, and stderr has one line about the error."""
    guard = Guard()

    for _ in range(3):
        with guard:
            raise ValueError("bad\nthing")

    told = capsys.readouterr().err
    assert 1 == told.count("\n")
    assert told.startswith("watchdog: the rescue agent had an error")
    assert "your training is not affected: ValueError: bad thing" in told
    assert guard.failed


def test_an_error_in_two_parts_with_one_name_is_told_once(lenient, capsys):
    """The message says so: "This is said once"."""
    for guard in (Guard("a part"), Guard("a part")):
        with guard:
            raise KeyError

    assert 1 == capsys.readouterr().err.count("This is said once")


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("INTERNAL: Out of memory allocating 5979688 bytes.")],  # of JAX
    ids=["Python", "JAX"],
)
def test_refused_memory_is_no_error_of_the_agent(lenient, capsys, error):
    part = f"a part with a {type(error).__name__}"  # each message is printed once
    with Guard(part):
        raise error

    assert f"{part} found no memory for its work in this step" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_not_ours_passes(lenient, kind):
    """Ctrl-C and sys.exit belong to the user."""
    with pytest.raises(kind), Guard():
        raise kind


def test_under_test_every_contained_error_is_raised():
    """WATCHDOG_AGENT_STRICT=1 shows the tests every error."""
    with pytest.raises(ValueError, match="seen"), Guard():
        raise ValueError("seen")


def test_nothing_is_said_without_stderr(monkeypatch):
    """A program may have closed stderr, or started without it."""
    monkeypatch.setattr("sys.stderr", None)

    assert print_message("hello") is None


def test_control_characters_do_not_reach_the_terminal(capsys):
    """Names come from a user's files."""
    print_message("a\x1b[31mb\nc")

    assert "watchdog: a\\x1b[31mb\\nc\n" == capsys.readouterr().err


def test_a_message_is_told_once(capsys):
    """The agent must not repeat a message in every step."""
    guard = Guard()

    guard.print_once("full")
    guard.print_once("full")

    assert "watchdog: full\n" == capsys.readouterr().err


class Handler:
    """A callable object as a signal handler."""

    def __call__(self, number, frame):
        raise RuntimeError("a worker was killed")

    def method(self, number, frame):
        raise RuntimeError("a worker was killed")


def handle(number, frame):
    raise RuntimeError("a worker was killed")


@pytest.mark.parametrize(
    "handler",
    [handle, Handler(), Handler().method, functools.partial(handle)],
    ids=["function", "object", "method", "partial"],
)
def test_what_a_signal_handler_of_the_program_raises_is_not_held_back(monkeypatch, handler):
    """
    PyTorch reports a dead worker this way, and the signal may arrive while the agent's code runs.
    """
    monkeypatch.delenv(STRICT, raising=False)
    guard = Guard()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(RuntimeError, match="a worker was killed"), guard:
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert not guard.failed


@pytest.mark.parametrize(("columns", "start"), [(7, " " * 7 + "\r"), (0, "\n")])
def test_blanks_to_the_end_of_the_line_begin_a_new_one_on_a_terminal(columns, start):
    """An empty line stays: the cursor goes back to its start. Not every terminal has a size."""
    outer, inner = os.openpty()
    termios.tcsetwinsize(inner, (20, columns))

    assert start == line_start(inner)

    os.close(outer)
    os.close(inner)


def test_a_message_begins_on_a_line_of_its_own(tmp_path):
    """A progress bar, or `print(..., end=" ")`, may have left a line unfinished."""
    said = tmp_path / "said.txt"
    script = (
        "from watchdog_app.agent.contain import print_message\n"
        "print('iter 0', end=' ', flush=True); print_message('one'); print_message('two')"
    )
    with open(said, "w") as file:
        subprocess.run([sys.executable, "-c", script], stdout=file, stderr=file, check=True)

    assert "iter 0 \nwatchdog: one\nwatchdog: two\n" == said.read_text()
