"""When the command uses colour; a symbol always accompanies it."""

from __future__ import annotations

import io

import pytest

from watchdog_app.base.text.terminal import Style
from watchdog_app.cli.output import make_style
from watchdog_app.core.model.levels import Level


class Terminal(io.StringIO):
    """A fake terminal with a given encoding."""

    def __init__(self, encoding: str = "utf-8", tty: bool = True) -> None:
        super().__init__()
        self._encoding = encoding
        self._tty = tty

    @property
    def encoding(self) -> str:
        return self._encoding

    def isatty(self) -> bool:
        return self._tty


@pytest.mark.parametrize(
    ("wanted", "when", "tty", "env"),
    [
        (True, "auto", True, {"TERM": "xterm"}),
        (False, "auto", False, {"TERM": "xterm"}),
        (False, "auto", True, {"TERM": "dumb"}),
        (False, "auto", True, {}),
        (False, "auto", True, {"TERM": "xterm", "NO_COLOR": "1"}),
        (True, "auto", True, {"TERM": "xterm", "NO_COLOR": ""}),
        (True, "auto", False, {"FORCE_COLOR": "1"}),
        (False, "auto", False, {"FORCE_COLOR": "0"}),
        (False, "auto", False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}),
        (True, "always", False, {"NO_COLOR": "1"}),
        (False, "never", True, {"TERM": "xterm", "FORCE_COLOR": "1"}),
    ],
)
def test_who_decides_about_colour(wanted, when, tty, env):
    """
    The option decides first, then NO_COLOR, then FORCE_COLOR, then whether stdout is a terminal.
    """
    assert wanted == make_style(when, Terminal(tty=tty), env).color


@pytest.mark.parametrize("level", list(Level)[1:])
def test_every_coloured_level_has_a_symbol(level):
    """A user without colour sees the symbol."""
    assert Style(color=True).paint("x", level.color) != "x"
    assert level.mark


def test_a_terminal_without_unicode_gets_ascii():
    """Bars and dots use only characters that the terminal has."""
    plain = make_style("never", Terminal("iso-8859-1"), {})

    assert "##..~ | " == plain.bar(0.5, 4) + plain.ellipsis + plain.dot


@pytest.mark.parametrize(
    ("bar", "ratio"),
    [("░░░░", 0.0), ("█░░░", 0.001), ("███░", 0.999), ("████", 1.0), ("████", 1.7), ("?   ", None)],
)
def test_a_bar_is_full_only_when_nothing_is_left(bar, ratio):
    """A bar shows at least one partial cell for any use above zero."""
    assert bar == Style().bar(ratio, 4)


def test_no_escape_leaves_without_colour():
    """The text is the same with and without colour."""
    assert "text" == Style(color=False).paint("text", "red")
    assert "\x1b[31mtext\x1b[0m" == Style(color=True).paint("text", "red")
