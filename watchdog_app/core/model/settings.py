"""
All settings, each with its default, accepted values and help text.

The records are plain and frozen; `watchdog_app.config` reads them from a file. The loader,
`watchdog config` and the tables of docs/configuration.md all read `SETTINGS`, `RULE_SETTINGS`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from enum import StrEnum
from typing import Any

from watchdog_app.base.records import dataclass
from watchdog_app.base.text.quantities import MIB, TIB, exact_duration, parse_bytes, parse_duration
from watchdog_app.core.model.decisions import Caution
from watchdog_app.core.model.resource import ResourceKind

DAY_S = 86400.0
_HOURS = re.compile(r"\s*([01]?\d|2[0-4]):([0-5]\d)\s*-\s*([01]?\d|2[0-4]):([0-5]\d)\s*", re.ASCII)
_DAY_MIN = 24 * 60


@dataclass(frozen=True, slots=True)
class Values:
    """The accepted values of a setting."""

    read: Callable[[Any], Any]  # converts a value of the file or the environment; raises ValueError
    accepted: str  # description of the values


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    default: Any
    values: Values
    help: str


def _setting(default: Any, values: Values, help_: str) -> Any:
    """A field of a record, with metadata for the loader and the documentation."""
    return field(default=default, metadata={"setting": Setting(default, values, help_)})


def _bool_setting(default: bool | None, help_: str) -> Any:
    return _setting(default, Values(_parse_bool, "true or false"), help_)


def _duration_setting(default_s: float, low_s: float, high_s: float, help_: str) -> Any:
    read = _range_parser(low_s, high_s, parse_duration, float)
    span = f"{exact_duration(low_s)} to {exact_duration(high_s)}"
    accepted = f'a duration from {span}: seconds, or a text such as "500ms", "90s" or "15m"'
    return _setting(default_s, Values(read, accepted), help_)


def _range_parser(
    low: float, high: float, parse: Callable[[str], float], kind: type[float]
) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        number = parse(value) if isinstance(value, str) else value
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if is_number and low <= number <= high:  # NaN is out of range
            return kind(number)
        raise ValueError

    return read


def _choice_of(choice: type[StrEnum]) -> Values:
    return Values(choice, " or ".join(f'"{each}"' for each in choice))


def _parse_bool(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):  # from the environment
        return value.lower() == "true"
    if value is not True and value is not False:
        raise ValueError
    return value


def _parse_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _parse_strings(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):  # from the environment
        value = json.loads(value)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError
    if value and (not value[0] or any("\0" in item for item in value)):
        raise ValueError
    return tuple(value)


def _parse_hours(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) and not value.startswith("["):  # "[": a list in the environment
        value = [value]
    found = _parse_strings(value)
    for text in found:
        parse_span_of_day(text)
    return found


def parse_span_of_day(text: str) -> tuple[int, int]:
    """
    Start and end of "22:00-07:00" in minutes after midnight; the end may be on the next day.

    Raises:
        ValueError: the form differs, or both times are the same.
    """
    found = _HOURS.fullmatch(text)
    if found is not None:
        begin, end = (60 * int(found[at]) + int(found[at + 1]) for at in (1, 3))
        if begin != end and begin < _DAY_MIN and end <= _DAY_MIN:
            return begin, end
    raise ValueError(f"{text!r} are no hours such as 22:00-07:00")


def _parse_resource_pattern(value: Any) -> str:
    from fnmatch import fnmatchcase

    if not any(fnmatchcase(kind, _parse_text(value)) for kind in ResourceKind):
        raise ValueError
    return _parse_text(value)


def _parse_metrics_path(value: Any) -> str:
    if value == "":
        return ""
    if not os.path.isabs(_parse_text(value)) or not value.endswith(".prom") or "\0" in value:
        raise ValueError
    return str(value)


class Priority(StrEnum):
    """`priority` of a rule: the order in which tasks are saved and paused."""

    HIGH = "high"  # saved first, paused last
    NORMAL = "normal"
    LOW = "low"  # saved last, paused first


_CAUTION, _PRIORITY = _choice_of(Caution), _choice_of(Priority)
_COMMAND = Values(_parse_strings, 'a list of texts such as ["notify-me", "--quiet"]; [] for none')
_QUIET = Values(_parse_hours, 'hours such as "22:00-07:00", or a list of such texts; [] for none')
_TASKS = Values(_parse_text, 'a pattern such as "train*.ipynb" or "/home/me/project/*"')
_RESOURCES = Values(_parse_resource_pattern, f"a pattern over {', '.join(ResourceKind)}")


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """`[watch]`: how often watchdog samples the machine and how early it acts."""

    interval_s: float = _duration_setting(
        1.0, 0.1, 60, "time between two readings; up to 2 s where nothing moves or works"
    )
    fast_interval_s: float = _duration_setting(
        0.1,
        0.02,
        10,
        "shortest time between two readings when a limit is near; at most `interval_s`",
    )
    caution: Caution = _setting(
        Caution.NORMAL, _CAUTION, "which mistake to avoid: low warns seldom, high saves early"
    )
    trace: bool = _bool_setting(
        True,
        "with a warning, let the training's agent find the line at which memory grows: five "
        "seconds in which its Python code runs slower",
    )


@dataclass(frozen=True, slots=True)
class StageSettings:
    """`[stages]`: when each stage begins. Times refer to the low end of the forecast."""

    warn_s: float = _duration_setting(
        120.0, 1, DAY_S, "warn when memory may be exhausted within this time, on good evidence"
    )
    pause_s: float = _duration_setting(
        2.0,
        0,
        3600,
        "pause when it may be exhausted within this time and nothing else helped; at most `warn_s`",
    )
    save_safety_factor: float = _setting(
        3.0,
        Values(_range_parser(1, 100, float, float), "a number from 1 to 100"),
        "ask for a checkpoint this many times (save time + one step) before the end",
    )
    save_floor_s: float = _duration_setting(
        10.0,
        0,
        3600,
        "ask for a checkpoint at the latest this long before the end, if that is foreseen",
    )
    settle_s: float = _duration_setting(
        15.0, 0, 3600, "time that an action is given to take effect before the next one"
    )
    cooldown_s: float = _duration_setting(
        60.0, 0, DAY_S, "quiet time between two notifications of one incident, unless it gets worse"
    )


BUSY_CORES = 0.1  # a task that uses more is computing


@dataclass(frozen=True, slots=True)
class StallSettings:
    """`[stalls]`: when a training without steps counts as stalled."""

    idle_s: float = _duration_setting(
        60.0,
        1,
        DAY_S,
        "a training that computes nothing and makes no step for this long is reported as stalled; "
        "never sooner than 20 of its own steps or 3 times its longest pause",
    )
    busy_s: float = _duration_setting(
        600.0,
        1,
        DAY_S,
        "the same of one that still computes; never sooner than 100 of its own steps",
    )


@dataclass(frozen=True, slots=True)
class ActionSettings:
    """`[actions]`: the allowed actions; `[[rule]]` changes them by task or resource."""

    notify: bool = _bool_setting(True, "show notifications")
    checkpoint: bool = _bool_setting(True, "ask trainings to save a checkpoint")
    pause: bool = _bool_setting(
        True, "pause a training as the last resort; it can always be resumed"
    )


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """`[[rule]]`: other actions for the tasks and resources that match; the first match wins."""

    task: str = _setting(
        "*", _TASKS, "tasks that the rule is for: name, or path of the notebook or script"
    )
    resource: str = _setting("*", _RESOURCES, "kinds of resources that the rule is for")
    # None: as in [actions], or normal priority.
    notify: bool | None = _bool_setting(None, "show notifications; absent: as in [actions]")
    checkpoint: bool | None = _bool_setting(None, "ask for a checkpoint; absent: as in [actions]")
    pause: bool | None = _bool_setting(None, "pause as the last resort; absent: as in [actions]")
    priority: Priority | None = _setting(
        None, _PRIORITY, "high: saved before others, paused after them; low: the other way round"
    )


# Name of a channel in `[notify]`: module below `daemon.notify` and class.
CHANNELS = {
    "desktop": "desktop:DesktopChannel",
    "terminal": "terminal:TerminalChannel",
    "command": "command:CommandChannel",
    "ntfy": "ntfy:NtfyChannel",
    "apprise": "apprise:AppriseChannel",
}
# Keys of tables [notify.NAME] that are no secrets; the values of others are never shown.
SHOWN_KEYS = ("url", "least", "answers")


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """`[notify]`: where notifications go."""

    desktop: bool = _bool_setting(True, "show notifications on the desktop")
    terminal: bool = _bool_setting(
        False, "write notifications to the daemon's own standard error too"
    )
    command: tuple[str, ...] = _setting(
        (), _COMMAND, "command that is run with each notification as JSON on its standard input"
    )
    quiet_hours: tuple[str, ...] = _setting(
        (), _QUIET, "hours, in local time, in which only critical notifications are shown"
    )
    # Tables [notify.NAME] of further channels. Each channel checks its own.
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HintSettings:
    """`[hints]`: advice that is shown without a question."""

    saving: bool = _bool_setting(
        True, "say how trainings can be saved that have no agent; once on the desktop"
    )


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """`[agent]`: what the agent does inside a training."""

    grace_s: float = _duration_setting(
        4.0,
        0,
        3600,
        "longest delay of SIGTERM and SIGHUP until a training is saved; less than the sender "
        "waits before it kills",
    )


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """`[slurm]`: what `watchdog exec --requeue` and `watchdog slurm` may do with a job."""

    max_memory: int = _setting(
        0,
        Values(
            _range_parser(0, TIB * 1024, parse_bytes, int),
            'a size: bytes, or a text such as "64G"; 0: what the nodes have',
        ),
        "the most memory that a job which ran out is requeued with",
    )
    max_requeues: int = _setting(
        10,
        Values(_range_parser(0, 1000, int, int), "a whole number from 0 to 1000"),
        "how often a job is requeued",
    )


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """`[journal]`: how much history the journal keeps."""

    max_age_s: float = _duration_setting(
        14 * DAY_S, 3600, 3650 * DAY_S, "how long the past is kept"
    )
    max_bytes: int = _setting(
        64 * MIB,
        Values(
            _range_parser(MIB, TIB, parse_bytes, int),
            'a size from 1 MiB to 1 TiB: bytes, or a text such as "64 MiB"',
        ),
        "how large the journal may grow",
    )


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """`[metrics]`: figures for Prometheus."""

    textfile: str = _setting(
        "",
        Values(_parse_metrics_path, 'an absolute path that ends in ".prom"; "" for none'),
        "file that the daemon writes every 15 s for the textfile collector of node_exporter",
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings."""

    watch: WatchSettings = WatchSettings()
    stages: StageSettings = StageSettings()
    stalls: StallSettings = StallSettings()
    actions: ActionSettings = ActionSettings()
    notify: NotifySettings = NotifySettings()
    hints: HintSettings = HintSettings()
    agent: AgentSettings = AgentSettings()
    slurm: SlurmSettings = SlurmSettings()
    journal: JournalSettings = JournalSettings()
    metrics: MetricsSettings = MetricsSettings()
    rules: tuple[RuleSettings, ...] = ()


SETTINGS: Mapping[str, Setting] = {
    f"{section.name}.{each.name}": each.metadata["setting"]
    for section in fields(Settings)
    if section.name != "rules"
    for each in fields(getattr(Settings(), section.name))
    if "setting" in each.metadata
}
RULE_SETTINGS: Mapping[str, Setting] = {
    each.name: each.metadata["setting"] for each in fields(RuleSettings)
}
# Keys of earlier versions: the daemon maps and reports them; `config check` rejects them.
RENAMED: Mapping[str, str] = {
    "stages.hold_s": "stages.pause_s",
    "stages.safety_factor": "stages.save_safety_factor",
    "stages.rescue_floor_s": "stages.save_floor_s",
    "rule.ceiling": "rule.resource",
    "rule.protect": "rule.priority",
}
RENAMED_VALUES: Mapping[str, Mapping[str, str]] = {
    "rule.protect": {"first": Priority.HIGH.value, "last": Priority.LOW.value}
}
