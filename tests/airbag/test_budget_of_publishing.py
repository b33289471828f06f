"""How often a training publishes itself."""

from __future__ import annotations

import time

from watchdog_app.agent.published.budget import Budget


def test_a_table_is_followed_by_a_time_in_which_there_is_none():
    """A dear one by a long time; one that costs nothing by none."""
    free, dear = Budget(), Budget()
    assert free.table_due
    free.table_made(0.0, lasts=False)
    dear.table_made(10.0, lasts=False)

    assert (True, False) == (free.table_due, dear.table_due)


def test_a_table_that_steps_are_told_from_stays_until_it_is_lost():
    """Then there is another at once, where what was spent allows it."""
    budget = Budget()
    budget.table_made(0.0, lasts=True)
    stays = budget.table_due
    budget.lost()

    assert (False, True) == (stays, budget.table_due)


def told_of(budget: Budget, steps: int, cost_s: float) -> int:
    """How many of these steps are told, where one costs that much processor time."""
    told = 0
    for _ in range(steps):
        began = budget.add()
        if began is None:
            continue
        told += 1
        while time.thread_time() - began < cost_s and began:  # the one that is measured
            pass
        budget.added(began)
    return told


def test_steps_that_cost_more_than_their_share_are_not_all_told():
    """Those that cost nothing to speak of are."""
    assert 0 < told_of(Budget(), 1000, 0.01) < 1000


def test_where_no_jump_is_refused_steps_may_cost_more():
    """Of what was saved up before alone: each step takes it as soon as it comes."""
    eager = Budget()
    eager.eager = True

    assert told_of(eager, 1000, 0.002) > told_of(Budget(), 1000, 0.002) > 0
