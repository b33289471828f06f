"""Advice for a task whose memory lies in its workers, and for a group that swaps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from watchdog_app.core.explain import advice
from watchdog_app.core.explain.advice import Filling
from watchdog_app.core.model.decisions import Regime
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.resource import SPECS, ResourceKind

GIB = 1 << 30
KEY = "task"


def member(gib, shared_gib=0.0, cow_gib=0.0):
    return SimpleNamespace(
        rss_bytes=int(gib * GIB),
        shared_bytes=int(shared_gib * GIB),
        cow_bytes=int(cow_gib * GIB),
    )


def shortage(*members, kind=ResourceKind.CGROUP, swapped=0.0, agent=True):
    """A task of these processes that grows steadily."""
    task = SimpleNamespace(
        members=members, rss_bytes=sum(each.rss_bytes for each in members), kind="script"
    )
    contributors = (SimpleNamespace(task=KEY),)
    return SimpleNamespace(
        reading=SimpleNamespace(
            key=SimpleNamespace(kind=kind, subject=""),
            swapped=swapped,
            label="x",
            used=3.0 * GIB,
            limit=4.0 * GIB,
            unit="bytes",
        ),
        slope_per_s=0.0,
        regime=Regime.LINEAR,
        attribution=SimpleNamespace(contributors=contributors, mostly_unwatched=False),
        tasks={KEY: task},
        agents={KEY: ()} if agent else {},
        spec=SPECS[kind],
        filling={},
        growth={},
    )


def told(given, per_s=0.0):
    given.swap = SimpleNamespace(in_per_s=per_s, out_per_s=per_s)
    return " ".join(advice.sentences(given))


def test_a_task_whose_workers_hold_its_memory_is_told_so():
    """Its own loop is not to blame: no word of tensors in lists."""
    said = told(shortage(member(0.5), *[member(0.75)] * 4))

    assert "3.00 GiB of 3.50 GiB are in its 4 workers" in said
    assert "fewer workers" in said
    assert "keep float(loss)" not in said


@pytest.mark.parametrize(
    "members",
    [
        (member(3.0), member(0.2), member(0.2)),
        (member(3.0), member(3.0, shared_gib=2.9)),
        (member(3.0), member(3.0, cow_gib=2.9)),  # a fork's pages are its parent's
        (member(3.0),),
    ],
)
def test_workers_that_hold_little_of_their_own_are_not_blamed(members):
    """What they share with the task is no copy."""
    said = told(shortage(*members))

    assert "worker" not in said
    assert "keep float(loss)" in said


def test_one_worker_is_one():
    """The sentence is of one."""
    assert "in its worker, which holds a copy of its own" in told(
        shortage(member(0.5), member(2.0))
    )


def test_a_group_that_swaps_is_told_of_the_group_and_not_of_the_machine():
    """Nobody is to close other programs where the machine has room."""
    said = told(shortage(member(3.0), swapped=1.0 * GIB), 40e6)

    assert said.startswith("The group swaps (38.1 MiB/s read back)")
    assert "The machine is thrashing" not in said
    assert "raise the limit" in said


def test_a_machine_that_thrashes_is_told_of_as_such():
    """By its own resource, and in a group that has nothing in swap."""
    assert told(shortage(member(3.0), kind=ResourceKind.RAM), 40e6).startswith(
        "The machine is thrash"
    )
    assert told(shortage(member(3.0)), 40e6).startswith("The machine is thrashing")


def test_a_task_without_an_agent_is_told_how_to_get_one():
    """In one line, for any framework."""
    assert "watchdog exec -- python" in told(shortage(member(3.0), agent=False))
    assert "no agent" not in told(shortage(member(3.0)))


@pytest.mark.parametrize("regime", [Regime.UNKNOWN, Regime.FLAT, Regime.FALLING])
def test_a_group_that_is_full_and_that_nobody_is_known_to_have_filled_is_not_said_to_grow(regime):
    """It was full when it was first seen: no loop is blamed for it, and no training missed."""
    given = shortage(member(3.0), agent=False)
    given.regime = regime
    given.attribution.contributors = ()

    said = told(given)

    assert "grows" not in said
    assert "watchdog exec" not in said
    assert "The limit belongs to a group" in said


def test_a_buffer_that_fills_is_the_growth():
    """No tensors in lists are looked for beside it."""
    given = shortage(member(3.0))
    given.filling = {KEY: Filling("the shuffle buffer of 100 examples", GIB, 9.0 * GIB)}

    said = told(given)

    assert "Shuffle buffer still filling" in said
    assert "keep float(loss)" not in said


@pytest.mark.parametrize("agent", [True, False])
def test_at_the_limit_of_a_guard_the_words_to_type_come_first(agent):
    """It was started with watchdog exec, and its limit was set nowhere else."""
    given = shortage(member(3.0), agent=agent)
    given.reading.key.kind = ResourceKind.GUARD
    given.reading.used = 3.9 * GIB
    key = ProcessKey(4711, 1)
    given.tasks, given.agents = {key: given.tasks[KEY]}, {key: ()} if agent else {}
    given.attribution.contributors[0].task = key

    said = told(given)

    assert said.startswith("While it runs or is stopped, give it more: watchdog limit 4711 6G")
    assert "watchdog exec" not in said
    assert "belongs to a group" not in said
    assert agent is ("is stopped until you decide" not in said)


def test_growth_that_slows_down_is_a_buffer_or_a_loop_whose_steps_get_slower():
    """A loop that leaks slows down with its steps, on a busy machine for instance."""
    growing = shortage(member(3.0))
    growing.regime = Regime.SATURATING

    assert "keep float(loss) instead of the tensor" in told(growing)
    assert "a shuffle buffer" in told(growing)
