"""Untrusted text: escaped, measured, cut and folded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.statuses import HOSTILE_NAMES

from watchdog_app.base.text.terminal import pad, plain, plain_block, shorten, width, wrap


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        ("train.ipynb", "train.ipynb"),
        ("\\x1b[31mred", "\x1b[31mred"),
        ("a\\nb\\tc\\r", "a\nb\tc\r"),
        ("\\x9b31m", "\x9b31m"),
        ("\\u202eevil", "\u202eevil"),
        ("caf\\udce9.py", "caf\udce9.py"),
        ("a b", "a\xa0b"),
        ("分析 🚀.ipynb", "分析 🚀.ipynb"),
        ("\\U000e0041", "\U000e0041"),
    ],
)
def test_a_name_is_shown_and_never_obeyed(shown, name):
    """Characters that a terminal would interpret become escapes; others stay."""
    assert shown == plain(name)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=())))
def test_no_text_leaves_anything_unprintable(text):
    """Any file name gives one printable line."""
    assert plain(text).isprintable()
    plain(text).encode("utf-8")


def test_line_ends_of_a_text_stay():
    """Text of several lines keeps its line ends; tabs become blanks."""
    assert "a\nb   c\\x07" == plain_block("a\nb\tc\x07")


@pytest.mark.parametrize(
    ("columns", "text"),
    [(0, ""), (3, "abc"), (4, "分析"), (1, "e\u0301"), (2, "🚀"), (1, "é"), (2, "\uff21")],
)
def test_width_counts_columns_not_characters(columns, text):
    """CJK and emoji take two columns, combining accents none."""
    assert columns == width(text)


@pytest.mark.parametrize(
    ("cut", "name", "columns"),
    [
        ("train.ipynb", "train.ipynb", 11),
        ("tr…n.ipynb", "train.ipynb", 10),
        ("train_resn…final.ipynb", "train_resnet_v2_really_final.ipynb", 22),
        ("分析….ipynb", "分析ノート.ipynb", 12),
        ("no_dot_…all", "no_dot_in_here_at_all", 11),
        ("t….py", "training.py", 5),
        ("t", "train.ipynb", 1),
        ("", "train.ipynb", 0),
        (".hidde…ig", ".hidden_config", 9),
    ],
)
def test_a_long_name_is_cut_in_the_middle(cut, name, columns):
    """The beginning and the extension distinguish files."""
    assert cut == shorten(name, columns)


@settings(deadline=None)
@given(st.text(max_size=60), st.integers(0, 40))
def test_a_cut_name_never_takes_more_than_its_columns(name, columns):
    """A long name must not break the table."""
    assert width(shorten(plain(name), columns)) <= columns


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_padding_makes_equal_columns(name):
    """Columns after a hostile name align with other rows."""
    assert width(pad(shorten(plain(name), 20), 20)) == 20


def test_a_figure_keeps_its_unit():
    """A line never breaks between a number and its unit."""
    lines = wrap("grows to 7.0 GiB or 95 % soon", 14)

    assert lines == ["grows to", "7.0 GiB or", "95 % soon"]


@pytest.mark.parametrize("gap", ["  ", "\n", " \t "])
def test_any_space_between_a_figure_and_its_unit_is_one_space(gap):
    """A line end there does not stay in a line."""
    assert ["7.0 GiB of", "95 % used"] == wrap(f"7.0{gap}GiB of 95{gap}% used", 11)


def test_a_word_longer_than_the_line_is_broken():
    """A path without blanks continues on the next line."""
    lines = wrap("/a/very/long/path/indeed", 10, first="> ")

    assert lines == ["> /a/very/", "  long/pat", "  h/indeed"]


@settings(deadline=None)
@given(st.text(max_size=200), st.integers(8, 60))
def test_folded_lines_hold_the_whole_text_within_the_width(text, columns):
    """Only blanks are lost, and no line exceeds the width."""
    clean = plain(text)

    lines = wrap(clean, columns, first="> ")

    assert all(width(line) <= columns for line in lines)
    assert "".join(clean.split()) == "".join("".join(lines)[2:].split())
