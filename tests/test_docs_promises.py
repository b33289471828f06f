"""Every test that the documents name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NAMED = re.compile(r"`(test_\w+)`")
PLACES = re.compile(r"`((?:tests|bench|packaging)/[\w./-]+\.py)`")


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Names of all test functions and test files."""
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found.add(path.stem)
        found.update(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
    return found


@pytest.mark.parametrize("document", sorted((ROOT / "docs").glob("*.md")), ids=lambda one: one.name)
def test_each_test_that_a_document_names_is_there(document: Path, known: set[str]):
    """A promise whose test was renamed or removed has no proof."""
    text = document.read_text()

    assert [] == sorted(set(NAMED.findall(text)) - known)
    assert [] == sorted(each for each in set(PLACES.findall(text)) if not (ROOT / each).exists())


def test_each_page_that_the_program_names_is_there():
    """Help texts, messages and docstrings name pages of the documentation."""
    named = {
        page
        for path in (ROOT / "watchdog_app").rglob("*.py")
        for page in re.findall(r"docs/[\w.-]+\.(?:md|json)", path.read_text())
    }

    assert len(named) > 5
    assert [] == sorted(page for page in named if not (ROOT / page).exists())


def is_there(name: str) -> bool:
    """Whether `package.module` exists, or `package.module.word` with that word in it."""
    place = ROOT / "watchdog_app" / Path(*name.split("."))
    if place.is_dir() or place.with_suffix(".py").exists():
        return True
    holders = (place.parent.with_suffix(".py"), place.parent / "__init__.py")
    return any(each.exists() and place.name in each.read_text() for each in holders)


def test_each_module_that_the_architecture_names_is_there():
    """The description must not keep a module that was renamed or removed."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = [path.name for path in (ROOT / "watchdog_app").iterdir() if path.is_dir()]

    named = set(re.findall(rf"`((?:{'|'.join(packages)})(?:\.[a-z_]+)+)", text))
    named.discard("rescue.json")  # a file, not a package

    assert len(named) > 50
    assert [] == sorted(name for name in named if not is_there(name))


def test_each_promise_names_what_shows_it():
    """A promise needs a test, a measurement or another way to see it."""
    rows, promises = [], False
    for line in (ROOT / "docs" / "promises.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == "promise":
            promises = True
        elif not line.startswith("|"):
            promises = False
        elif promises and not cells[0].startswith("---"):
            rows.append(cells)

    assert len(rows) > 90
    assert [] == [cells[0] for cells in rows if len(cells) != 2 or not cells[1]]


def test_lines_of_the_changelog_fit_a_terminal():
    """Tables of the docs may be wider; the changelog has none."""
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()

    assert [] == [line for line in lines if len(line) > 120]
