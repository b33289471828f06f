"""Records derived from readings: forecasts, decisions, incidents and notifications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import IntEnum, StrEnum

from watchdog_app.base.records import dataclass
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.machine import ProcessKey, Snapshot, Task
from watchdog_app.core.model.resource import Reading, ResourceKey, is_condition
from watchdog_app.core.model.status import Notification

Evidence = Mapping[str, float | int | str | None]
# A task may be saved or paused if it grows at least half as fast as the fastest task and causes
# at least a fifth of all growth.
_ACTED_ON_OF_TOP = 0.5
_ACTED_ON_OF_ALL = 0.2


class Regime(StrEnum):
    """The kind of movement that a forecast is based on."""

    UNKNOWN = "unknown"  # too few samples
    FLAT = "flat"
    FALLING = "falling"
    LINEAR = "linear"
    SATURATING = "saturating"  # for temperatures only
    STAIRCASE = "staircase"
    SAWTOOTH = "sawtooth"
    BURST = "burst"


@dataclass(slots=True)
class Forecast:
    """
    Time to exhaustion in seconds: median and 80 % interval. Not frozen, as `Assessment`.

    `low_s <= eta_s <= high_s`; `high_s` may be infinite.
    """

    eta_s: float
    low_s: float
    high_s: float


class Stage(IntEnum):
    """How close a resource is to exhaustion."""

    OK = 0
    WATCH = 1  # show that it may run out, without a notification
    WARN = 2  # notify the user
    SAVE = 3  # ask for a checkpoint
    PAUSE = 4  # pause as a last resort


class Caution(StrEnum):
    """The balance between false warnings and late rescues."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class SaveCost:
    """Times of a save in seconds: the largest of the tasks under one resource."""

    save_s: float | None = None  # None: no agent, or not measured yet
    step_s: float | None = None


@dataclass(slots=True)
class Assessment:
    """The current state of one resource. Not frozen, because each sample creates one."""

    stage: Stage
    regime: Regime
    slope_per_s: float  # resource units per second over the regime's span; 0 if flat
    ratio: float  # used / limit
    forecast: Forecast | None
    why: str  # "rising 21 MiB/s for 40 s, steady; 6.0 of 7.0 GiB"
    # `stage` is only the highest of both. A silent checkpoint may be due (stage SAVE) before the
    # evidence is good enough to notify the user.
    notify: bool = False
    rescue: bool = False
    expected: str | None = None  # announced growth that led to this assessment

    @property
    def is_certain(self) -> bool:
        """Whether the evidence suffices to notify a person, or the resource is about to run out."""
        return self.notify or self.stage >= Stage.PAUSE

    @property
    def level(self) -> Level:
        """The urgency for the user."""
        certain = self.notify or self.stage is not Stage.SAVE
        return Level.from_stage(self.stage.name.lower(), certain=certain)


@dataclass(frozen=True, slots=True)
class Contributor:
    """A task with its share of the growth of a resource, or a task that a fault affects."""

    task: ProcessKey
    name: str
    slope_bytes_per_s: float = 0.0
    share: float = 0.0  # share of all measured growth, 0 to 1


@dataclass(frozen=True, slots=True)
class Attribution:
    """The causes of a resource's growth."""

    contributors: tuple[Contributor, ...] = ()  # largest share first
    others: float = 0.0  # share of the growth in unwatched processes, 0 to 1
    window_s: float | None = None  # length of the measurement; None: nothing grew
    # Share outside all processes: files in RAM, shared memory, memory of the kernel.
    unaccounted: float = 0.0

    @property
    def actionable(self) -> tuple[Contributor, ...]:
        """The contributors that may be saved or paused; tasks with little growth are left out."""
        if not self.contributors:
            return ()
        least = max(_ACTED_ON_OF_ALL, _ACTED_ON_OF_TOP * self.contributors[0].share)
        return tuple(each for each in self.contributors if each.share >= least)

    @property
    def mostly_unwatched(self) -> bool:
        """Most of the growth is outside the watched tasks, so a pause of them would not help."""
        return self.others + self.unaccounted > 0.5


NOBODY = Attribution()


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected growth that does not fit."""

    why: str
    stage: Stage
    contributor: Contributor | None


@dataclass(frozen=True, slots=True)
class Observation:
    """One sample of the machine."""

    snapshot: Snapshot
    tasks: Mapping[ProcessKey, Task]
    readings: Sequence[Reading]
    agents: Mapping[ProcessKey, Sequence[AgentState]]  # agents by task


class DecisionKind(StrEnum):
    """The actions that the policy can request."""

    NOTIFY = "notify"
    CHECKPOINT = "checkpoint"
    PAUSE = "pause"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Decision:
    """One action to carry out, with the figures that led to it."""

    id: str
    kind: DecisionKind
    incident: str
    resource: ResourceKey
    stage: Stage
    task: ProcessKey | None  # None: the notification is about the machine
    at_mono_s: float
    at_unix_s: float
    reason: str
    evidence: Evidence = field(default_factory=dict)
    deadline_s: float | None = None  # time after which the action is useless
    notification: Notification | None = None  # only with kind `notify`


class OutcomeStatus(StrEnum):
    """The result of a decision."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"  # a new measurement before the action no longer justified it
    UNDELIVERED = "undelivered"  # no channel could show the notification


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a decision."""

    decision: str
    status: OutcomeStatus
    at_unix_s: float
    seconds: float
    detail: str
    evidence: Evidence = field(default_factory=dict)
    at_mono_s: float | None = None  # None: unknown; the wall clock may have changed since


@dataclass(slots=True)
class Incident:
    """An incident: it opens when a resource reaches a stage, and closes with hysteresis."""

    id: str
    resource: ResourceKey
    label: str
    opened_unix_s: float
    opened_mono_s: float
    closed_unix_s: float | None = None
    stage: Stage = Stage.OK  # current stage
    peak: Stage = Stage.OK
    why: str = ""
    advice: tuple[str, ...] = ()
    attribution: Attribution = NOBODY
    device_works: bool = True  # False: the card or its driver does not work
    work_lost: bool = False  # the state in the card's memory is lost
    certain: bool = False  # the evidence sufficed to notify a person, not only for silent saves

    @property
    def contributors(self) -> tuple[Contributor, ...]:
        """Tasks with the most growth first; for a fault the affected tasks."""
        return self.attribution.contributors

    @property
    def level(self) -> Level:
        """The urgency for the user."""
        certain = self.certain or is_condition(self.resource)
        return Level.from_stage(self.stage.name.lower(), certain=certain)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in one sample. Problems with the same key in later samples are one incident."""

    key: ResourceKey
    label: str
    stage: Stage  # OK: the problem is over
    why: str
    reason: str = ""  # reason in the notification
    evidence: Evidence = field(default_factory=dict)  # evidence in the notification
    advice: tuple[str, ...] = ()
    tasks: tuple[Contributor, ...] = ()  # affected tasks, worst first
    facts: frozenset[str] = frozenset()  # details of the problem; a new one leads to a new report
    device_works: bool = True
    work_lost: bool = False
    ready: bool = True  # False: too early to report
    when_off: bool = False  # report also while protection is off
    quiet_s: float = 0.0  # time after a report without a second report of the same problem
    at_once: bool = False  # close the incident at once, without a waiting time


class Topic(StrEnum):
    """The subject of a notification."""

    WARNING = "warning"  # a resource is about to run out
    RESCUED = "rescued"  # a rescue is on disk
    RESCUE_FAILED = "rescue_failed"
    PAUSED = "paused"
    PAUSE_FAILED = "pause_failed"
    STOPPED = "stopped"  # a guard stopped a task at its limit, or refuses it memory
    RESUMED = "resumed"  # a paused task runs again
    RESOLVED = "resolved"  # the danger is over
    STALLED = "stalled"  # a training makes no more steps
    EXITED = "exited"
    RESTARTED = "restarted"  # Jupyter restarted a kernel that died
    GPU_LOST = "gpu_lost"  # a card was lost, with all state in its memory
    FAULT = "fault"  # a card or its driver does not work
    SLOWED = "slowed"  # heat or the power supply slows the machine
    PAST = "past"  # by its earlier runs, a task will need more memory than there is
    UNSAVED = "unsaved"  # a training without an agent; once per environment


@dataclass(frozen=True, slots=True)
class TaskOutlook:
    """One task's line of the status."""

    trend_bytes_per_s: float | None  # growth of RAM and swap
    cpu_percent: float | None  # percent of one core
    resource: ResourceKey | None = None  # the resource that it exhausts first
    assessment: Assessment | None = None  # assessment of that resource
