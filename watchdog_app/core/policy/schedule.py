"""
When an agent is asked to save, and when again: one schedule an agent.

The first save of an incident is due as soon as the resource asks for one. A death would cost all
work since the last save. So the next save is due when the work at stake exceeds the time that is
left: at half of the time left, a quarter, an eighth, and then once a second. A death loses about a
second of work, or one long step. The number of saves grows with the logarithm of the time.

Three rules limit the cost for a training that hovers near its limit. There is at most one save a
second. A budget allows a handful of saves at once, then a tenth of the time. After a failed save
there is a pause. Where the policy may pause the task, it does so right after a last save, and
nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from watchdog_app.base.codec import NOT_KEPT
from watchdog_app.core.forecast.stages import UNKNOWN_SAVE_S, UNKNOWN_STEP_S
from watchdog_app.core.model.agent import AgentState

_SPACING_S = 1.0  # from the end of a save, and from a request, to the next request
_SHARE = 0.1  # of the time that saving may cost while the end does not come
_BURST_SAVES = 12  # about log2 of a minute over a second, and some once a second
_BURST_S = 6.0
_LAST_BURST_SAVES = 20  # growing in new territory two seconds before the end: nothing to spare for
_LAST_BURST_S = 30.0
_HOVER_SAVES = 20.0  # between two saves, in multiples of what one costs, with no end in sight
_HOVER_S = 30.0
_HOVER_AGE = 0.25  # ... and of the incident's age: what has not come for an hour is not near
_RETRY_S = 5.0  # after a failure; doubled by each further one
_FRESH_STEPS = 3.0
_FRESH_S = 1.0
_DEADLINE_S = 10.0  # for an answer, or this many times the expected cost
_DEADLINE_COSTS = 5.0


def save_s(agent: AgentState) -> float:
    """What the next save will take."""
    return UNKNOWN_SAVE_S if agent.save_s is None else max(0.0, agent.save_s)


def step_s(agent: AgentState) -> float:
    """What a step takes, and so how long until a save can begin."""
    return UNKNOWN_STEP_S if agent.step_s is None else max(0.0, agent.step_s)


def deadline_s(agent: AgentState) -> float:
    """How long an answer is waited for."""
    return max(_DEADLINE_S, _DEADLINE_COSTS * (save_s(agent) + step_s(agent)))


@dataclass(slots=True)
class CheckpointSchedule:
    """What was asked of one agent and what came of it. Times are monotonic seconds."""

    # The decision that waits for its outcome.
    pending: str | None = field(default=None, metadata=NOT_KEPT)
    asked_mono_s: float = field(default=float("-inf"), metadata=NOT_KEPT)
    expires_mono_s: float = field(default=0.0, metadata=NOT_KEPT)
    # The pending one is the last before a pause.
    final: bool = field(default=False, metadata=NOT_KEPT)
    saved_mono_s: float | None = None  # newest complete rescue that is known
    # The same, of one that was asked for as the last.
    final_mono_s: float | None = field(default=None, metadata=NOT_KEPT)
    failures: int = 0  # since the last save that worked
    failed_mono_s: float = 0.0
    spent_s: float = 0.0  # of the budget; falls with time
    paid_mono_s: float = 0.0  # when `spent_s` was worked out last

    def observe(self, agent: AgentState, now: float) -> None:
        """Take over saves that the agent made without a request, and let the budget recover."""
        self.spent_s = max(0.0, self.spent_s - _SHARE * max(0.0, now - self.paid_mono_s))
        self.paid_mono_s = now
        saved = agent.rescue_mono_s
        if saved is not None and (self.saved_mono_s is None or saved > self.saved_mono_s):
            self.saved_mono_s = saved
            self.failures = 0

    def expire(self, now: float) -> str | None:
        """The decision that was not answered in time; it counts as a failure."""
        if self.pending is None or now < self.expires_mono_s:
            return None
        decision = self.pending
        self.mark_failed(now)
        return decision

    def mark_requested(
        self, decision: str, now: float, agent: AgentState, final: bool = False
    ) -> None:
        """
        A save is requested now; `final`: the task is to be paused right after it.

        Args:
            decision: its id.
            now: monotonic seconds.
            agent: that is asked.
            final: whether the task is paused right after it.
        """
        self.pending = decision
        self.final = final
        self.asked_mono_s = now
        self.expires_mono_s = now + deadline_s(agent)
        self.spent_s += save_s(agent)

    def mark_saved(self, now: float) -> None:
        """The request was answered with a complete rescue."""
        self.pending = None
        self.failures = 0
        self.saved_mono_s = now
        self.final_mono_s = now if self.final else None

    def mark_failed(self, now: float) -> None:
        """The request was refused, failed, or was not answered."""
        self.pending = None
        self.failures += 1
        self.failed_mono_s = now

    def mark_skipped(self) -> None:
        """The request was never sent: nothing failed."""
        self.pending = None
        self.asked_mono_s = float("-inf")

    def is_fresh(self, agent: AgentState, now: float) -> bool:
        """
        A rescue exists that is at most a few steps old.

        Args:
            agent: of the training.
            now: monotonic seconds.
        """
        if self.saved_mono_s is None:
            return False
        return now - self.saved_mono_s <= _max_fresh_age_s(agent)

    def ready_for_pause(self, agent: AgentState, now: float) -> bool:
        """
        The rescue is a step old at most, or it is the last one before the pause.

        The second, because a daemon that is late after that save must not ask for it for ever.
        """
        if self.saved_mono_s is None:
            return False
        if self.final_mono_s is not None and now - self.final_mono_s <= _max_fresh_age_s(agent):
            return True
        return now - self.saved_mono_s <= step_s(agent)

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
        Whether to ask now: never within a second of the last request or save.

        Args:
            agent: as it stands.
            now: monotonic seconds.
            since_mono_s: when the resource first asked for saves; an older rescue does not count.
            left_s: time to exhaustion while the training runs; infinite when unknown.
            last: the very end, on strong evidence: the larger budget.
            reach_s: until the next chance to ask.
            stalled: the training stands still at the limit; it is saved again after each step.
        """
        if self.pending is not None or agent.saving:
            return False
        newest = max(self.asked_mono_s, self.saved_mono_s or float("-inf"))
        if now - newest < _SPACING_S:
            return False
        if self.failures and now - self.failed_mono_s < self._retry_s(left_s):
            return False
        if self.saved_mono_s is None or (
            self.saved_mono_s < since_mono_s and not self.is_fresh(agent, now)
        ):
            return True
        cost, step = save_s(agent), step_s(agent)
        at_stake = now - self.saved_mono_s
        burst_s, saves = (_LAST_BURST_S, _LAST_BURST_SAVES) if last else (_BURST_S, _BURST_SAVES)
        if self.spent_s + cost > max(burst_s, saves * cost):
            return False
        # Asked in the middle of a step, it saves at that step's end.
        if at_stake + reach_s + step >= left_s:
            return True
        if stalled:
            # Whether a step has ended since its last rescue; where that is not known, it may have.
            return agent.rescue is None or agent.step is None or agent.step > agent.rescue.step
        return at_stake >= max(_HOVER_S, _HOVER_SAVES * cost, _HOVER_AGE * (now - since_mono_s))

    def _retry_s(self, left_s: float) -> float:
        """How long nothing is asked after the last failure."""
        wait_s: float = _RETRY_S * 2.0 ** min(self.failures - 1, 6)
        # With the end near a second try costs nothing that would not be lost anyway.
        return min(wait_s, max(0.5, left_s / 2)) if self.failures == 1 else wait_s


def _max_fresh_age_s(agent: AgentState) -> float:
    return max(_FRESH_S, _FRESH_STEPS * step_s(agent))
