"""
Write again what is made from commands, settings and records: run after changing one.

    .venv/bin/python packaging/refresh.py

The tables of docs/configuration.md, docs/status-json.md and docs/protocol.md, the completion
scripts, and the man page. The tests fail while any of them is behind.
"""

from __future__ import annotations

import argparse
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import protocol_tables
import schema_tables

from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.text.quantities import exact_duration, format_bytes
from watchdog_app.cli.completion import script
from watchdog_app.cli.dispatch import COMMANDS, GROUPS, load_command
from watchdog_app.core.model.settings import RULE_SETTINGS, SETTINGS, Setting

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHARE = "packaging/linux/share"

_TABLE_ROW = re.compile(r"^\| `(\w+)` \|.*\| ([^|]+) \|$")


def man_page() -> str:
    """watchdog.1, from the same parsers."""
    lines = [
        '.TH WATCHDOG 1 "" "watchdog" "User Commands"',
        ".SH NAME",
        "watchdog \\- see memory run out, and save the work before",
        ".SH SYNOPSIS",
        ".B watchdog",
        ".I COMMAND",
        "[\\fIOPTION\\fR ...]",
        ".SH DESCRIPTION",
        "Watches the memory of every Python and Jupyter process, sees exhaustion coming, warns,",
        "asks the training to save a rescue, and as the last resort pauses it.",
    ]
    for title, commands in GROUPS:
        lines.append(f".SH COMMANDS: {title.upper()}")
        for command, help_ in commands:
            lines += _man_command(command, help_)
    lines += [
        ".SH EXIT STATUS",
        "0 done, 1 failure, 2 usage, 3 daemon not running, 130 interrupted.",
        ".B watchdog status --check",
        "ends with 0 ok, 1 warning, 2 critical, 3 unknown.",
        ".SH ENVIRONMENT",
    ]
    for name, text in (
        ("WATCHDOG_CONFIG", "the configuration file"),
        ("WATCHDOG_RUNTIME_DIR", "folder of the socket"),
        ("WATCHDOG_STATE_DIR", "folder of the journal"),
        ("NO_COLOR, FORCE_COLOR", "no colours, or colours into pipes as well"),
        ("COLUMNS", "width to write in"),
    ):
        lines += [".TP", f".B {name}", text]
    lines += [
        ".SH FILES",
        ".TP",
        ".I ~/.config/watchdog/config.toml",
        "the configuration",
        ".TP",
        ".I ~/.local/state/watchdog/",
        "the journal and the messages of the daemon",
    ]
    return "\n".join(lines) + "\n"


def _man_command(command: str, help_: str) -> list[str]:
    try:
        _, parser = load_command(command)
    except WatchdogError:
        return []
    actions = [one for one in parser._actions if one.help != argparse.SUPPRESS]
    positional = [one for one in actions if not one.option_strings]
    options = [one for one in actions if one.option_strings]
    usage = " ".join(f"\\fI{_roff(_value(one))}\\fR" for one in positional)
    lines = [f".SS {command} {usage}".rstrip()]
    lines.append(_roff(parser.description or help_))
    for one in (*positional, *options):
        head = ", ".join(f"\\fB{_roff(name)}\\fR" for name in one.option_strings)
        value = f"\\fI{_roff(_value(one))}\\fR" if one.nargs != 0 else ""
        text = (one.help or "").replace("%(default)s", str(one.default))
        lines += [".TP", f"{head} {value}".strip(), _roff(text)]
    return lines


def _value(action: argparse.Action) -> str:
    return action.metavar if isinstance(action.metavar, str) else action.dest.upper()


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in ".'" else line for line in escaped.split("\n"))


def _row(name: str, spec: Setting, why: str) -> str:
    """One row: key, default, accepted, what it does, why that is the default."""
    brief = re.sub(r"^an? \w+ from |[:;] .*$", "", spec.values.accepted)
    accepted = re.sub(r'(\[?"[^]]*"\]|"[^"]*")', r"`\1`", brief)
    return f"| `{name}` | {_default(name, spec)} | {accepted} | {spec.help} | {why} |"


def _default(name: str, spec: Setting) -> str:
    value = spec.default
    if value is None:
        return "as in `[actions]`" if name != "priority" else '`"normal"`'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "`[]`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if name.endswith("_bytes"):
        return format_bytes(value).replace(".0 ", " ")
    return exact_duration(value) if name.endswith("_s") else f"{value:g}"


def settings_page(text: str) -> str:
    """docs/configuration.md with a row for each setting as it is now; the reasons stay."""
    lines, section = [], ""
    reasons: dict[str, str] = {}
    for line in text.splitlines():
        section = line[3:].strip("[]") if line.startswith("## ") else section
        if found := _TABLE_ROW.match(line):
            reasons[f"{section}.{found[1]}"] = found[2]
    for line in text.splitlines():
        section = line[3:].strip("[]") if line.startswith("## ") else section
        known = RULE_SETTINGS if section == "rule" else _of_section(section)
        found = _TABLE_ROW.match(line)
        if found is None or found[1] not in known:
            lines.append(line)
        if line.startswith("|--"):  # the head of the table ends
            lines += [
                _row(name, spec, reasons.get(f"{section}.{name}", "(say why)"))
                for name, spec in known.items()
            ]
    return "\n".join([*lines, ""])


def _of_section(section: str) -> dict[str, Setting]:
    return {
        key.partition(".")[2]: spec
        for key, spec in SETTINGS.items()
        if key.partition(".")[0] == section
    }


def _read(path: str) -> str:
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def everything() -> dict[str, str]:
    """Path below the repository: what belongs there."""
    return {
        "docs/configuration.md": settings_page(_read("docs/configuration.md")),
        "docs/status-json.md": schema_tables.page(_read("docs/status-json.md")),
        "docs/status.schema.json": schema_tables.schema(),
        "docs/protocol.md": protocol_tables.page(_read("docs/protocol.md")),
        f"{SHARE}/bash-completion/completions/watchdog": script("bash"),
        f"{SHARE}/zsh/site-functions/_watchdog": script("zsh"),
        f"{SHARE}/fish/vendor_completions.d/watchdog.fish": script("fish"),
        f"{SHARE}/man/man1/watchdog.1": man_page(),
    }


if __name__ == "__main__":
    for path, text in everything().items():
        where = os.path.join(ROOT, path)
        os.makedirs(os.path.dirname(where), exist_ok=True)
        with open(where, "w", encoding="utf-8") as file:
            file.write(text)
    print(f"{len(COMMANDS)} commands, {len(everything())} files")
