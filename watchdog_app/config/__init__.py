"""
config.toml to settings and back, with where each value comes from.

Everything has a default. What a file holds besides, or holds wrongly, is an
error that names file, key, value and what is accepted: a setting that is
silently not in force costs somebody a training.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from watchdog_app.base import paths
from watchdog_app.base.errors import ConfigError
from watchdog_app.base.text.quantities import MIB, format_bytes
from watchdog_app.config.keys import KEYS, RULE_KEYS, Key
from watchdog_app.core.model.settings import RuleSettings, Settings

DEFAULT = "default"
ENVIRONMENT = "environment"
ENV_PREFIX = "WATCHDOG_"

MOST_FILE_BYTES = MIB
_UNREADABLE = (ValueError, OverflowError, RecursionError)

Sources = Mapping[str, str]


def load(
    path: str | None = None, env: Mapping[str, str] = os.environ, required: bool = False
) -> tuple[Settings, Sources]:
    """
    The settings in force, and for each key the file it comes from, "environment" or "default".

    Args:
        path: the file; None: where this user keeps it.
        env: `WATCHDOG_STAGES_WARN_S=60` goes before `warn_s` of `[stages]` in the file.
        required: a file that does not exist is an error, not a reason for defaults.

    Raises:
        ConfigError: names file, key, value and what is accepted.
    """
    where = path or paths.config_file(env)
    return loads(_read_file(where, required), where, env)


def loads(text: str, where: str, env: Mapping[str, str]) -> tuple[Settings, Sources]:
    """
    The same from the text of a file.

    Raises:
        ConfigError: names every mistake, one a line, with file, line, key and what is accepted.
    """
    values: dict[str, Any] = {}
    sources = dict.fromkeys(KEYS, DEFAULT)
    found = _Mistakes(text, where)
    rules: tuple[RuleSettings, ...] = ()
    for section, content in _parsed(text, where).items():
        if section == "rule":
            rules = _rules(content, found)
            sources[section] = where
            continue
        for key, value in _section(section, content, found).items():
            values[key] = _value(found, tuple(key.split(".")), KEYS[key], value)
            sources[key] = where
    found.tell()
    for key, spec in KEYS.items():
        name = ENV_PREFIX + key.replace(".", "_").upper()
        if name in env:
            try:
                values[key] = spec.read(env[name])
            except _UNREADABLE as error:
                raise ConfigError(
                    f"environment variable {name}: {_refused(key, env[name], spec)}"
                ) from error
            sources[key] = ENVIRONMENT
    _check_names(env)
    settings = _build(values, rules)
    _check_together(settings, sources)
    return settings, sources


class _Mistakes:
    """What is wrong with a file, all of it, so that it is mended in one go."""

    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        self._found: list[tuple[int, str]] = []

    def add(self, place: tuple[str | int, ...], message: str) -> None:
        """One more, at the line of this key."""
        from watchdog_app.config.lines import line_of

        line = line_of(self._text, place)
        at = self._where if line is None else f"{self._where}:{line}"
        self._found.append((line or 0, f"{at}: {message}"))

    def tell(self) -> None:
        """Raise them, if there are any."""
        if self._found:
            raise ConfigError("\n".join(message for _, message in sorted(self._found)))


def _check_names(env: Mapping[str, str]) -> None:
    """A setting of the environment with a slip in its name must not be without effect."""
    known = {ENV_PREFIX + key.replace(".", "_").upper(): key for key in KEYS}
    sections = tuple(f"{ENV_PREFIX}{key.partition('.')[0].upper()}_" for key in KEYS)
    for name in env:
        if name.startswith(sections) and name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, known, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"The environment variable {name} names no setting.{hint} "
                "All settings: watchdog config"
            )


def describe(settings: Settings, sources: Sources) -> list[dict[str, Any]]:
    """One entry a setting: key, value, source, help, accepted; in the documentation's order."""
    found: list[dict[str, Any]] = []
    for key, spec in KEYS.items():
        section, _, name = key.partition(".")
        value = getattr(getattr(settings, section), name)
        found.append(
            {
                "key": key,
                "value": list(value) if isinstance(value, tuple) else value,
                "source": sources.get(key, DEFAULT),
                "help": spec.help,
                "accepted": spec.accepted,
            }
        )
    for number, rule in enumerate(settings.rules, 1):
        shown = {field.name: getattr(rule, field.name) for field in fields(rule)}
        found.append(
            {
                "key": f"rule {number}",
                "value": {name: value for name, value in shown.items() if value is not None},
                "source": sources.get("rule", DEFAULT),
                "help": "other actions for the tasks and ceilings that match",
                "accepted": f"a table [[rule]] with {', '.join(RULE_KEYS)}",
            }
        )
    return found


def _read_file(path: str, required: bool) -> str:
    try:
        with open(path, "rb", opener=open_at_once) as file:
            check_trust(path, file.fileno())
            data = file.read(MOST_FILE_BYTES + 1)
    except FileNotFoundError:
        if required:
            raise ConfigError(f"{path} does not exist.") from None
        return ""
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > MOST_FILE_BYTES:
        raise ConfigError(f"{path} is larger than {format_bytes(MOST_FILE_BYTES)}.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}).") from error


def open_at_once(path: str, flags: int) -> int:
    """Not to wait for the writer of a pipe that somebody put there."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def check_trust(path: str, handle: int) -> None:
    """
    Whoever writes this file has commands run as its reader: `notify.command`.

    Raises:
        ConfigError: somebody else may have written it.
    """
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) and os.path.realpath(path) != os.devnull:
        raise ConfigError(f"{path} is no regular file.")
    if paths.foreign(found):
        raise ConfigError(
            f"{path} belongs to user {found.st_uid}, who could have commands run in your name "
            "(notify.command); it is not read. If it is meant to be yours: "
            f"sudo chown $(id -u) {shlex.quote(path)}"
        )
    if stat.S_ISREG(found.st_mode) and paths.open_to_others(found):
        raise ConfigError(
            f"{path} may be written by others (mode {stat.S_IMODE(found.st_mode):04o}), who could "
            "have commands run in your name (notify.command); it is not read. "
            f"Run: chmod go-w {shlex.quote(path)}"
        )


def _parsed(text: str, path: str) -> dict[str, Any]:
    if not text:
        return {}
    import tomllib  # 1.5 MB of memory that a machine without a file need not pay

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # tomllib.TOMLDecodeError among them
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def _section(section: str, content: Any, found: _Mistakes) -> dict[str, Any]:
    """`{"stages.warn_s": value}` of one table, those keys that are known."""
    known = [key.partition(".")[2] for key in KEYS if key.startswith(section + ".")]
    if not known:
        sections = sorted({key.partition(".")[0] for key in KEYS} | {"rule"})
        if section == "rules":
            hint = " Write [[rule]], once for each rule."
        else:
            inside = [key for key in KEYS if key.partition(".")[2] == section]
            hint = f" It belongs in [{inside[0].partition('.')[0]}]." if inside else ""
            hint = hint or _nearest(section, sections)
        found.add(
            (section,),
            f"{_shown(section)} is no table of ours. There are {', '.join(sections)}.{hint}",
        )
        return {}
    if not isinstance(content, dict):
        found.add((section,), f"{section} = {_shown(content)} must be a table: [{section}].")
        return {}
    for name in content:
        if name not in known:
            found.add(
                (section, name),
                f"{_shown(name)} is not known in [{section}]. "
                f"There are {', '.join(known)}.{_nearest(name, known)}",
            )
    return {f"{section}.{name}": value for name, value in content.items() if name in known}


def _rules(content: Any, found: _Mistakes) -> tuple[RuleSettings, ...]:
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        found.add(("rule",), "write [[rule]] with two brackets, once for each rule.")
        return ()
    rules: list[RuleSettings] = []
    for number, item in enumerate(content, 1):
        values: dict[str, Any] = {}
        for name, value in item.items():
            if name not in RULE_KEYS:
                found.add(
                    ("rule", number, name),
                    f"{_shown(name)} is not known in [[rule]] number {number}. "
                    f"There are {', '.join(RULE_KEYS)}.{_nearest(name, list(RULE_KEYS))}",
                )
                continue
            values[name] = _value(found, ("rule", number, name), RULE_KEYS[name], value)
        if not item.keys() & {"notify", "checkpoint", "pause", "protect"}:
            found.add(
                ("rule", number),
                f"[[rule]] number {number} changes nothing. "
                "Give it notify, checkpoint, pause or protect.",
            )
        rules.append(RuleSettings(**values))
    return tuple(rules)


def _value(found: _Mistakes, place: tuple[str | int, ...], spec: Key, value: Any) -> Any:
    try:
        return spec.read(value)
    except _UNREADABLE:
        if place[0] == "rule":
            what = f"[[rule]] number {place[1]}: {_refused(str(place[2]), value, spec)}"
        else:
            what = _refused(".".join(map(str, place)), value, spec)
        found.add(place, what)
        return None


def _refused(key: str, value: Any, spec: Key) -> str:
    return f"{key} = {_shown(value)} is not accepted. It must be {spec.accepted}."


def _build(values: Mapping[str, Any], rules: tuple[RuleSettings, ...]) -> Settings:
    settings = replace(Settings(), rules=rules)
    for key, value in values.items():
        section, _, name = key.partition(".")
        part = replace(getattr(settings, section), **{name: value})
        settings = replace(settings, **{section: part})
    return settings


def _check_together(settings: Settings, sources: Sources) -> None:
    watch, stages = settings.watch, settings.stages
    for low_key, low, high_key, high in (
        ("watch.fast_interval_s", watch.fast_interval_s, "watch.interval_s", watch.interval_s),
        ("stages.hold_s", stages.hold_s, "stages.warn_s", stages.warn_s),
    ):
        if low > high:
            raise ConfigError(
                f"{low_key} = {low:g} ({sources[low_key]}) must not be above "
                f"{high_key} = {high:g} ({sources[high_key]})."
            )


def _nearest(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    close = [key for key in known if key.rsplit("_", 1)[0] == name]  # the unit was left out
    close = close or get_close_matches(name, known, 1)
    return f" Did you mean {close[0]}?" if close else ""


def _shown(value: Any) -> str:
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
