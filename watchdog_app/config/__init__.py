"""
Reads config.toml into settings and says where each value comes from.

Every setting has a default. An unknown key or an invalid value is an error that names file, key,
value and the accepted values. Ignoring a wrong setting silently could cost the user a training.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from watchdog_app.base import paths
from watchdog_app.base.errors import ConfigError
from watchdog_app.base.text.quantities import MIB, format_bytes
from watchdog_app.core.model.settings import (
    RENAMED,
    RENAMED_VALUES,
    RULE_SETTINGS,
    SETTINGS,
    RuleSettings,
    Setting,
    Settings,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.config.lines import Place

DEFAULT = "default"
ENVIRONMENT = "environment"

MOST_FILE_BYTES = MIB
# exceptions that reading a value may raise
UNREADABLE = (ValueError, OverflowError, RecursionError)

Sources = Mapping[str, str]
Warn = Callable[[str], object] | None


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
    found = _ConfigErrors(text, where)
    document = _rename_old_keys(_parse_toml(text, where), found, warn)
    sources = dict.fromkeys(SETTINGS, DEFAULT) | dict.fromkeys(document.keys() & {"rule"}, where)
    rules = _read_rules(document.pop("rule", []), found)
    values = {name: _read_section(name, content, found) for name, content in document.items()}
    found.raise_if_any()
    sources |= {f"{section}.{name}": where for section, given in values.items() for name in given}
    for key, value in _read_environment(env, warn).items():
        section, _, name = key.partition(".")
        values.setdefault(section, {})[name] = value
        sources[key] = ENVIRONMENT
    settings = replace(Settings(), rules=rules)
    for section, given in values.items():
        part = replace(getattr(settings, section), **given)
        settings = replace(settings, **{section: part})
    _check_together(settings, sources)
    return settings, sources


class _ConfigErrors:
    """All errors of a file, so that the user can correct them at once."""

    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        self._found: list[tuple[int, str]] = []

    def add(self, place: Place, message: str) -> None:
        """
        Add an error at the line of a key.

        Args:
            place: the key.
            message: the error and the accepted values.
        """
        line, at = self.location(place)
        self._found.append((line, f"{at}: {message}"))

    def location(self, place: Place) -> tuple[int, str]:
        """The line number of a key, or 0; and "file:line" for messages."""
        from watchdog_app.config.lines import line_of

        line = line_of(self._text, place)
        return line or 0, self._where if line is None else f"{self._where}:{line}"

    def raise_if_any(self) -> None:
        """Raise all errors as one ConfigError, if any were added."""
        if self._found:
            raise ConfigError("\n".join(message for _, message in sorted(self._found)))


def _rename_old_keys(document: dict[str, Any], found: _ConfigErrors, warn: Warn) -> dict[str, Any]:
    """The tables of a file, with the keys of earlier versions renamed to their current names."""
    for old, new in RENAMED.items():
        (section, _, name), new_name = old.partition("."), new.partition(".")[2]
        content = document.get(section)
        for number, table in enumerate(content if isinstance(content, list) else [content], 1):
            if not isinstance(table, dict) or name not in table:
                continue
            before = table.pop(name)
            names = RENAMED_VALUES.get(old, {})
            now = table.setdefault(new_name, names.get(str(before), before))
            place: Place = (section, number, name) if section == "rule" else (section, name)
            table_name = f"[[rule]] number {number}: " if section == "rule" else f"[{section}] "
            was, is_now = _format_value(before), _format_value(now)
            message = f"{table_name}{name} = {was} is now {new_name} = {is_now}"
            if warn is None:
                found.add(place, f"{message}.")
            else:
                warn(f"{message} ({found.location(place)[1]})")
    return document


def env_name(key: str) -> str:
    """The environment variable of a setting, such as WATCHDOG_STAGES_WARN_S."""
    return f"WATCHDOG_{key.replace('.', '_').upper()}"


def _read_environment(env: Mapping[str, str], warn: Warn) -> dict[str, Any]:
    """The settings in environment variables. A misspelled name is an error."""
    known = {env_name(key): key for key in SETTINGS}
    old = {env_name(key): new for key, new in RENAMED.items() if new in SETTINGS}
    sections = tuple({env_name(key.partition(".")[0]) + "_" for key in SETTINGS})
    values: dict[str, Any] = {}
    for name, text in env.items():
        key = known.get(name) or old.get(name)
        if name in old:
            message = f"the environment variable {name} is now {env_name(old[name])}"
            if warn is None:
                raise ConfigError(f"{message}.")
            warn(message)
        if key is None:
            if name.startswith(sections):
                hint = suggestion(name, [*known])
                raise ConfigError(
                    f"The environment variable {name} names no setting.{hint} "
                    "All settings: watchdog config"
                )
            continue
        if name in old and env_name(key) in env:
            continue
        try:
            values[key] = SETTINGS[key].values.read(text)
        except UNREADABLE as error:
            refused = rejection(key, text, SETTINGS[key])
            raise ConfigError(f"environment variable {name}: {refused}") from error
    return values


def describe(settings: Settings, sources: Sources) -> list[dict[str, Any]]:
    """
    One entry per setting: key, value, source, help, accepted; in the order of the documentation.

    Args:
        settings: from `load`.
        sources: from the same call.
    """
    found: list[dict[str, Any]] = []
    for key, spec in SETTINGS.items():
        section, _, name = key.partition(".")
        value = getattr(getattr(settings, section), name)
        found.append(
            {
                "key": key,
                "value": list(value) if isinstance(value, tuple) else value,
                "source": sources.get(key, DEFAULT),
                "help": spec.help,
                "accepted": spec.values.accepted,
            }
        )
    found += (
        {
            "key": f"notify.{name}",
            "value": table,
            "source": sources.get("notify.tables", DEFAULT),
            "help": f"the settings of the channel {name}",
            "accepted": f"a table [notify.{name}]",
        }
        for name, table in settings.notify.tables.items()
    )
    for number, rule in enumerate(settings.rules, 1):
        shown = {name: getattr(rule, name) for name in RULE_SETTINGS}
        found.append(
            {
                "key": f"rule {number}",
                "value": {name: value for name, value in shown.items() if value is not None},
                "source": sources.get("rule", DEFAULT),
                "help": "other actions for the tasks and resources that match",
                "accepted": f"a table [[rule]] with {', '.join(RULE_SETTINGS)}",
            }
        )
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
    if paths.is_foreign(found):
        raise ConfigError(
            f"{path} belongs to user {found.st_uid}, who could have commands run in your name "
            "(notify.command); it is not read. If it is meant to be yours: "
            f"sudo chown $(id -u) {shlex.quote(path)}"
        )
    if stat.S_ISREG(found.st_mode) and paths.is_writable_by_others(found):
        raise ConfigError(
            f"{path} may be written by others (mode {stat.S_IMODE(found.st_mode):04o}), who could "
            "have commands run in your name (notify.command); it is not read. "
            f"Run: chmod go-w {shlex.quote(path)}"
        )


def _parse_toml(text: str, path: str) -> dict[str, Any]:
    if not text:
        return {}
    import tomllib  # takes 1.5 MB of memory, which a machine without a file need not spend

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # includes tomllib.TOMLDecodeError
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def _read_section(section: str, content: Any, found: _ConfigErrors) -> dict[str, Any]:
    """The settings of one table; unknown keys become errors."""
    start = f"{section}."
    known = {
        key.removeprefix(start): spec for key, spec in SETTINGS.items() if key.startswith(start)
    }
    if not known:
        sections = sorted({key.partition(".")[0] for key in SETTINGS} | {"rule"})
        inside = [key.partition(".")[0] for key in SETTINGS if key.partition(".")[2] == section]
        hint = f" It belongs in [{inside[0]}]." if inside else suggestion(section, sections)
        if section == "rules":
            hint = " Write [[rule]], once for each rule."
        found.add(
            (section,),
            f"{_format_value(section)} is no table of ours. There are {', '.join(sections)}.{hint}",
        )
        return {}
    if not isinstance(content, dict):
        found.add((section,), f"{section} = {_format_value(content)} must be a table: [{section}].")
        return {}
    tables = {}
    if section == "notify":  # of further channels, which check their tables themselves
        tables = {k: v for k, v in content.items() if isinstance(v, dict) and k not in known}
    own = {name: value for name, value in content.items() if name not in tables}
    values = _read_table(own, known, (section,), (f"[{section}]", start), found)
    return {**values, "tables": tables} if tables else values


def _read_rules(content: Any, found: _ConfigErrors) -> tuple[RuleSettings, ...]:
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        found.add(("rule",), "write [[rule]] with two brackets, once for each rule.")
        return ()
    rules: list[RuleSettings] = []
    for number, item in enumerate(content, 1):
        name, place = f"[[rule]] number {number}", ("rule", number)
        rules.append(
            RuleSettings(**_read_table(item, RULE_SETTINGS, place, (name, f"{name}: "), found))
        )
        if not item.keys() & (RULE_SETTINGS.keys() - {"task", "resource"}):
            found.add(
                place, f"{name} changes nothing. Give it notify, checkpoint, pause or priority."
            )
    return tuple(rules)


def _read_table(
    content: dict[str, Any],
    known: Mapping[str, Setting],
    place: Place,
    names: tuple[str, str],
    found: _ConfigErrors,
) -> dict[str, Any]:
    """
    The values of one table.

    Args:
        content: the table as parsed.
        known: the valid keys.
        place: the table's place in the file.
        names: the table's name and the prefix of its keys, for messages.
        found: collects the errors.
    """
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            found.add(
                (*place, name),
                f"{_format_value(name)} is not known in {names[0]}. "
                f"There are {', '.join(known)}.{suggestion(name, [*known])}",
            )
            continue
        try:
            values[name] = known[name].values.read(value)
        except UNREADABLE:
            found.add((*place, name), rejection(f"{names[1]}{name}", value, known[name]))
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
