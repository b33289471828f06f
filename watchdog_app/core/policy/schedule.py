"""
When to ask an agent to save, and when to ask again. Each agent has its own schedule.

The first save of an incident is due as soon as the resource asks for one. A death would cost all
work since the last save. The next save is therefore due when the work at stake exceeds the time
that is left. Saves then come at half of the time left, a quarter, an eighth, and finally once a
second. A death loses about a second of work, or one long step. The number of saves grows with the
logarithm of the time.

Three rules limit the cost for a training that stays near its limit. There is at most one save a
second. A budget allows a handful of saves at once, then a tenth of the time. After a failed save
there is a delay. If the policy may pause the task, it does so right after a last save, so no work
is lost.
"""

from __future__ import annotations

from dataclasses import field

from watchdog_app.base.codec import NOT_KEPT
from watchdog_app.base.records import dataclass
from watchdog_app.core.forecast.stages import UNKNOWN_SAVE_S, UNKNOWN_STEP_S
from watchdog_app.core.model.agent import AgentState

_SPACING_S = 1.0  # least time from the end of a save, or from a request, to the next request
_SHARE = 0.1  # share of the time that saves may cost while the resource does not run out
_BURST_SAVES = 12  # log2 of a minute over a second is about 6; the other saves come once a second
_BURST_S = 6.0
# larger budget two seconds before exhaustion at a new peak: no reason to economize
_LAST_BURST_SAVES = 20
_LAST_BURST_S = 30.0
_HOVER_SAVES = 20.0  # multiples of a save's cost between two saves while exhaustion is not near
_HOVER_S = 30.0
# share of the incident's age between two saves; exhaustion that is an hour late is not near
_HOVER_AGE = 0.25
_RETRY_S = 5.0  # wait after a failure; doubled by each further failure
_FRESH_STEPS = 3.0
_FRESH_S = 1.0
_DEADLINE_S = 10.0  # time for an answer; longer if the expected cost times the next factor is more
_DEADLINE_COSTS = 5.0


def save_s(agent: AgentState) -> float:
    """Return the expected seconds of the next save."""
    return UNKNOWN_SAVE_S if agent.save_s is None else max(0.0, agent.save_s)


def step_s(agent: AgentState) -> float:
    """Return the seconds of a step. A save can begin only after the current step."""
    return UNKNOWN_STEP_S if agent.step_s is None else max(0.0, agent.step_s)


def deadline_s(agent: AgentState) -> float:
    """Return how long to wait for an answer, in seconds."""
    return max(_DEADLINE_S, _DEADLINE_COSTS * (save_s(agent) + step_s(agent)))


@dataclass(slots=True)
class CheckpointSchedule:
    """Save requests to one agent and their outcomes. Times are monotonic seconds."""

    # Id of the request that has no outcome yet.
    pending: str | None = field(default=None, metadata=NOT_KEPT)
    asked_mono_s: float = field(default=float("-inf"), metadata=NOT_KEPT)
    expires_mono_s: float = field(default=0.0, metadata=NOT_KEPT)
    # Whether the pending save is the last one before a pause.
    final: bool = field(default=False, metadata=NOT_KEPT)
    saved_mono_s: float | None = None  # time of the newest complete rescue
    # Time of the newest complete rescue that was the last before a pause.
    final_mono_s: float | None = field(default=None, metadata=NOT_KEPT)
    failures: int = 0  # failures since the last successful save
    failed_mono_s: float = 0.0
    spent_s: float = 0.0  # used part of the budget; shrinks with time
    paid_mono_s: float = 0.0  # when `spent_s` was last updated

    @property
    def _newest_mono_s(self) -> float:
        return float("-inf") if self.saved_mono_s is None else self.saved_mono_s

    def observe(self, agent: AgentState, now: float) -> None:
        """
        Record saves that the agent made without a request, and let the budget recover.

        Args:
            agent: current state of the agent.
            now: monotonic seconds.
        """
        self.spent_s = max(0.0, self.spent_s - _SHARE * max(0.0, now - self.paid_mono_s))
        self.paid_mono_s = now
        saved = agent.rescue_mono_s
        if saved is not None and saved > self._newest_mono_s:
            self.saved_mono_s = saved
            self.failures = 0

    def expire(self, now: float) -> str | None:
        """Return the id of a request that got no answer in time. It counts as a failure."""
        if self.pending is None or now < self.expires_mono_s:
            return None
        decision = self.pending
        self.mark_failed(now)
        return decision

    def mark_requested(
        self, decision: str, now: float, agent: AgentState, final: bool = False
    ) -> None:
        """
        Record that a save is requested now.

        Args:
            decision: id of the decision.
            now: monotonic seconds.
            agent: agent that receives the request.
            final: whether the task is paused right after the save.
        """
        self.pending = decision
        self.final = final
        self.asked_mono_s = now
        self.expires_mono_s = now + deadline_s(agent)
        self.spent_s += save_s(agent)

    def mark_saved(self, now: float) -> None:
        """Record that the agent answered with a complete rescue."""
        self.pending = None
        self.failures = 0
        self.saved_mono_s = now
        self.final_mono_s = now if self.final else None

    def mark_failed(self, now: float) -> None:
        """Record that the request was refused, failed, or got no answer."""
        self.pending = None
        self.failures += 1
        self.failed_mono_s = now

    def mark_skipped(self) -> None:
        """Record that the request was never sent. This is not a failure."""
        self.pending = None
        self.asked_mono_s = float("-inf")

    def is_fresh(self, agent: AgentState, now: float) -> bool:
        """
        Whether the newest rescue is at most a few steps old.

        Args:
            agent: agent of the training.
            now: monotonic seconds.
        """
        return now - self._newest_mono_s <= _max_fresh_age_s(agent)

    def ready_for_pause(self, agent: AgentState, now: float) -> bool:
        """
        Whether the rescue is at most one step old, or was the last one before the pause.

        The second condition prevents an endless loop: a daemon that is late after the last save
        must not ask again.

        Args:
            agent: agent of the training.
            now: monotonic seconds.
        """
        if self.final_mono_s is not None and now - self.final_mono_s <= _max_fresh_age_s(agent):
            return True
        return now - self._newest_mono_s <= step_s(agent)

    def is_due(
        self,
        agent: AgentState,
        now: float,
        *,
        since_mono_s: float,
        left_s: float,
        last: bool,
        reach_s: float,
        stalled: bool = False,
    ) -> bool:
        """
        Whether to ask for a save now. Never within a second of the last request or save.

        Args:
            agent: current state of the agent.
            now: monotonic seconds.
            since_mono_s: when the resource first asked for saves. An older rescue does not count.
            left_s: seconds to exhaustion while the training runs; infinite when unknown.
            last: whether strong evidence says that the resource is about to run out. Allows the
                larger budget.
            reach_s: seconds until the next chance to ask.
            stalled: whether the training hardly progresses at the limit. It is then saved again
                after each step.
        """
        if self.pending is not None or agent.saving:
            return False
        if now - max(self.asked_mono_s, self._newest_mono_s) < _SPACING_S:
            return False
        if self.failures and now - self.failed_mono_s < self._retry_s(left_s):
            return False
        if self._newest_mono_s < since_mono_s and not self.is_fresh(agent, now):
            return True
        cost, step = save_s(agent), step_s(agent)
        at_stake = now - self._newest_mono_s
        burst_s, saves = (_LAST_BURST_S, _LAST_BURST_SAVES) if last else (_BURST_S, _BURST_SAVES)
        if self.spent_s + cost > max(burst_s, saves * cost):
            return False
        # If asked in the middle of a step, the agent saves at the end of that step.
        if at_stake + reach_s + step >= left_s:
            return True
        if stalled:
            # Ask if a step has ended since the last rescue. If that is unknown, assume that one
            # has.
            return agent.rescue is None or agent.step is None or agent.step > agent.rescue.step
        return at_stake >= max(_HOVER_S, _HOVER_SAVES * cost, _HOVER_AGE * (now - since_mono_s))

    def _retry_s(self, left_s: float) -> float:
        """Return how long to wait after the last failure before the next request."""
        wait_s: float = _RETRY_S * 2.0 ** min(self.failures - 1, 6)
        # If exhaustion is near, a second try is cheap: that work would be lost anyway.
        return min(wait_s, max(0.5, left_s / 2)) if self.failures == 1 else wait_s


def _max_fresh_age_s(agent: AgentState) -> float:
    return max(_FRESH_S, _FRESH_STEPS * step_s(agent))
