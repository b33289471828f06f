"""
What is made of the readings: ceilings, forecasts, stages, decisions, outcomes.

The vocabulary shared by the forecast, the policy, the daemon and whoever
replays a recorded trace. Plain frozen records, no behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from watchdog_app.core.records import ProcessKey

Evidence = Mapping[str, float | int | str | None]


class CeilingKind(StrEnum):
    """Something that can run out."""

    RAM = "ram"  # MemTotal; reaching it means swapping where there is swap
    RAM_SWAP = "ram_swap"  # RAM and swap together; reaching it kills
    CGROUP = "cgroup"  # a limited memory group above a process, swap of the group included
    RLIMIT_AS = "rlimit_as"
    SHM = "shm"
    DISK = "disk"
    GPU_MEMORY = "gpu_memory"
    GPU_ALLOCATOR = "gpu_allocator"
    TEMPERATURE = "temperature"
    BATTERY = "battery"
    # Incidents without a level: something is broken, or brakes. No reading has these kinds.
    GPU_HEALTH = "gpu_health"
    THROTTLING = "throttling"
    STALLED = "stalled"  # a training that makes no steps any more; the subject is its agent


@dataclass(frozen=True, slots=True, order=True)
class CeilingKey:
    """Identity of a ceiling: kind and what it belongs to (a path, a pid, a GPU's UUID or '')."""

    kind: CeilingKind
    subject: str = ""


@dataclass(frozen=True, slots=True)
class CeilingReading:
    """One ceiling at one tick."""

    key: CeilingKey
    label: str  # as a person reads it: "RAM", "memory limit of the group jupyter"
    used: float
    limit: float
    unit: str  # "bytes", "celsius", "watts", "ratio"
    lethal: bool  # reaching it kills; False: it only slows down (RAM where there is swap)
    tasks: tuple[ProcessKey, ...]  # whom it can hit, by task root
    note: str | None = None  # e.g. "3 groups up", "counts swap"
    swapped: float = 0.0  # of `used`, what a group has in swap
    strangers: float | None = None  # what processes hold there that are not watched
    held_mono_s: float | None = None  # when it was listed who holds how much; None: with `used`
    device: str | None = None  # the card that it is on: its UUID, else the framework's name of it
    throttles: bool = False  # who reaches it stands still there (memory.high, memory.swap.high)
    stalled: bool = False  # ... and does so now; of the machine: next to nothing is left


class Regime(StrEnum):
    """The kind of movement a forecast was read from."""

    UNKNOWN = "unknown"  # too few samples to say
    FLAT = "flat"
    FALLING = "falling"
    LINEAR = "linear"
    ACCELERATING = "accelerating"
    SATURATING = "saturating"
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
    """How far a ceiling has come."""

    OK = 0
    WATCH = 1  # sample faster, tell no one
    WARN = 2  # notify
    RESCUE = 3  # checkpoint
    HOLD = 4  # pause, last resort


class Caution(StrEnum):
    """The trade between a warning too many and a rescue too late."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class Costs:
    """What acting costs the tasks under one ceiling, in seconds: the dearest of them counts."""

    save_s: float | None = None  # None: no agent, or nothing measured yet
    step_s: float | None = None


@dataclass(frozen=True, slots=True)
class Assessment:
    """What one ceiling looks like now."""

    stage: Stage
    regime: Regime
    slope_per_s: float  # units of the ceiling a second, over the regime's span; 0 when flat
    ratio: float  # used / limit
    forecast: Forecast | None
    why: str  # "rising 21 MiB/s for 40 s, steady; 6.0 of 7.0 GiB"
    # The two tiers apart, as `stage` is only the highest: a silent checkpoint may be due
    # (stage RESCUE) before the evidence is good enough to tell a person.
    notify: bool = False
    rescue: bool = False
    foretold: str | None = None  # what is coming that no trend shows, and is the reason


@dataclass(frozen=True, slots=True)
class Culprit:
    """A task ranked by its share of the growth towards a ceiling."""

    task: ProcessKey
    name: str
    slope_bytes_per_s: float
    share: float  # of all growth seen, 0 to 1


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
    ceiling: CeilingKey
    stage: Stage
    task: ProcessKey | None  # None: the notice concerns the machine
    at_mono_s: float
    at_unix_s: float
    reason: str
    evidence: Evidence = field(default_factory=dict)
    deadline_s: float | None = None  # the action is pointless later than this


class OutcomeStatus(StrEnum):
    """How a decision ended."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"  # measured again before acting, and no longer true
    UNDELIVERED = "undelivered"  # a notice that nobody could be shown


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
    """Opened when a ceiling crosses a stage, closed with hysteresis."""

    id: str
    ceiling: CeilingKey
    label: str
    stage: Stage  # now
    peak: Stage
    opened_unix_s: float
    closed_unix_s: float | None
    culprits: tuple[Culprit, ...]
    why: str
    advice: tuple[str, ...] = ()
    device_works: bool = True  # False: the card or its driver is out of order
    work_lost: bool = False  # what was held on the card is gone
