"""What is made of readings: forecasts, stages, decisions, outcomes, incidents, notifications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from watchdog_app.base import codec
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.machine import ProcessKey, Snapshot, Task
from watchdog_app.core.model.resource import Reading, ResourceKey

Evidence = Mapping[str, float | int | str | None]
_ACTED_ON_OF_TOP = 0.5  # a task is acted on when it grows at least half as fast as the fastest,
_ACTED_ON_OF_ALL = 0.2  # and makes a fifth of all growth


class Regime(StrEnum):
    """The kind of movement a forecast was read from."""

    UNKNOWN = "unknown"  # too few samples to say
    FLAT = "flat"
    FALLING = "falling"
    LINEAR = "linear"
    SATURATING = "saturating"  # of heat alone
    STAIRCASE = "staircase"
    SAWTOOTH = "sawtooth"
    BURST = "burst"


@dataclass(frozen=True, slots=True)
class Forecast:
    """
    Time to exhaustion: median and 80 % interval, never a bare number.

    `low_s <= eta_s <= high_s`; `high_s` may be infinite.
    """

    eta_s: float
    low_s: float
    high_s: float


class Stage(IntEnum):
    """How far a resource has come."""

    OK = 0
    WATCH = 1  # sample faster, tell no one
    WARN = 2  # notify
    SAVE = 3  # checkpoint
    PAUSE = 4  # last resort


class Caution(StrEnum):
    """The trade between a warning too many and a rescue too late."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class SaveCost:
    """What acting costs the tasks under one resource, in seconds: the dearest of them counts."""

    save_s: float | None = None  # None: no agent, or nothing measured yet
    step_s: float | None = None


@dataclass(frozen=True, slots=True)
class Assessment:
    """What one resource looks like now."""

    stage: Stage
    regime: Regime
    slope_per_s: float  # units of the resource a second, over the regime's span; 0 when flat
    ratio: float  # used / limit
    forecast: Forecast | None
    why: str  # "rising 21 MiB/s for 40 s, steady; 6.0 of 7.0 GiB"
    # The two tiers apart, as `stage` is only the highest: a silent checkpoint may be due
    # (stage SAVE) before the evidence is good enough to tell a person.
    notify: bool = False
    rescue: bool = False
    expected: str | None = None  # what is coming that no trend shows, and is the reason

    @property
    def level(self) -> Level:
        """How urgent it is for people."""
        certain = self.notify or self.stage is not Stage.SAVE
        return Level.from_stage(self.stage.name.lower(), certain=certain)


@dataclass(frozen=True, slots=True)
class Contributor:
    """A task ranked by its share of the growth towards a resource, or hit by a fault."""

    task: ProcessKey
    name: str
    slope_bytes_per_s: float = 0.0
    share: float = 0.0  # of all growth seen, 0 to 1


@dataclass(frozen=True, slots=True)
class Attribution:
    """Who makes a resource fill up."""

    contributors: tuple[Contributor, ...] = ()  # largest share first
    others: float = 0.0  # share of the growth that no watched task explains, 0 to 1
    window_s: float | None = None  # over which it was read; None: nothing grew
    # Share that is in no process at all: files in RAM, shared memory, the kernel's own.
    unaccounted: float = 0.0

    @property
    def actionable(self) -> tuple[Contributor, ...]:
        """Those that may be acted on: who grew little recently is none of them."""
        if not self.contributors:
            return ()
        least = max(_ACTED_ON_OF_ALL, _ACTED_ON_OF_TOP * self.contributors[0].share)
        return tuple(each for each in self.contributors if each.share >= least)

    @property
    def mostly_unwatched(self) -> bool:
        """Most of the growth comes from elsewhere than the tasks, whose pause would not help."""
        return self.others + self.unaccounted > 0.5

    @property
    def mostly_unaccounted(self) -> bool:
        """Of that, most is in no process; else it is of programs that are not watched."""
        return self.unaccounted > self.others


NOBODY = Attribution()


@dataclass(frozen=True, slots=True)
class Expected:
    """Something that is coming and does not fit."""

    why: str
    stage: Stage
    contributor: Contributor | None


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at the machine."""

    snapshot: Snapshot
    tasks: Mapping[ProcessKey, Task]
    readings: Sequence[Reading]
    agents: Mapping[ProcessKey, Sequence[AgentState]]  # by task


class DecisionKind(StrEnum):
    """What the policy can ask for."""

    NOTIFY = "notify"
    CHECKPOINT = "checkpoint"
    PAUSE = "pause"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Decision:
    """One thing to do, with the figures that decided. Carried out by an action."""

    id: str
    kind: DecisionKind
    incident: str
    resource: ResourceKey
    stage: Stage
    task: ProcessKey | None  # None: the notification concerns the machine
    at_mono_s: float
    at_unix_s: float
    reason: str
    evidence: Evidence = field(default_factory=dict)
    deadline_s: float | None = None  # the action is pointless later than this
    notification: Notification | None = None  # with `notify`: what is shown


class OutcomeStatus(StrEnum):
    """How a decision ended."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"  # measured again before acting, and no longer true
    UNDELIVERED = "undelivered"  # a notification that nobody could be shown


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a decision."""

    decision: str
    status: OutcomeStatus
    at_unix_s: float
    seconds: float
    detail: str
    evidence: Evidence = field(default_factory=dict)
    at_mono_s: float | None = None  # None: not known; the wall clock may have been set meanwhile


@dataclass(frozen=True, slots=True)
class Incident:
    """Opened when a resource crosses a stage, closed with hysteresis."""

    id: str
    resource: ResourceKey
    label: str
    stage: Stage  # now
    peak: Stage
    opened_unix_s: float
    closed_unix_s: float | None
    contributors: tuple[Contributor, ...]
    why: str
    advice: tuple[str, ...] = ()
    device_works: bool = True  # False: the card or its driver is out of order
    work_lost: bool = False  # what was held on the card is gone
    level: Level = Level.OK  # how urgent it is for people


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong under one key in this look; seen again under it, it is the same incident."""

    key: ResourceKey
    label: str
    stage: Stage  # OK: it is over
    why: str
    reason: str = ""  # of the notification
    evidence: Evidence = field(default_factory=dict)  # the same
    advice: tuple[str, ...] = ()
    tasks: tuple[Contributor, ...] = ()  # whom it hits, the worst first
    facts: frozenset[str] = frozenset()  # further ones are news
    device_works: bool = True
    work_lost: bool = False
    ready: bool = True  # False: not to be reported yet
    when_off: bool = False  # reported also while protection is off
    quiet_s: float = 0.0  # after a report the same is not reported again for so long
    at_once: bool = False  # its end needs no calm


class Topic(StrEnum):
    """What a notification is about."""

    WARNING = "warning"  # something is about to run out
    RESCUED = "rescued"  # a rescue is on the disk
    RESCUE_FAILED = "rescue_failed"
    PAUSED = "paused"
    PAUSE_FAILED = "pause_failed"
    STOPPED = "stopped"  # a task stands still at the limit of its guard, or is refused more
    RESUMED = "resumed"  # there is room again
    RESOLVED = "resolved"  # it did not come to it
    STALLED = "stalled"  # a training makes no steps any more
    EXITED = "exited"
    RESTARTED = "restarted"  # Jupyter has started a kernel that died anew
    GPU_LOST = "gpu_lost"  # a card is gone, and with it what was on it
    FAULT = "fault"  # a card or its driver is out of order
    SLOWED = "slowed"  # heat or power brake the machine


@dataclass(frozen=True, slots=True)
class NotificationAction:
    """A button: what the companion asks the daemon for when it is clicked."""

    key: str  # of the table of actions
    label: str
    command: str = ""  # what does the same in a terminal


@dataclass(frozen=True, slots=True)
class Notification:
    """One thing to show to a person. Plain text, several lines in `body`."""

    id: str
    incident: str  # notifications of one incident replace each other; "" stands alone
    stage: str
    urgency: str  # "low", "normal" or "critical"
    title: str
    body: str
    task: int | None  # pid of its root
    unix_s: float
    actions: tuple[NotificationAction, ...] = field(default=())
    topic: str = Topic.WARNING.value  # what it is about: a value of `telling.Topic`

    def to_json(self) -> dict[str, Any]:
        """The notification as docs/protocol.md describes it."""
        return codec.encode(self)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class TaskOutlook:
    """One task's line of the status."""

    key: ProcessKey
    trend_bytes_per_s: float | None  # of its RAM and swap
    cpu_percent: float | None  # of one core
    resource: ResourceKey | None = None
    forecast: Forecast | None = None
    stage: Stage = Stage.OK
    why: str | None = None
    level: Level = Level.OK
