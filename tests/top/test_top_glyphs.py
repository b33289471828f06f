"""The live view in terminals that cannot show Unicode."""

from __future__ import annotations

import io

import pytest

from watchdog_app.base.text.terminal import width
from watchdog_app.top.glyphs import ascii_glyph, replace_missing_glyphs


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
