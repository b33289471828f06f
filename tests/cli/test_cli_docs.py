"""The documentation of the commands matches their behaviour."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from support import schemas
from support.statuses import NOW_UNIX_S, leaking, process, status

from watchdog_app.cli.dispatch import COMMANDS, load_command, overview
from watchdog_app.cli.output import dumps, with_timestamp
from watchdog_app.cli.status import status_without_daemon
from watchdog_app.cli.status_text import HEADS, render
from watchdog_app.core.model.status import Status

ROOT = Path(__file__).parents[2]
SHARE = ROOT / "packaging/linux/share"


def refresh():
    spec = importlib.util.spec_from_file_location("refresh", ROOT / "packaging/refresh.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def validator():
    return schemas.validator("status")


@pytest.mark.parametrize(
    "path",
    [
        "docs/configuration.md",
        "docs/status-json.md",
        "docs/status.schema.json",
        "docs/protocol.md",
        "packaging/linux/share/bash-completion/completions/watchdog",
        "packaging/linux/share/zsh/site-functions/_watchdog",
        "packaging/linux/share/fish/vendor_completions.d/watchdog.fish",
        "packaging/linux/share/man/man1/watchdog.1",
    ],
)
def test_what_is_made_from_the_commands_is_current(path):
    """If this fails, run: .venv/bin/python packaging/refresh.py"""
    assert refresh().everything()[path] == (ROOT / path).read_text()


def test_a_new_setting_comes_into_the_documentation_by_itself():
    """A developer writes it only in the settings; a test requires the reason for its default."""
    text = (ROOT / "docs/configuration.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| `busy_s`"))

    made = refresh().settings_page(text.replace(f"{row}\n", ""))

    assert text == made.replace("(say why)", row.split(" | ")[-1].removesuffix(" |"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_examples_and_exit_codes(name):
    """A user needs both in an emergency."""
    _, parser = load_command(name)

    text = parser.format_help()
    assert "examples:" in text
    assert "exit codes:" in text
    assert f"watchdog {name}" in text.partition("examples:")[2]


@pytest.mark.parametrize("words", ["config set", "config rule add", "desktop install"])
def test_the_help_of_a_verb_names_the_help_with_examples(words, capsys):
    """The examples and the exit codes of all verbs stand together, in the help of the command."""
    name, *verbs = words.split()
    _, parser = load_command(name)

    with pytest.raises(SystemExit):
        parser.parse_args([*verbs, "--help"])

    assert f"examples and exit codes: watchdog {name} --help" in capsys.readouterr().out


def test_no_line_of_the_overview_is_too_long():
    """Users read it on terminals of 80 columns."""
    assert [] == [line for line in overview().splitlines() if len(line) > 80]


@pytest.mark.parametrize("make", [status, leaking], ids=["calm", "leaking"])
def test_the_schema_fits_the_objects_of_these_tests(validator, make):
    """The schema describes the objects that these tests render."""
    assert [] == list(validator.iter_errors(json.loads(dumps(with_timestamp(make(), NOW_UNIX_S)))))


def test_the_schema_fits_the_object_without_a_daemon(validator):
    """Both objects have the same shape."""
    found = json.loads(dumps(status_without_daemon("It is gone. Start it.", NOW_UNIX_S)))

    assert [] == list(validator.iter_errors(found))


@pytest.mark.parametrize(
    "broken",
    [
        {"schema_version": 1},
        {"tasks": [process(1, "a", -1)]},
        {"tasks": [{**process(1, "a", 1), "ram_bytes": "1"}]},
        {"problems": ["text"]},
        {"time_unix_s": None},
    ],
)
def test_the_schema_refuses_what_is_wrong(validator, broken):
    """A schema that accepts everything would prove nothing."""
    assert not validator.is_valid(with_timestamp(status(**broken), NOW_UNIX_S))


def test_the_page_shows_what_is_really_printed():
    """The example at the top of the page equals the renderer's output."""
    picture = "\n".join(
        f"    {line}".rstrip() for line in render(Status.read(leaking()), NOW_UNIX_S, 80)
    )

    shown = picture.split("\n    ! Memory pressure")[0].rstrip()
    assert shown in (ROOT / "docs/status.md").read_text()


@pytest.mark.parametrize("head", HEADS)
def test_every_column_is_explained(head):
    """The page on the status explains it."""
    assert f"`{head}`" in (ROOT / "docs/status.md").read_text()


@pytest.mark.parametrize(
    "word",
    [
        *("ok", "watch", "warn", "save", "pause"),
        *("Task", "Resource", "Guard", "Incident", "Contributor", "Rescue", "Agent", "Stale"),
    ],
)
def test_the_words_that_are_shown_are_defined(word):
    """The table of words on the page on the status defines them."""
    words = (ROOT / "docs/status.md").read_text().partition("## Words")[2]

    assert f"**{word}**" in words or f"`{word}`" in words


@pytest.mark.parametrize(
    "page", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"], ids=lambda one: one.name
)
def test_links_of_the_pages_lead_somewhere(page):
    """The test checks relative links and their anchors."""
    for target, _, anchor in re.findall(r"\]\(([^)#:\s]*)(#([^)\s]+))?\)", page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name}: {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
