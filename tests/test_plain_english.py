"""Docstrings, comments and messages: short sentences, the field's words."""

from __future__ import annotations

import ast
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "watchdog_app"
FOLDERS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
MOST_WORDS = 25
# Former words of this project, and phrases that hide the subject.
BANNED = re.compile(
    r"\b(whoever|whom|(?<!\")nobody|anew|beside|by itself|foretell\w*|foretold|is told|are told|"
    r"told of|goes on|go on|lets? go|stands? still|guilty|cure|heed|scene|glance|ceilings?|"
    r"lethal|casebook|ledger)\b",
    re.IGNORECASE,
)
SENTENCE_END = re.compile(r"(?<=[.:;?!])\s+|\n\n|\n *- |\n {4}")  # or a row of a table
NO_PROSE = (
    "usage:",
    "function ",
    "\n<",
    "\nCREATE",
    "INSERT",
    "could not load dynamic",
)


@cache
def docstrings() -> dict[str, str]:
    """Every docstring, by place."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(
                    node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
                ):
                    continue
                text = ast.get_docstring(node)
                if text:
                    place = path.relative_to(PACKAGE.parent).as_posix()
                    found[f"{place}:{getattr(node, 'lineno', 1)}"] = text
    return found


def comments() -> dict[str, str]:
    """Every comment, by place."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type == tokenize.COMMENT:
                    place = path.relative_to(PACKAGE.parent).as_posix()
                    found[f"{place}:{token.start[0]}"] = token.string
    return found


def test_sentences_are_short():
    long_ones = [
        f"{place}: {sentence}"
        for place, text in docstrings().items()
        for sentence in SENTENCE_END.split(text.partition("\n\nexamples:")[0])
        if len(sentence.split()) > MOST_WORDS
    ]

    assert [] == long_ones


def test_docstrings_and_comments_have_no_banned_words():
    """They use the terms of the field."""
    banned = [
        f"{place}: {match[0]}"
        for place, text in (docstrings() | comments()).items()
        if (match := BANNED.search(text))
    ]

    assert [] == banned


@cache
def shown_texts() -> dict[str, str]:
    """Every string of several words that is not a docstring, by place."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            statements = {
                id(node.value)
                for node in ast.walk(tree)
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            }
            for node in ast.walk(tree):
                if not isinstance(node, ast.Constant) or id(node) in statements:
                    continue
                if isinstance(node.value, str) and len(node.value.split()) >= 2:
                    place = path.relative_to(PACKAGE.parent).as_posix()
                    found[f"{place}:{node.lineno}:{node.col_offset}"] = node.value
    return found


def test_texts_for_people_have_no_banned_words():
    """This covers help, messages and labels."""
    banned = [
        f"{place}: {match[0]}"
        for place, text in shown_texts().items()
        if (match := BANNED.search(text))
    ]

    assert [] == banned


def test_texts_for_people_name_no_page_that_an_installation_lacks():
    """The wheel has no docs/: a text names a command instead."""
    helps = {place: text for place, text in docstrings().items() if "\n\nexamples:" in text}

    assert len(helps) > 30
    assert [] == [place for place, text in (shown_texts() | helps).items() if "docs/" in text]


def test_descriptions_of_commands_have_short_sentences():
    long_ones = [
        f"{place}: {sentence}"
        for place, text in shown_texts().items()
        if not text.startswith(NO_PROSE)
        for sentence in SENTENCE_END.split(text)
        if len(sentence.split()) > MOST_WORDS
    ]

    assert [] == long_ones


@pytest.mark.parametrize(
    ("text", "fits"),
    [("Return the live processes.", True), ("Whoever is told of it.", False)],
)
def test_the_list_finds_what_it_names(text: str, fits: bool):
    """Other texts pass."""
    assert fits is (BANNED.search(text) is None)


def test_documented_arguments_exist():
    """A renamed argument must be renamed in its docstring too, in every package."""
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            section = re.search(
                r"Args:\n((?:    .*\n?|\n)+)", ast.get_docstring(node) or "", re.MULTILINE
            )
            if section is None:
                continue
            documented = set(re.findall(r"^    (\w+):", section[1], re.MULTILINE))
            every = ast.walk(node.args)
            existing = {each.arg for each in every if isinstance(each, ast.arg)}
            if not documented <= existing:
                wrong.append(f"{path.name}:{node.lineno} {documented - existing}")

    assert [] == wrong
