"""Docstrings, comments and messages: short sentences, the field's words."""

from __future__ import annotations

import ast
import re
import tokenize
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "watchdog_app"
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
MOST_WORDS = 25
# Former words of this project, and phrases that hide the subject.
BANNED = re.compile(
    r"\b(whoever|whom|(?<!\")nobody|anew|beside|by itself|foretell\w*|foretold|is told|are told|"
    r"told of|goes on|go on|lets? go|stands? still|guilty|cure|heed|scene|glance|ceilings?|"
    r"lethal|casebook|ledger)\b",
    re.IGNORECASE,
)
SENTENCE_END = re.compile(r"(?<=[.:;?!])\s+|\n\n|\n *- |\n {4}")  # or a row of a table
NO_PROSE = ("usage:", "function ", "\n<", "\nCREATE", "INSERT", "could not load dynamic")


@dataclass
class Found:
    """What the files of the package say, by place; each file is parsed once."""

    docstrings: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # of several words, and no docstrings
    wrong_arguments: list[str] = field(default_factory=list)


@cache
def found() -> Found:
    known = Found()
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE.parent).as_posix()
        statements = set()  # ids of their strings; an outer node comes before what it contains
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Expr):
                statements.add(id(node.value))
            elif isinstance(node, ast.Constant):
                several = isinstance(node.value, str) and len(node.value.split()) >= 2
                if several and id(node) not in statements:
                    # Before Python 3.12 all parts of an f-string have its place.
                    where = f"{place}:{node.lineno}:{node.col_offset}"
                    known.texts[f"{where}: {node.value[:20]!r}"] = node.value
            elif isinstance(node, ast.Module | ast.ClassDef | FUNCTIONS):
                text = ast.get_docstring(node)
                if text:
                    known.docstrings[f"{place}:{getattr(node, 'lineno', 1)}"] = text
                if text and isinstance(node, FUNCTIONS):
                    section = re.search(r"Args:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
                    listed = re.findall(r"^    (\w+):", section[1] if section else "", re.MULTILINE)
                    given = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
                    if not given.issuperset(listed):
                        known.wrong_arguments.append(f"{place}:{node.lineno} {listed}")
    return known


def comments() -> dict[str, str]:
    """Every comment, by place."""
    every = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type == tokenize.COMMENT:
                    place = path.relative_to(PACKAGE.parent).as_posix()
                    every[f"{place}:{token.start[0]}"] = token.string
    return every


def test_sentences_are_short():
    long_ones = [
        f"{place}: {sentence}"
        for place, text in found().docstrings.items()
        for sentence in SENTENCE_END.split(text.partition("\n\nexamples:")[0])
        if len(sentence.split()) > MOST_WORDS
    ]

    assert [] == long_ones


def test_docstrings_and_comments_have_no_banned_words():
    """They use the terms of the field."""
    banned = [
        f"{place}: {match[0]}"
        for place, text in (found().docstrings | comments()).items()
        if (match := BANNED.search(text))
    ]

    assert [] == banned


def test_texts_for_people_have_no_banned_words():
    """This covers help, messages and labels."""
    banned = [
        f"{place}: {match[0]}"
        for place, text in found().texts.items()
        if (match := BANNED.search(text))
    ]

    assert [] == banned


def test_texts_for_people_name_no_page_that_an_installation_lacks():
    """The wheel has no docs/: a text names a command instead."""
    helps = {place: text for place, text in found().docstrings.items() if "\n\nexamples:" in text}

    assert len(helps) > 30
    assert [] == [place for place, text in (found().texts | helps).items() if "docs/" in text]


def test_descriptions_of_commands_have_short_sentences():
    long_ones = [
        f"{place}: {sentence}"
        for place, text in found().texts.items()
        if not text.startswith(NO_PROSE)
        for sentence in SENTENCE_END.split(text)
        if len(sentence.split()) > MOST_WORDS
    ]

    assert [] == long_ones


@pytest.mark.parametrize(
    ("text", "fits"), [("Return the live processes.", True), ("Whoever is told of it.", False)]
)
def test_the_list_finds_what_it_names(text: str, fits: bool):
    """Other texts pass."""
    assert fits is (BANNED.search(text) is None)


def test_documented_arguments_exist():
    """A renamed argument must be renamed in its docstring too, in every package."""
    assert [] == found().wrong_arguments
