"""The table of texts: the code uses every entry, every use has an entry, every value has a name."""

from __future__ import annotations

import ast
import re
import string
from pathlib import Path

import pytest

from watchdog_app.doctor import finding, run
from watchdog_app.doctor.finding import Severity

SOURCES = [ast.parse(path.read_text()) for path in Path(finding.__file__).parent.glob("*.py")]
NODES = [node for source in SOURCES for node in ast.walk(source)]
TABLE = {name: entry for name, entry in finding.table().items() if name != "shared"}
TEXTS = {
    "severity",
    "what",
    "subject",
    "reason",
    "why",
    "do",
    "commands",
    "fine",
    "like",
    "checked",
}
PLACES = {"debian", "ubuntu", "fedora", "arch", "suse", "wsl", "container"}
IN_GROUP = re.compile(rf"({'|'.join(run.GROUPS)}|run)\.[a-z-]+(\.[a-z-]+)?")


def used():
    """Return the names in the code, with f-strings as patterns."""
    for node in NODES:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if IN_GROUP.fullmatch(node.value):
                yield re.escape(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [
                re.escape(one.value) if isinstance(one, ast.Constant) else "[a-z.-]*"
                for one in node.values
            ]
            if IN_GROUP.match("".join(parts).replace("\\", "")):
                yield "".join(parts)


def texts(entry):
    for value in entry.values():
        if isinstance(value, dict):
            yield from texts(value)
        elif isinstance(value, list):
            yield from value
        elif isinstance(value, str):
            yield value


def test_every_use_has_an_entry():
    """A missing name would fail in front of the user."""
    assert [] == [name for name in used() if not any(re.fullmatch(name, one) for one in TABLE)]


@pytest.mark.parametrize("name", TABLE)
def test_every_entry_is_used_and_whole(name):
    """Each entry has known keys, a valid severity and only values that a check provides."""
    entry = TABLE[name]
    base = TABLE.get(name.rpartition(".")[0], {})
    has_variants = any(one.startswith(f"{name}.") for one in TABLE)
    likes = [one.get("like") for one in TABLE.values()]
    given = {one.arg for one in NODES if isinstance(one, ast.keyword)} | {
        key.value
        for one in NODES
        if isinstance(one, ast.Dict)
        for key in one.keys
        if isinstance(key, ast.Constant)
    }
    figures = {
        re.split(r"[.!\[]", figure)[0]
        for text in texts(entry)
        for _, figure, _, _ in string.Formatter().parse(text)
        if figure is not None
    }

    assert any(re.fullmatch(pattern, name) for pattern in used()) or has_variants or name in likes
    assert set(entry) <= TEXTS | PLACES
    assert entry.get("like", name) in TABLE
    assert {entry.get("severity", "info"), base.get("severity", "info")} <= set(Severity)
    assert figures <= given | set(finding.table()["shared"])


def test_words_that_entries_share_are_one_line():
    """Other texts embed them in the middle of a sentence."""
    assert not any("\n" in text for text in texts(finding.table()["shared"]))


def test_what_a_place_says_goes_before_what_all_do():
    """A container's text also precedes the text of its distribution."""
    (general, fedora, container) = (
        finding.finding("memory.swap.none", places=places)
        for places in ((), ("fedora",), ("fedora", "container"))
    )

    assert general == fedora
    assert 3 == len(general.commands)
    assert ("Ask whoever runs the host for swap.", ()) == (container.remedy, container.commands)


def test_a_figure_is_shown_as_the_table_wants_it():
    """The table defines units, quotes paths and shows N/A for unknown values."""
    told = finding.finding(
        "storage.disk.full", "a", title="X", path="/a b", free=3 * 1024**2, total=None
    )

    assert "X (/a b): only 3.00 MiB of N/A free." == told.what
    assert "df -h '/a b'" == told.commands[0]
    assert ("storage.disk", Severity.ERROR, ("a",)) == (told.id, told.severity, told.details)


def test_a_question_without_an_answer_says_why():
    """The text also says what would make an answer possible."""
    told = finding.finding("driver.answer.asleep")

    assert not told.checked
    assert "The state of the GPU could not be checked: it is asleep" in told.what
    assert told.remedy
