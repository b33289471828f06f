"""Every key of config.toml: how it is read, what is accepted, what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from watchdog_app.base.text.quantities import MIB, TIB, parse_bytes, parse_duration
from watchdog_app.core.model.decisions import Caution
from watchdog_app.core.model.resource import ResourceKind
from watchdog_app.core.model.settings import Priority

_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Key:
    """One thing that can be set: how its value is read, what is accepted, what it does."""

    read: Callable[[Any], Any]  # raises ValueError with what is accepted
    accepted: str
    help: str


def _truth(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):  # from the environment
        return value.lower() == "true"
    if value is not True and value is not False:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):  # from the environment
        import json

        value = json.loads(value)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError
    if value and (not value[0] or any("\0" in item for item in value)):
        raise ValueError
    return tuple(value)


def _hours(value: Any) -> tuple[str, ...]:
    from watchdog_app.core.model.quiet_hours import span

    if isinstance(value, str) and not value.startswith("["):  # else a list in the environment
        value = [value]
    found = _words(value)
    for text in found:
        span(text)
    return found


def _within(low: float, high: float, parse: Callable[[str], float]) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        number = parse(value) if isinstance(value, str) else value
        number_given = isinstance(number, int | float) and not isinstance(number, bool)
        if number_given and low <= number <= high:  # an undefined number is not within
            return number
        raise ValueError

    return read


def _bound(seconds: float) -> str:
    """An end of a range, in the largest unit that needs no fraction."""
    for unit, unit_s in (("d", _DAY_S), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:g} {unit}"
    return f"{seconds * 1000:g} ms" if seconds else "0"


def _duration(low_s: float, high_s: float, help_: str) -> Key:
    read = _within(low_s, high_s, parse_duration)
    accepted = (
        f"a duration from {_bound(low_s)} to {_bound(high_s)}: "
        'seconds, or a text such as "500ms", "90s" or "15m"'
    )
    return Key(lambda value: float(read(value)), accepted, help_)


def _size(low: int, high: int, help_: str) -> Key:
    read = _within(low, high, parse_bytes)
    accepted = (
        f'a size from {low // MIB} MiB to {high // TIB} TiB: bytes, or a text such as "64 MiB"'
    )
    return Key(lambda value: int(read(value)), accepted, help_)


def _factor(low: float, high: float, help_: str) -> Key:
    read = _within(low, high, float)
    return Key(lambda value: float(read(value)), f"a number from {low:g} to {high:g}", help_)


def _switch(help_: str) -> Key:
    return Key(_truth, "true or false", help_)


def _ceiling_glob(value: Any) -> str:
    from fnmatch import fnmatchcase

    if not any(fnmatchcase(kind, _text(value)) for kind in ResourceKind):
        raise ValueError
    return _text(value)


_CEILINGS = ", ".join(ResourceKind)

KEYS: Mapping[str, Key] = {
    "watch.interval_s": _duration(0.1, 60, "time between two looks at the machine at rest"),
    "watch.fast_interval_s": _duration(
        0.02, 10, "shortest time between two looks when a ceiling is near; at most `interval_s`"
    ),
    "watch.caution": Key(
        Caution,
        " or ".join(f'"{caution}"' for caution in Caution),
        "which mistake to avoid: low warns seldom, high saves early",
    ),
    "watch.trace": _switch(
        "once a warning is due, let the training's agent find the line at which memory grows: five "
        "seconds in which its Python code runs slower"
    ),
    "stages.warn_s": _duration(
        1, _DAY_S, "warn when memory may be exhausted within this time, on good evidence"
    ),
    "stages.hold_s": _duration(
        0,
        3600,
        "pause when it may be exhausted within this time and nothing else helped; at most `warn_s`",
    ),
    "stages.safety_factor": _factor(
        1, 100, "ask for a checkpoint this many times (save time + one step) before the end"
    ),
    "stages.rescue_floor_s": _duration(
        0, 3600, "ask for a checkpoint at the latest this long before the end, if that is foreseen"
    ),
    "stages.settle_s": _duration(
        0, 3600, "time that an action is given to take effect before the next one"
    ),
    "stages.cooldown_s": _duration(
        0, _DAY_S, "quiet time between two notices of one incident, unless it gets worse"
    ),
    "stalls.idle_s": _duration(
        1,
        _DAY_S,
        "a training that computes nothing and makes no step for this long is told of as stalled; "
        "never sooner than 20 of its own steps or 3 times its longest pause",
    ),
    "stalls.busy_s": _duration(
        1, _DAY_S, "the same of one that still computes; never sooner than 100 of its own steps"
    ),
    "actions.notify": _switch("show notices"),
    "actions.checkpoint": _switch("ask trainings to save a checkpoint"),
    "actions.pause": _switch("pause a training as the last resort; it can always be resumed"),
    "notify.desktop": _switch("show notices on the desktop"),
    "notify.terminal": _switch("write notices to the daemon's own standard error too"),
    "notify.command": Key(
        _words,
        'a list of texts such as ["notify-me", "--quiet"]; [] for none',
        "command that is run with each notice as JSON on its standard input",
    ),
    "notify.quiet_hours": Key(
        _hours,
        'hours such as "22:00-07:00", or a list of such texts; [] for none',
        "hours, in local time, in which only critical notices are shown",
    ),
    "journal.max_age_s": _duration(3600, 3650 * _DAY_S, "how long the past is kept"),
    "journal.max_bytes": _size(MIB, TIB, "how large the journal may grow"),
}

RULE_KEYS: Mapping[str, Key] = {
    "task": Key(
        _text,
        'a pattern such as "train*.ipynb" or "/home/me/project/*"',
        "tasks that the rule is for: name, or path of the notebook or script",
    ),
    "ceiling": Key(
        _ceiling_glob,
        f"a pattern over {_CEILINGS}",
        "ceilings that the rule is for",
    ),
    "notify": _switch("show notices; absent: as in [actions]"),
    "checkpoint": _switch("ask for a checkpoint; absent: as in [actions]"),
    "pause": _switch("pause as the last resort; absent: as in [actions]"),
    "protect": Key(
        Priority,
        " or ".join(f'"{turn}"' for turn in Priority),
        "first: saved before others, paused after them; last: the other way round",
    ),
}
