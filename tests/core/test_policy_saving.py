"""When an agent is asked to save again: by the work at stake, within a budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from watchdog_app.core.forecast.stages import UNKNOWN_SAVE_S, UNKNOWN_STEP_S
from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.policy.schedule import CheckpointSchedule, deadline_s

AGENT = AgentState(ProcessKey(1, 1), "keras", "/r", training=True, step_s=0.1, save_s=0.5)
INF = float("inf")


def due(schedule: CheckpointSchedule, now: float, left_s: float, **changes) -> bool:
    values = {"since_mono_s": 100.0, "last": False, "reach_s": 0.1}
    agent = changes.pop("agent", AGENT)
    return schedule.is_due(agent, now, left_s=left_s, **{**values, **changes})


def test_the_first_save_of_an_incident_is_due_at_once():
    """A rescue of an earlier incident does not count; a rescue from a moment ago does."""
    assert due(CheckpointSchedule(), 100.0, INF)
    assert due(CheckpointSchedule(saved_mono_s=50.0), 100.0, INF)
    assert not due(CheckpointSchedule(saved_mono_s=99.9), 100.0, 60.0)


@pytest.mark.parametrize(
    ("at_stake", "left", "expected"),
    [
        (10.0, 30.0, False),
        (29.9, 30.0, True),  # with the reach of a tick and a step
        (31.0, 30.0, True),
        (0.9, 0.2, False),  # the very end: once a second
        (1.0, 0.2, True),
        (1.0, 1.5, False),
        (29.0, INF, False),
        (34.0, INF, True),  # no end in sight: now and then
    ],
)
def test_a_save_is_due_when_the_work_at_stake_is_worth_the_time_left(at_stake, left, expected):
    """The next save is due after half of the time left, then a quarter, an eighth."""
    schedule = CheckpointSchedule(saved_mono_s=200.0)

    assert expected is due(schedule, 200.0 + at_stake, left)


def test_nothing_is_asked_while_a_save_is_pending_or_under_way():
    """An agent has at most one request at a time."""
    asked = CheckpointSchedule(pending="d1")

    assert not due(asked, 100.0, 0.1)
    assert not due(CheckpointSchedule(), 100.0, 0.1, agent=replace(AGENT, saving=True))


def test_a_request_without_an_answer_is_a_failure_after_its_deadline():
    """It is not a failure before the deadline."""
    schedule = CheckpointSchedule()
    schedule.mark_requested("d1", 100.0, AGENT)

    assert schedule.expire(100.0 + deadline_s(AGENT) - 0.1) is None
    assert "d1" == schedule.expire(100.0 + deadline_s(AGENT))
    assert 1 == schedule.failures
    assert schedule.expire(1000.0) is None


def test_saves_cost_a_tenth_of_the_time_at_most_while_no_end_comes():
    """A few at once, then the budget: saves near the limit must not stop the training."""
    schedule = CheckpointSchedule(saved_mono_s=100.0)
    now, saves = 100.0, 0
    while now < 1100.0:
        schedule.observe(AGENT, now)
        if due(schedule, now, 0.1):
            schedule.mark_requested(f"d{saves}", now, AGENT)
            now += AGENT.save_s
            schedule.mark_saved(now)
            saves += 1
        now += 0.1

    assert 0.5 * saves <= 0.1 * 1000 + 7


def test_a_save_that_the_agent_made_by_itself_counts():
    """The newest rescue counts, whichever side started it."""
    schedule = CheckpointSchedule(failures=3)

    schedule.observe(replace(AGENT, rescue_mono_s=150.0), 151.0)

    assert (150.0, 0) == (schedule.saved_mono_s, schedule.failures)


def test_a_request_that_was_never_sent_delays_no_save():
    """It was skipped because the danger had passed; the danger may return at the next sample."""
    schedule = CheckpointSchedule()
    schedule.mark_requested("d1", 100.0, AGENT)

    schedule.mark_skipped()

    assert due(schedule, 100.1, 5.0)


@pytest.mark.parametrize(
    ("failures", "left_s", "wait_s"),
    [
        (1, 60.0, 5.0),
        (1, 4.0, 2.0),  # the end is near, and the work would be lost anyway
        (1, 0.4, 0.5),
        (2, 0.4, 10.0),  # a second failure waits even then
        (3, 60.0, 20.0),
        (7, 60.0, 320.0),
        (8, 60.0, 320.0),
    ],
)
def test_each_failure_doubles_the_wait(failures, left_s, wait_s):
    schedule = CheckpointSchedule(failures=failures, failed_mono_s=100.0)

    assert not due(schedule, 100.0 + wait_s - 0.01, left_s)
    assert due(schedule, 100.0 + wait_s, left_s)


def test_a_save_ends_a_series_of_failures():
    schedule = CheckpointSchedule(failures=3, failed_mono_s=100.0)

    schedule.mark_saved(101.0)

    assert (0, 101.0, None) == (schedule.failures, schedule.saved_mono_s, schedule.pending)
    assert due(schedule, 102.0, 0.2)


@pytest.mark.parametrize(
    ("last", "save_s", "budget_s"),
    [(False, 0.1, 6.0), (False, 2.0, 24.0), (True, 0.1, 30.0), (True, 2.0, 40.0)],
)
def test_the_budget_is_larger_at_the_end_and_for_slow_saves(last, save_s, budget_s):
    """A dozen saves or six seconds; at the very end 20 saves or half a minute."""
    agent = replace(AGENT, save_s=save_s)
    for spent_s, expected in ((budget_s - save_s, True), (budget_s - save_s + 0.01, False)):
        schedule = CheckpointSchedule(saved_mono_s=200.0, spent_s=spent_s)
        assert expected is due(schedule, 205.0, 0.2, last=last, agent=agent)


def test_the_budget_is_spent_by_requests_and_recovers_with_time():
    schedule = CheckpointSchedule(paid_mono_s=100.0)
    schedule.mark_requested("d1", 100.0, replace(AGENT, save_s=3.0))
    spent = [schedule.spent_s]
    for now in (110.0, 200.0):
        schedule.observe(AGENT, now)
        spent.append(schedule.spent_s)

    assert [3.0, 2.0, 0.0] == spent


@pytest.mark.parametrize(
    ("save_s", "age_s", "between_s"), [(0.5, 60.0, 30.0), (3.0, 60.0, 60.0), (0.5, 400.0, 100.0)]
)
def test_without_an_end_in_sight_saves_are_seldom(save_s, age_s, between_s):
    """Half a minute, 20 times their cost, or a quarter of the incident's age."""
    agent = replace(AGENT, save_s=save_s)
    for at_stake_s, expected in ((between_s - 0.1, False), (between_s, True)):
        schedule = CheckpointSchedule(saved_mono_s=1000.0 - at_stake_s)
        assert expected is due(schedule, 1000.0, INF, agent=agent, since_mono_s=1000.0 - age_s)


@pytest.mark.parametrize(
    ("step", "rescued", "at_stake_s", "expected"),
    [
        (101, 100, 1.0, True),
        (100, 100, 1.0, False),
        (101, 100, 0.9, False),
        (None, 100, 1.0, True),  # unknown
        (100, None, 1.0, True),
    ],
)
def test_a_stalled_training_is_saved_after_each_step(step, rescued, at_stake_s, expected):
    rescue = None if rescued is None else RescueRecord("/r", rescued, 1, 1.0, 0.0)
    agent = replace(AGENT, step=step, rescue=rescue)
    schedule = CheckpointSchedule(saved_mono_s=200.0)

    assert expected is due(schedule, 200.0 + at_stake_s, 90.0, agent=agent, stalled=True)


@pytest.mark.parametrize(
    ("step_s", "fresh_s"), [(0.1, 1.0), (1.0, 3.0), (None, 3 * UNKNOWN_STEP_S)]
)
def test_a_rescue_is_fresh_for_a_second_or_three_steps(step_s, fresh_s):
    """A fresh one of before the incident counts, and so does one before a pause."""
    agent, fresh_s = replace(AGENT, step_s=step_s), max(1.0, fresh_s)
    for age_s, expected in ((fresh_s, True), (fresh_s + 0.01, False)):
        schedule = CheckpointSchedule(saved_mono_s=200.0 - age_s)
        final = CheckpointSchedule(final_mono_s=200.0 - age_s)

        assert expected is schedule.is_fresh(agent, 200.0)
        assert expected is final.ready_for_pause(agent, 200.0)
        assert expected is not due(schedule, 200.0, 60.0, agent=agent, since_mono_s=200.0)


@pytest.mark.parametrize(
    ("save_s", "step_s", "expected"),
    [(0.5, 0.1, 10.0), (2.0, 1.0, 15.0), (None, None, 5 * (UNKNOWN_SAVE_S + UNKNOWN_STEP_S))],
)
def test_an_answer_may_take_five_times_the_expected_cost(save_s, step_s, expected):
    assert max(10.0, expected) == deadline_s(replace(AGENT, save_s=save_s, step_s=step_s))
