"""
One open incident of a resource, with all state that the policy keeps for it.

The daemon and its clients see copies, as `model.decisions.Incident`. `base.codec` saves and
restores the state. A new daemon therefore keeps open incidents and cool-downs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace

from watchdog_app.base.codec import NOT_KEPT
from watchdog_app.base.records import dataclass
from watchdog_app.core.model.decisions import (
    Assessment,
    Attribution,
    Expected,
    Incident,
    Problem,
    Regime,
    Stage,
)
from watchdog_app.core.model.machine import ProcessKey, Snapshot
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind

_PACE_HALVES_S = 10.0


@dataclass(slots=True)
class PausedTask:
    """A task that this incident has paused."""

    since_mono_s: float
    headroom: float  # headroom of the resource at the pause
    pace_per_s: float  # how fast the resource filled at the pause
    # since when there has been room again without interruption
    room_since_mono_s: float | None = None
    # Id of the resume decision that has no outcome yet.
    resuming: str | None = field(default=None, metadata=NOT_KEPT)


@dataclass(frozen=True, slots=True)
class LastReport:
    """The last notification to the user."""

    mono_s: float
    stage: Stage
    eta_s: float | None
    facts: frozenset[str] = frozenset()  # facts of a problem
    tasks: frozenset[ProcessKey] = frozenset()  # affected tasks


@dataclass(slots=True)
class OpenIncident(Incident):
    """
    An open incident with the state of the policy.

    Times are monotonic seconds unless the name says otherwise.
    """

    regime: Regime = Regime.UNKNOWN  # kind of the growth over its whole history
    pace_per_s: float = 0.0  # fastest recent growth while no save delays the training
    calm_since_mono_s: float | None = None
    last_report: LastReport | None = None
    paused: dict[ProcessKey, PausedTask] = field(default_factory=dict)
    # Pause decisions that have no outcome yet.
    pausing: dict[str, ProcessKey] = field(default_factory=dict, metadata=NOT_KEPT)
    paused_mono_s: float | None = None  # time of the last pause request
    paused_used: float = 0.0  # use of the resource at that time
    # tasks that the user resumed; they keep running
    overruled: set[ProcessKey] = field(default_factory=set)
    unpausable: set[ProcessKey] = field(default_factory=set)  # tasks whose pause failed
    # main tasks that had an agent when they were blamed
    trained: set[ProcessKey] = field(default_factory=set)

    def update_stage(
        self, stage: Stage, now: float, why: str, rising: bool, regime: Regime = Regime.UNKNOWN
    ) -> None:
        """
        Set the stage of the resource. While the resource is calm, the reason of the danger stays.

        Args:
            stage: current stage of the resource.
            now: monotonic seconds.
            why: reason in words.
            rising: whether the resource still grows.
            regime: kind of the growth.
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
        Set the stage from an assessment of the resource.

        Args:
            assessment: assessment of the resource.
            now: monotonic seconds.
        """
        self.certain |= assessment.is_certain
        stage = max(assessment.stage, Stage.WARN) if assessment.notify else assessment.stage
        rising = assessment.forecast is not None and assessment.stage >= Stage.WARN
        self.update_stage(stage, now, assessment.why, rising, assessment.regime)

    def update_from_problem(self, problem: Problem, now: float) -> None:
        """
        Set the state from a problem of the same key.

        Args:
            problem: current state of the problem.
            now: monotonic seconds.
        """
        self.update_stage(problem.stage, now, problem.why, rising=problem.stage > Stage.OK)
        # empty once the problem is over, because nothing is left to do
        self.advice = problem.advice
        self.device_works = problem.device_works
        if problem.stage > Stage.OK:
            self.work_lost = problem.work_lost
            if problem.tasks:
                self.attribution = Attribution(problem.tasks, 0.0, 0.0)

    def set_attribution(self, attribution: Attribution, expected: Expected | None) -> None:
        """
        Set the tasks to name. If nothing grows, keep the old ones.

        Args:
            attribution: tasks that cause the growth.
            expected: a predicted need. Its task is named if nothing grows.
        """
        if attribution.window_s is not None:
            self.attribution = attribution
        elif expected is not None and expected.contributor is not None:
            self.attribution = Attribution((expected.contributor,), 0.0, 0.0)

    def is_over(self, now: float, settle_s: float) -> bool:
        """
        Whether the resource stayed calm for long enough and no task is paused because of it.

        Args:
            now: monotonic seconds.
            settle_s: least seconds of calm.
        """
        return (
            not self.paused
            and not self.pausing
            and self.calm_since_mono_s is not None
            and now - self.calm_since_mono_s >= settle_s
        )

    def to_incident(self, closed_unix_s: float | None = None) -> Incident:
        """Return a copy in the form that the daemon, its journal and its clients use."""
        stage = self.shown_stage if closed_unix_s is None else Stage.OK
        return replace(self, stage=stage, closed_unix_s=closed_unix_s)

    @property
    def shown_stage(self) -> Stage:
        """The stage to show: PAUSE while a task is paused, even if the resource itself is calm."""
        return Stage.PAUSE if self.paused else self.stage


class Incidents(dict[ResourceKey, OpenIncident]):
    """Open incidents by resource."""

    def open(
        self, key: ResourceKey, label: str, at: Snapshot, new_id: Callable[[], str]
    ) -> OpenIncident:
        """
        Return the open incident of this resource; open one if necessary.

        Args:
            key: key of the resource.
            label: label of the resource.
            at: gives the time.
            new_id: makes an id.
        """
        if key not in self:
            self[key] = OpenIncident(new_id(), key, label, at.unix_s, at.mono_s)
        return self[key]

    def to_incidents(self) -> dict[str, Incident]:
        """Return the incidents by id, oldest first."""
        by_age = sorted(self.values(), key=lambda each: each.opened_mono_s)
        return {each.id: each.to_incident() for each in by_age}

    def find_by_task(self, task: ProcessKey) -> OpenIncident | None:
        """
        Return the first incident that may be the reason for a task's death. None: not found.

        Stall incidents are skipped because a stall does not kill a task. A rule that silences
        stalls must not silence deaths.
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
    Return how fast a resource fills while the training runs.

    A save delays the training and usually its growth. A rate measured during a save would make
    exhaustion seem farther away than it is. The pace therefore rises at once and falls with a
    half-life of 10 s. It does not fall during a save.

    Args:
        before_per_s: previous pace.
        slope_per_s: slope of the trend.
        recent_per_s: rate over the last seconds; None: not known.
        passed_s: seconds since the previous pace.
        saving: whether a save delays the training.
    """
    kept = before_per_s if saving else before_per_s * 0.5 ** (max(0.0, passed_s) / _PACE_HALVES_S)
    return max(kept, slope_per_s, recent_per_s or 0.0)


def time_left_s(reading: Reading, pace_per_s: float) -> float:
    """
    Return the seconds to exhaustion at this pace. Infinite if nothing grows.

    Args:
        reading: current reading of the resource.
        pace_per_s: growth in the resource's unit per second.
    """
    if pace_per_s <= 0:
        return float("inf")
    return max(0.0, reading.limit - reading.used) / pace_per_s
