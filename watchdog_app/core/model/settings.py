"""
Everything a person can set, with the default that is right for a workstation.

Plain frozen records; reading them from a file is `watchdog_app.config`. The
comment beside each field becomes its documentation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from watchdog_app.core.model.decisions import Caution


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """`[watch]`: how often and how far ahead the machine is looked at."""

    interval_s: float = 1.0  # between looks at rest
    fast_interval_s: float = 0.1  # shortest time between looks when a limit is near
    caution: Caution = Caution.NORMAL
    trace: bool = True  # once a warning is due, ask the training's agent what grows in it


@dataclass(frozen=True, slots=True)
class StageSettings:
    """`[stages]`: when each stage begins. Times are the low end of the forecast."""

    warn_s: float = 120.0  # warn when exhaustion may be nearer than this
    hold_s: float = 2.0  # pause when exhaustion may be nearer than this and the rescue is done
    safety_factor: float = 3.0  # rescue at (save time + one step) x this
    rescue_floor_s: float = 10.0  # and never later than this many seconds before the end
    settle_s: float = 15.0  # an action is given this long to take effect before the next
    cooldown_s: float = 60.0  # between two notifications of one incident unless its stage rises


@dataclass(frozen=True, slots=True)
class StallSettings:
    """`[stalls]`: when a training that makes no steps is one that hangs."""

    idle_s: float = 60.0  # without a step and without computing
    busy_s: float = 600.0  # without a step while it computes


@dataclass(frozen=True, slots=True)
class ActionSettings:
    """`[actions]` and, by task or resource, `[[rule]]`: what may be done."""

    notify: bool = True
    checkpoint: bool = True
    pause: bool = True  # last resort; only Python tasks of this user


class Priority(StrEnum):
    """`protect` of a rule: whose turn it is where one has to be chosen before another."""

    FIRST = "first"  # saved first, paused last
    NORMAL = "normal"
    LAST = "last"  # saved last, paused first


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """`[[rule]]`: other actions for the tasks and resources that match; the first match wins."""

    task: str = "*"  # glob over the task's name or the path of its notebook or script
    ceiling: str = "*"  # glob over the resource's kind, e.g. "gpu_*"
    notify: bool | None = None  # None: as in [actions]
    checkpoint: bool | None = None
    pause: bool | None = None
    protect: Priority | None = None  # None: normal


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """`[notify]`: where notifications go."""

    desktop: bool = True
    terminal: bool = False  # also write each notification to the daemon's own standard error
    command: tuple[str, ...] = ()  # run with the notification as JSON on its standard input
    quiet_hours: tuple[str, ...] = ()  # "22:00-07:00", local time: only critical notifications


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """`[journal]`: how much of the past is kept."""

    max_age_s: float = 14 * 86400.0
    max_bytes: int = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it."""

    watch: WatchSettings = field(default_factory=WatchSettings)
    stages: StageSettings = field(default_factory=StageSettings)
    stalls: StallSettings = field(default_factory=StallSettings)
    actions: ActionSettings = field(default_factory=ActionSettings)
    notify: NotifySettings = field(default_factory=NotifySettings)
    journal: JournalSettings = field(default_factory=JournalSettings)
    rules: tuple[RuleSettings, ...] = ()
