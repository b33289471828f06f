"""When an agent is asked to save, compared with a recording, for each combination of figures."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from support import decisions

from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.policy.schedule import CheckpointSchedule, deadline_s

NOW_S = 10_000.0
AT_STAKE_S = (0.9, 1.0, 2.9, 3.1, 6.0, 12.0, 29.9, 30.0, 60.0, 110.0)
LEFT_S = (0.5, 6.0, 40.0, float("inf"))
AGES_S = (5.0, 100.0, 250.0, 500.0)  # of the incident
SPENT_S = (0.0, 5.5, 9.0, 28.0)
COSTS = [(None, None), (0.05, 0.05), (0.5, 1.0), (1.6, 0.3), (6.0, 2.0)]


def agent(save_s: float | None, step_s: float | None) -> AgentState:
    return AgentState(
        ProcessKey(1, 1), "keras", "/r", training=True, save_s=save_s, step_s=step_s, step=100
    )


def due(
    known: CheckpointSchedule, view: AgentState, age_s: float, left_s: float, last: bool
) -> bool:
    return known.is_due(
        view, NOW_S, since_mono_s=NOW_S - age_s, left_s=left_s, last=last, reach_s=0.1
    )


@pytest.mark.parametrize("costs", COSTS, ids=str)
def test_a_save_is_due_at_the_same_moments_as_before(
    costs: tuple[float | None, float | None],
) -> None:
    view = agent(*costs)
    for at_stake_s, left_s, spent_s in product(AT_STAKE_S, LEFT_S, SPENT_S):
        known = CheckpointSchedule(saved_mono_s=NOW_S - at_stake_s, spent_s=spent_s)
        found = [
            f"{age_s:.0f}{' last' * last}"
            for age_s, last in product(AGES_S, (False, True))
            if due(known, view, age_s, left_s, last)
        ]
        if found:
            of = f"{at_stake_s} s at stake, {left_s} s left, {spent_s} s spent"
            decisions.note({"of": of, "due": ", ".join(found)})


@pytest.mark.parametrize("costs", COSTS, ids=str)
def test_a_failure_is_tried_again_at_the_same_moments_as_before(
    costs: tuple[float | None, float | None],
) -> None:
    view = agent(*costs)
    decisions.note({"deadline_s": deadline_s(view)})
    for failures, left_s in product((1, 2, 3, 8), (0.5, 3.0, 8.0, 60.0)):
        found = []
        for passed_s in (0.4, 0.6, 1.4, 1.6, 3.9, 4.1, 5.0, 9.9, 10.0, 19.9, 20.0, 319.0, 320.0):
            known = CheckpointSchedule(failures=failures, failed_mono_s=NOW_S - passed_s)
            found += [passed_s] if due(known, view, 5.0, left_s, False) else []
        decisions.note({"failures": failures, "left_s": left_s, "due_after_s": found})


@pytest.mark.parametrize("costs", COSTS, ids=str)
def test_a_rescue_counts_as_fresh_as_before(costs: tuple[float | None, float | None]) -> None:
    view = agent(*costs)
    for age_s in (0.0, 0.1, 0.4, 0.9, 1.0, 1.1, 2.0, 2.9, 3.0, 3.1, 6.0, 6.1):
        for final_s in (None, age_s, age_s + 2.0):
            known = CheckpointSchedule(
                saved_mono_s=NOW_S - age_s,
                final_mono_s=None if final_s is None else NOW_S - final_s,
            )
            decisions.note(
                {
                    "age_s": age_s,
                    "final_s": final_s,
                    "fresh": known.is_fresh(view, NOW_S),
                    "may_pause": known.ready_for_pause(view, NOW_S),
                    "before_the_incident": due(known, view, 0.0, 0.5, True),
                }
            )


def test_a_stalled_training_is_saved_after_each_step_as_before() -> None:
    for step, rescued, at_stake_s in product((None, 99, 100, 101), (None, 100), (0.9, 1.1)):
        rescue = None if rescued is None else RescueRecord("/r", rescued, 1, 1.0, 0.0)
        view = replace(agent(0.1, 0.1), step=step, rescue=rescue)
        known = CheckpointSchedule(saved_mono_s=NOW_S - at_stake_s)
        asked = known.is_due(
            view, NOW_S, since_mono_s=NOW_S - 50, left_s=90, last=False, reach_s=0, stalled=True
        )
        decisions.note({"of": f"{step} {rescued} {at_stake_s}", "due": asked})


def test_the_budget_is_spent_and_falls_as_before() -> None:
    known, view, times = CheckpointSchedule(), agent(2.0, 0.5), []
    for tenth in range(3000):
        now = NOW_S + tenth / 10
        known.observe(view, now)
        expired = known.expire(now)
        if known.is_due(view, now, since_mono_s=NOW_S, left_s=5.0, last=False, reach_s=0.1):
            known.mark_requested(str(tenth), now, view)
            times.append(round(now - NOW_S, 1))
        elif known.pending is not None and int(known.pending) % 7 and now >= known.asked_mono_s + 2:
            known.mark_saved(now)
        if tenth % 100 == 0 or expired:
            decisions.note({"t": now, "spent_s": known.spent_s, "expired": expired})
    decisions.note({"asked": times})
