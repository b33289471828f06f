"""
Reads config.toml into settings and says where each value comes from.

Every setting has a default. An unknown key or an invalid value is an error that names file, key,
value and the accepted values. Ignoring a wrong setting silently could cost the user a training.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from watchdog_app.base import paths
from watchdog_app.base.errors import ConfigError
from watchdog_app.base.text.plain import HIDDEN
from watchdog_app.base.text.quantities import MIB, format_bytes
from watchdog_app.core.model.settings import (
    CHANNELS,
    RENAMED,
    RENAMED_VALUES,
    RULE_SETTINGS,
    SETTINGS,
    SHOWN_KEYS,
    RuleSettings,
    Setting,
    Settings,
)

DEFAULT = "default"
ENVIRONMENT = "environment"

MOST_FILE_BYTES = MIB
# Variables that the agent reads in a training; they are no settings.
_OF_AGENT = frozenset(f"WATCHDOG_AGENT_{each}" for each in ("RESUME", "SAVE_ON", "STRICT"))
# exceptions that reading a value may raise
UNREADABLE = (ValueError, OverflowError, RecursionError)

Sources = Mapping[str, str]
Warn = Callable[[str], object] | None
Place = tuple[str | int, ...]  # ("stages", "warn_s") or ("rule", number from 1, "task")
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[^=\s]+)?)\s*=""")


def load(
    path: str | None = None,
    env: Mapping[str, str] = os.environ,
    required: bool = False,
    warn: Warn = None,
) -> tuple[Settings, Sources]:
    """
    The settings in force and, for each key, its file, "environment" or "default".

    Args:
        path: the file; None: the default path of this user.
        env: `WATCHDOG_STAGES_WARN_S=60` overrides `warn_s` of `[stages]` in the file.
        required: a missing file is an error instead of a reason to use the defaults.
        warn: called with a sentence for each key of an earlier version; the value then applies to
            the renamed key. None: such a key is an error.

    Raises:
        ConfigError: names file, key, value and the accepted values.
    """
    where = path or paths.config_file(env)
    text = read_file(where)
    if text is None and required:
        raise ConfigError(f"{where} does not exist.")
    return loads(text or "", where, env, warn)


def loads(
    text: str, where: str, env: Mapping[str, str], warn: Warn = None
) -> tuple[Settings, Sources]:
    """
    Like `load`, from the text of a file.

    Args:
        text: the content of the file.
        where: its path, for messages and sources.
        env: see `load`.
        warn: see `load`.

    Raises:
        ConfigError: names every mistake, one a line, with file, line, key and accepted values.
    """
    problems: list[_Problem] = []
    document = _parse_toml(text, where)
    sources = dict.fromkeys(SETTINGS, DEFAULT) | dict.fromkeys(document.keys() & {"rule"}, where)
    rules = _read_rules(document.pop("rule", []), problems)
    values = {name: _read_section(name, content, problems) for name, content in document.items()}
    _report(problems, text, where, warn)
    sources |= {f"{section}.{name}": where for section, given in values.items() for name in given}
    for key, value in _read_environment(env).items():
        section, _, name = key.partition(".")
        values.setdefault(section, {})[name] = value
        sources[key] = ENVIRONMENT
    settings = replace(Settings(), rules=rules)
    for section, given in values.items():
        part = replace(getattr(settings, section), **given)
        settings = replace(settings, **{section: part})
    _check_together(settings, sources)
    return settings, sources


class _Problem(NamedTuple):
    """A mistake in a file, or a key of an earlier version."""

    place: Place
    message: str
    renamed: bool = False


def _report(problems: list[_Problem], text: str, where: str, warn: Warn) -> None:
    """
    Raise all mistakes as one ConfigError, so that the user can correct them at once.

    Args:
        problems: found in the file.
        text: the content of the file.
        where: its path.
        warn: see `load`.
    """
    if not problems:
        return

    mistakes: list[str] = []
    located = [(line_of(text, problem.place) or 0, problem) for problem in problems]
    for line, problem in sorted(located, key=lambda each: each[0]):
        at = f"{where}:{line}" if line else where
        if problem.renamed and warn is not None:
            warn(f"{problem.message} ({at})")
        else:
            mistakes.append(f"{at}: {problem.message}")
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def env_name(key: str) -> str:
    """The environment variable of a setting, such as WATCHDOG_STAGES_WARN_S."""
    return f"WATCHDOG_{key.replace('.', '_').upper()}"


def _read_environment(env: Mapping[str, str]) -> dict[str, Any]:
    """The settings in environment variables. A misspelled name is an error."""
    known = {env_name(key): key for key in SETTINGS}
    sections = tuple({env_name(key.partition(".")[0]) + "_" for key in SETTINGS})
    values: dict[str, Any] = {}
    for name, text in env.items():
        key = known.get(name)
        if key is not None:
            try:
                values[key] = SETTINGS[key].values.read(text)
            except UNREADABLE as error:
                refused = rejection(key, text, SETTINGS[key])
                raise ConfigError(f"environment variable {name}: {refused}") from error
        elif name.startswith(sections) and name not in _OF_AGENT:
            raise ConfigError(
                f"The environment variable {name} names no setting."
                f"{suggestion(name, [*known])} All settings: watchdog config"
            )
    return values


def describe(settings: Settings, sources: Sources) -> list[dict[str, Any]]:
    """
    One entry per setting: key, value, source, help, accepted; in the order of the documentation.

    Args:
        settings: from `load`.
        sources: from the same call.
    """
    found: list[dict[str, Any]] = []

    def add(key: str, value: Any, source: str, explained: str, accepted: str) -> None:
        found.append(
            {
                "key": key,
                "value": list(value) if isinstance(value, tuple) else value,
                "source": sources.get(source, DEFAULT),
                "help": explained,
                "accepted": accepted,
            }
        )

    for key, spec in SETTINGS.items():
        section, _, name = key.partition(".")
        value = getattr(getattr(settings, section), name)
        add(key, value, key, spec.help, spec.values.accepted)
    for name, table in settings.notify.tables.items():
        explained = f"the settings of the channel {name}"
        shown = {key: each if key in SHOWN_KEYS else HIDDEN for key, each in table.items()}
        add(f"notify.{name}", shown, "notify.tables", explained, f"a table [notify.{name}]")
    for number, rule in enumerate(settings.rules, 1):
        given = {name: getattr(rule, name) for name in RULE_SETTINGS}
        value = {name: value for name, value in given.items() if value is not None}
        explained = "other actions for the tasks and resources that match"
        add(f"rule {number}", value, "rule", explained,
            f"a table [[rule]] with {', '.join(RULE_SETTINGS)}")  # fmt: skip
    return found


def read_file(path: str) -> str | None:
    """
    The text of the file with its line endings unchanged; None: the file does not exist.

    Raises:
        ConfigError: the file cannot be read, or another user may have written it.
    """
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            _check_trust(path, file.fileno())
            data = file.read(MOST_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > MOST_FILE_BYTES:
        raise ConfigError(f"{path} is larger than {format_bytes(MOST_FILE_BYTES)}.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}).") from error


def _open_nonblocking(path: str, flags: int) -> int:
    """Open without waiting for the writer of a pipe at this path."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_trust(path: str, handle: int) -> None:
    """
    Refuse a file that another user could write: its `notify.command` runs as this user.

    Raises:
        ConfigError: another user may have written the file.
    """
    import shlex

    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) and os.path.realpath(path) != os.devnull:
        raise ConfigError(f"{path} is no regular file.")
    shown = shlex.quote(path)
    if paths.is_foreign(found):
        why = f"belongs to user {found.st_uid}"
        remedy = f"If it is meant to be yours: sudo chown $(id -u) {shown}"
    elif stat.S_ISREG(found.st_mode) and paths.is_writable_by_others(found):
        why = f"may be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
        remedy = f"Run: chmod go-w {shown}"
    else:
        return
    raise ConfigError(
        f"{path} {why}, who could have commands run in your name (notify.command); it is not "
        f"read. {remedy}"
    )


def _parse_toml(text: str, path: str) -> dict[str, Any]:
    if not text:
        return {}
    import tomllib  # takes 1.5 MB of memory, which a machine without a file need not spend

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # includes tomllib.TOMLDecodeError
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def _read_section(section: str, content: Any, problems: list[_Problem]) -> dict[str, Any]:
    """The settings of one table; unknown keys become errors."""
    start = f"{section}."
    known = {
        key.removeprefix(start): spec for key, spec in SETTINGS.items() if key.startswith(start)
    }
    if not known:
        sections = sorted({key.partition(".")[0] for key in SETTINGS} | {"rule"})
        inside = [key.partition(".")[0] for key in SETTINGS if key.partition(".")[2] == section]
        hint = f" It belongs in [{inside[0]}]." if inside else suggestion(section, sections)
        message = f"{_format_value(section)} is no table of ours. There are {', '.join(sections)}."
        problems.append(_Problem((section,), f"{message}{hint}"))
        return {}
    if not isinstance(content, dict):
        message = f"{section} = {_format_value(content)} must be a table: [{section}]."
        problems.append(_Problem((section,), message))
        return {}
    tables = {}
    if section == "notify":  # of further channels, which check their tables themselves
        tables = {k: v for k, v in content.items() if isinstance(v, dict) and k not in known}
    for name in tables.keys() - CHANNELS.keys():
        message = f"[notify.{name}] names no channel. There are {', '.join(CHANNELS)}."
        hint = suggestion(name, [*CHANNELS])
        problems.append(_Problem((section, name), f"{message}{hint}"))
    own = {name: value for name, value in content.items() if name not in tables}
    values = _read_table(own, known, (section,), (f"[{section}]", start), problems)
    return {**values, "tables": tables} if tables else values


def _read_rules(content: Any, problems: list[_Problem]) -> tuple[RuleSettings, ...]:
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        message = "write [[rule]] with two brackets, once for each rule."
        problems.append(_Problem(("rule",), message))
        return ()
    rules: list[RuleSettings] = []
    for number, item in enumerate(content, 1):
        name, place = f"[[rule]] number {number}", ("rule", number)
        values = _read_table(item, RULE_SETTINGS, place, (name, f"{name}: "), problems)
        rules.append(RuleSettings(**values))
        if item.keys() <= {"task", "resource", "ceiling"}:
            message = f"{name} changes nothing. Give it notify, checkpoint, pause or priority."
            problems.append(_Problem(place, message))
    return tuple(rules)


def _read_table(
    content: dict[str, Any],
    known: Mapping[str, Setting],
    place: Place,
    names: tuple[str, str],
    problems: list[_Problem],
) -> dict[str, Any]:
    """
    The values of one table.

    Args:
        content: the table as parsed.
        known: the valid keys.
        place: the table's place in the file.
        names: the table's name and the prefix of its keys, for messages.
        problems: gets the mistakes and old keys.
    """
    values: dict[str, Any] = {}
    for written, given in content.items():
        name, value = written, given
        old = f"{place[0]}.{written}"
        if old in RENAMED:
            name = RENAMED[old].partition(".")[2]
            value = content.get(name, RENAMED_VALUES.get(old, {}).get(str(given), given))
            now = f"{name} = {_format_value(value)}"
            message = f"{names[0]} {written} = {_format_value(given)} is now {now}"
            problems.append(_Problem((*place, written), message, renamed=True))
        if name not in known:
            message = f"{_format_value(name)} is not known in {names[0]}."
            listed = f"There are {', '.join(known)}.{suggestion(name, [*known])}"
            problems.append(_Problem((*place, name), f"{message} {listed}"))
            continue
        try:
            values[name] = known[name].values.read(value)
        except UNREADABLE:
            message = rejection(f"{names[1]}{name}", value, known[name])
            problems.append(_Problem((*place, written), message))
    return values


def rejection(key: str, value: Any, spec: Setting) -> str:
    """The message that a setting does not accept a value."""
    return f"{key} = {_format_value(value)} is not accepted. It must be {spec.values.accepted}."


def _check_together(settings: Settings, sources: Sources) -> None:
    watch, stages = settings.watch, settings.stages
    for low_key, low, high_key, high in (
        ("watch.fast_interval_s", watch.fast_interval_s, "watch.interval_s", watch.interval_s),
        ("stages.pause_s", stages.pause_s, "stages.warn_s", stages.warn_s),
    ):
        if low > high:
            raise ConfigError(
                f"{low_key} = {low:g} ({sources[low_key]}) must not be above "
                f"{high_key} = {high:g} ({sources[high_key]})."
            )


def suggestion(name: str, known: list[str]) -> str:
    """The known name most similar to `name`, as a sentence; "" if none is similar."""
    from difflib import get_close_matches

    close = [key for key in known if key.rsplit("_", 1)[0] == name]  # the unit is missing
    close = close or get_close_matches(name, known, 1)
    return f" Did you mean {close[0]}?" if close else ""


def _format_value(value: Any) -> str:
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def line_of(text: str, place: Place) -> int | None:
    """
    The line number of a key, from 1; None if not found.

    Args:
        text: the content of a valid TOML file.
        place: a table, or a table and a key in it; for rules ("rule", number from 1, key).
    """
    found = dict(_key_lines(text))
    while place:
        if place in found:
            return found[place]
        place = place[:-1]  # a key in an inline table has the line of that table
    return None


def _key_lines(text: str) -> list[tuple[Place, int]]:
    """Every table and key with its line, in reverse order, so that the first one wins in a dict."""
    found: list[tuple[Place, int]] = []
    table: Place = ()
    rules = 0
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header is not None:
            name = _unquote(header[2])
            if header[1] == "[[" and name == "rule":
                rules += 1
                table = (name, rules)
            else:
                table = tuple(_unquote(part) for part in name.split("."))
            found.append((table, number))
            continue
        assigned = _ASSIGNMENT.match(line)
        if assigned is not None:
            keys = tuple(_unquote(part) for part in assigned[1].split("."))
            found.append(((*table, *keys), number))
            found += [((*table, *keys[:end]), number) for end in range(1, len(keys))]
    return found[::-1]


def _unquote(text: str) -> str:
    return text.strip().strip("\"'")
