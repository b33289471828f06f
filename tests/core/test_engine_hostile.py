"""Under any input the engine raises nothing, pauses no save and does not flood the user."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from simulation import MB, UID, WALL_S, Machine, Program, flat

from watchdog_app.core.model.decisions import DecisionKind, Outcome, OutcomeStatus
from watchdog_app.core.model.machine import TaskKind
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.policy.engine import Engine

# A guard is a group under another name; without it the recorded worlds stay the same.
# Kinds that came later would change the recorded sequence of random choices.
KINDS = [kind for kind in ResourceKind if kind not in (ResourceKind.GUARD, ResourceKind.WALLTIME)]


def wild_program(chance: random.Random, pid: int) -> Program:
    size = chance.choice([0.0, 100.0, 5000.0])
    rate = chance.choice([0.0, -5.0, 20.0, 500.0])
    return Program(
        pid,
        chance.choice(["a.ipynb", "", "\x1b[2J", "b" * 300, "--help"]),
        lambda t: max(0.0, size + rate * t * chance.random()) * MB,
        step_s=chance.choice([0.001, 0.05, 10.0]),
        save_s=chance.choice([None, 0.0, 0.3, 20.0]),
        uid=chance.choice([UID, 0]),
        kind=chance.choice(list(TaskKind)),
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_wild_machine_never_breaks_the_engine(seed):
    """Limits of zero, stopped clocks, tasks that come and go, outcomes in any order."""
    chance = random.Random(seed)
    machine = Machine()
    engine = Engine(Settings(), UID)
    now, ids, waiting = 0.0, set(), []
    for index in range(300):
        now += chance.choice([0.0, 0.1, 0.1, 1.0, 100.0])
        if chance.random() < 0.2:
            machine.programs = [wild_program(chance, 10 + n) for n in range(chance.randrange(5))]
        for program in machine.programs:
            program.ran_s += 0.1
            program.stopped = chance.random() < 0.1
            program.saving_until = 1.0 if chance.random() < 0.1 else None
        machine.now = now
        tasks = [machine._task(program) for program in machine.programs]
        agents = {p.key: machine._agent(p) for p in machine.programs if p.save_s is not None}
        if chance.random() < 0.3:
            agents = {
                key: replace(agent, save_s=None, step_s=None, training=chance.random() < 0.5)
                for key, agent in agents.items()
            }
        readings = []
        for n, kind in enumerate(chance.sample(KINDS, 4)):
            used = chance.choice([0.0, 1.0, 900.0 + index, 1200.0, 1e18]) * MB
            limit = chance.choice([0.0, 1000.0 + n, 1200.0]) * MB
            # its unit, listed once so that the random draws stay the same
            chance.choice(["bytes", "ratio", "celsius"])
            fatal = chance.random() < 0.7
            key, hit = ResourceKey(kind, str(n)), tuple(task.key for task in tasks)
            readings.append(Reading(key, "x\n\x1b", used, limit, fatal, hit))

        result = engine.tick(machine._snapshot(), tasks, readings, agents)

        assert {task.key for task in tasks} == set(result.tasks)
        for decision in result.decisions:
            assert decision.id not in ids
            ids.add(decision.id)
            task = next((each for each in tasks if each.key == decision.task), None)
            agent = agents.get(decision.task) if decision.task else None
            engine.is_still_valid(decision, readings)
            if decision.kind is DecisionKind.NOTIFY:
                assert decision.notification.title
            if decision.kind is DecisionKind.PAUSE:
                assert task.uid == UID
                assert task.kind is not TaskKind.SERVER
                assert agent is None or not agent.saving
            waiting.append(decision.id)
        chance.shuffle(waiting)
        while waiting and chance.random() < 0.8:
            status = chance.choice(list(OutcomeStatus))
            engine.record(Outcome(waiting.pop(), status, WALL_S + now, 0.1, "x", {"kind": "y"}))
        if chance.random() < 0.05:
            state = engine.dump()
            engine = Engine(Settings(), UID)
            engine.load(state, now, WALL_S + now)


def test_a_hundred_idle_tasks_make_no_decision():
    """At rest the engine decides nothing and samples at the configured interval."""
    machine = Machine(*(Program(n, f"{n}.ipynb", flat(100)) for n in range(10, 110)))

    machine.run(30)

    assert [] == machine.log
    assert Settings().watch.interval_s == machine.result.next_sample_s


def leaking_program(chance: random.Random, pid: int) -> Program:
    base, rate = chance.choice([100.0, 600.0]), chance.choice([0.0, 2.0, 20.0, 120.0])
    return Program(
        pid,
        f"{pid}.ipynb",
        lambda t: (base + rate * t) * MB,
        step_s=chance.choice([0.01, 0.05, 1.0]),
        save_s=chance.choice([None, 0.05, 1.0]),
        fails=chance.random() < 0.2,
        deaf=chance.random() < 0.1,
        uid=UID if chance.random() < 0.8 else UID + 1,
        kind=chance.choice([TaskKind.NOTEBOOK, TaskKind.SCRIPT, TaskKind.SERVER]),
        group=chance.choice(["g", "h"]),
        starts_s=chance.choice([0.0, 15.0]),
    )


@pytest.mark.parametrize("seed", range(20))
def test_leaks_of_every_sort_end_in_order(seed):
    """Chance interferes: limits move, tasks are stopped, resumed and killed by hand."""
    chance = random.Random(seed)
    programs = [leaking_program(chance, 10 + n) for n in range(chance.randrange(1, 5))]
    machine = Machine(
        *programs, groups={"g": 2000, "h": 3000}, ram_mb=chance.choice([4000, 64_000])
    )
    machine.refuse = {kind for kind in (DecisionKind.PAUSE, DecisionKind.RESUME)
                      if chance.random() < 0.15}  # fmt: skip
    for _ in range(40):
        machine.run(4.0)  # asserts that no save is paused and none is requested twice
        program = chance.choice(programs)
        meddling = chance.random()
        if meddling < 0.05:
            program.stopped = not program.stopped
        elif meddling < 0.10:
            machine.groups[program.group] *= chance.choice([0.9, 1.5, 4.0])
        elif meddling < 0.12:
            program.dead = True

    by_key = {program.key: program for program in programs}
    for decision in machine.log:
        if decision.kind is DecisionKind.PAUSE:
            assert by_key[decision.task].uid == UID
            assert by_key[decision.task].kind is not TaskKind.SERVER
            assert decision.evidence["share"] >= 0.2
    assert len(machine.kinds(DecisionKind.NOTIFY)) < 40
    for program in programs:
        assert len(program.saves) * (program.save_s or 0.0) < 0.1 * 160 + 30 + 10


def test_a_notification_that_cannot_be_worded_costs_no_save_and_no_pause(monkeypatch):
    """The decision stays, without a text, and the daemon reports that the text failed."""

    def broken(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr("watchdog_app.core.policy.reporting.notification", broken)
    leak = Program(10, "train.ipynb", lambda t: (300 + 40 * t) * MB, save_s=0.1, group="g")
    machine = Machine(leak, groups={"g": 1000}).run(60)

    kinds = {each.kind for each in machine.log}
    assert {DecisionKind.NOTIFY, DecisionKind.CHECKPOINT, DecisionKind.PAUSE} <= kinds
    assert {None} == {each.notification for each in machine.log}
