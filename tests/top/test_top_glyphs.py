"""The live view in terminals that cannot show Unicode."""

from __future__ import annotations

import io

import pytest

from watchdog_app.base.text.terminal import width
from watchdog_app.top.glyphs import Canvas, ascii_glyph, replace_missing_glyphs


@pytest.mark.parametrize("char", "█▒░▁▂▃▄▅▆▇─│┤╭·…⣿⠁分ーé°中\u0301\u202e\U0001f600")
def test_each_character_has_a_plain_one_of_its_width(char):
    """
    The ASCII form has the same width, so columns stay aligned, and holds only characters that the
    terminal has.
    """
    plain = ascii_glyph(char)

    assert plain.isascii()
    assert width(char) == len(plain)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "iso8859-15"])
def test_a_terminal_without_unicode_gets_bars_and_no_escapes(encoding):
    """A bar of `\\u2588` escapes would be as unreadable as one of question marks."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")

    replace_missing_glyphs(stream, {})
    stream.write("█▒░ ▁▄█ ⣿ …")
    stream.flush()

    assert b"#+. _=# * ~" == stream.buffer.getvalue()


@pytest.mark.parametrize("env", [{"TERM": "linux"}, {"TERM": "vt100"}, {"LC_ALL": "C"}])
def test_a_console_with_few_glyphs_is_plain_too(env):
    """The Linux console has a font of 256 characters; Python writes UTF-8 in the C locale too."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")

    replace_missing_glyphs(stream, env)
    stream.write("█▁")
    stream.flush()

    assert b"#_" == stream.buffer.getvalue()


def test_any_other_terminal_is_left_as_it_is():
    """UTF-8 terminals over ssh or in tmux show every character, so the view changes nothing."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")

    replace_missing_glyphs(stream, {"TERM": "screen"})

    assert ("utf-8", "strict") == (stream.encoding, stream.errors)


def test_a_line_to_a_point_years_ahead_ends_at_the_edge(monkeypatch):
    """Else the view would compute dots outside of the plot for minutes."""
    canvas, dots = Canvas(10, 4), []
    monkeypatch.setattr(canvas, "dot", lambda *dot: dots.append(dot) or _at_most(dots, 1000))

    canvas.line((0, 0), (10**9, 15))

    assert [(x, 0, 1) for x in range(20)] == dots


def _at_most(found, number):
    assert len(found) < number
