"""
One resource's crossing from its first stage to its end, with all that the policy remembers of it.

The daemon and its clients see the frozen `model.decisions.Incident`; this is what
stands behind it. `base.codec` writes it down and reads it back, so that neither an
open incident nor a cool-down is lost when the daemon is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from watchdog_app.base.codec import NOT_KEPT
from watchdog_app.core.model.decisions import (
    NOBODY,
    Assessment,
    Attribution,
    Incident,
    Regime,
    Stage,
)
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.machine import ProcessKey, Snapshot
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind, is_condition

_PACE_HALVES_S = 10.0


@dataclass(slots=True)
class PausedTask:
    """A task that this incident has paused."""

    since_mono_s: float
    headroom: float  # of the resource at that moment
    pace_per_s: float  # at which the resource was filling
    room_since_mono_s: float | None = None  # there has been room again without a break since then
    # The decision to resume that waits for its outcome.
    resuming: str | None = field(default=None, metadata=NOT_KEPT)


@dataclass(frozen=True, slots=True)
class LastReport:
    """What people were last told."""

    mono_s: float
    stage: Stage
    eta_s: float | None
    facts: frozenset[str] = frozenset()  # of a problem
    tasks: frozenset[ProcessKey] = frozenset()  # whom it hit


@dataclass(slots=True)
class OpenIncident:
    """An open incident. Times are monotonic seconds unless they say otherwise."""

    id: str
    resource: ResourceKey
    label: str
    opened_unix_s: float
    opened_mono_s: float
    stage: Stage = Stage.OK
    peak: Stage = Stage.OK
    why: str = ""
    regime: Regime = Regime.UNKNOWN  # of the growth, by its whole record
    advice: tuple[str, ...] = ()
    attribution: Attribution = NOBODY
    pace_per_s: float = 0.0  # fastest recent filling while no save holds the training up
    calm_since_mono_s: float | None = None
    last_report: LastReport | None = None
    paused: dict[ProcessKey, PausedTask] = field(default_factory=dict)
    # Decisions without an outcome.
    pausing: dict[str, ProcessKey] = field(default_factory=dict, metadata=NOT_KEPT)
    paused_mono_s: float | None = None  # when a pause was asked for last
    paused_used: float = 0.0  # of the resource, at that time
    overruled: set[ProcessKey] = field(default_factory=set)  # resumed by a person: left running
    unpausable: set[ProcessKey] = field(default_factory=set)  # a pause of it failed
    trained: set[ProcessKey] = field(default_factory=set)  # blamed while an agent trained in it
    device_works: bool = True
    work_lost: bool = False
    certain: bool = False  # on evidence enough to tell a person, and not only for silent saves

    def update_stage(
        self, stage: Stage, now: float, why: str, rising: bool, regime: Regime = Regime.UNKNOWN
    ) -> None:
        """
        Take over where the resource stands; in a calm the reason stays that of the danger.

        Args:
            stage: that the resource has reached.
            now: monotonic seconds.
            why: in words.
            rising: whether it still grows.
            regime: of the growth.
        """
        self.stage = stage
        self.peak = max(self.peak, stage)
        if rising or not self.why:
            self.why, self.regime = why, regime
        if stage >= Stage.WARN:
            self.calm_since_mono_s = None
        elif self.calm_since_mono_s is None:
            self.calm_since_mono_s = now

    def update(self, assessment: Assessment, now: float) -> None:
        """
        Take over the stage that its resource has reached.

        Args:
            assessment: of the resource.
            now: monotonic seconds.
        """
        self.certain |= assessment.notify or assessment.stage >= Stage.PAUSE
        stage = max(assessment.stage, Stage.WARN) if assessment.notify else assessment.stage
        rising = assessment.forecast is not None and assessment.stage >= Stage.WARN
        self.update_stage(stage, now, assessment.why, rising, assessment.regime)

    def set_attribution(self, attribution: Attribution) -> None:
        """Keep who was found, also when the growth has stopped since."""
        if attribution.window_s is not None:
            self.attribution = attribution

    @property
    def main_task(self) -> ProcessKey | None:
        """The task with the largest share of the growth."""
        return next((each.task for each in self.attribution.contributors), None)

    def is_over(self, now: float, settle_s: float) -> bool:
        """
        Calm for long enough, and no task is paused because of it.

        Args:
            now: monotonic seconds.
            settle_s: least time of calm.
        """
        return (
            not self.paused
            and not self.pausing
            and self.calm_since_mono_s is not None
            and now - self.calm_since_mono_s >= settle_s
        )

    @property
    def level(self) -> Level:
        """How urgent it is for people."""
        certain = self.certain or is_condition(self.resource)
        return Level.from_stage(self.shown_stage.name.lower(), certain=certain)

    def to_incident(self, closed_unix_s: float | None = None) -> Incident:
        """The incident as the daemon, its journal and its clients see it."""
        return Incident(
            id=self.id,
            resource=self.resource,
            label=self.label,
            stage=Stage.OK if closed_unix_s is not None else self.shown_stage,
            peak=self.peak,
            opened_unix_s=self.opened_unix_s,
            closed_unix_s=closed_unix_s,
            contributors=self.attribution.contributors,
            why=self.why,
            advice=self.advice,
            device_works=self.device_works,
            work_lost=self.work_lost,
            level=Level.OK if closed_unix_s is not None else self.level,
        )

    @property
    def shown_stage(self) -> Stage:
        """The stage; `hold` while a task is paused, though the resource itself is calm then."""
        return Stage.PAUSE if self.paused else self.stage


class Incidents(dict[ResourceKey, OpenIncident]):
    """Open ones by their resource."""

    def open(
        self, key: ResourceKey, label: str, at: Snapshot, new_id: Callable[[], str]
    ) -> OpenIncident:
        """
        The open incident of this resource; it is opened if there is none.

        Args:
            key: of the resource.
            label: of the resource.
            at: gives the time.
            new_id: makes an id.
        """
        if key not in self:
            self[key] = OpenIncident(new_id(), key, label, at.unix_s, at.mono_s)
        return self[key]

    def to_incidents(self) -> dict[str, Incident]:
        """By id, the oldest first."""
        by_age = sorted(self.values(), key=lambda each: each.opened_mono_s)
        return {each.id: each.to_incident() for each in by_age}

    def find_by_task(self, task: ProcessKey) -> OpenIncident | None:
        """
        The first one that may be why a task has died.

        A stall is no reason of a death, and who silences stalls does not mean deaths.
        """
        for each in self.values():
            named = any(one.task == task for one in each.attribution.contributors)
            if named and each.resource.kind is not ResourceKind.STALLED:
                return each
        return None


def updated_pace(
    before_per_s: float,
    slope_per_s: float,
    recent_per_s: float | None,
    passed_s: float,
    saving: bool,
) -> float:
    """
    How fast a resource fills while the training runs.

    A save holds the training up, and with it usually the growth: what is measured during one
    would make the end look farther away than it is. So the pace rises at once and falls
    with a half-life of 10 s, and not at all during a save.

    Args:
        before_per_s: the pace so far.
        slope_per_s: by the trend.
        recent_per_s: over the last seconds; None if not known.
        passed_s: since the pace so far.
        saving: whether a save holds the training up.
    """
    kept = before_per_s if saving else before_per_s * 0.5 ** (max(0.0, passed_s) / _PACE_HALVES_S)
    return max(kept, slope_per_s, recent_per_s or 0.0)


def time_left_s(reading: Reading, pace_per_s: float) -> float:
    """Time to exhaustion at this pace, infinite when nothing grows."""
    if pace_per_s <= 0:
        return float("inf")
    return max(0.0, reading.limit - reading.used) / pace_per_s
