"""A stalled training is one incident: inspected, reported once, closed when it continues."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation import Machine, Program, flat

from watchdog_app.core.explain import status
from watchdog_app.core.model.agent import (
    Frame,
    ProcessThreads,
    RescueRecord,
    ThreadDump,
    ThreadState,
)
from watchdog_app.core.model.settings import ActionSettings, RuleSettings, Settings, StallSettings
from watchdog_app.core.policy.engine import Engine
from watchdog_app.daemon.status import incident as record_of

SETTINGS = Settings(stalls=StallSettings(idle_s=10.0))
QUEUE = Frame("/usr/lib/python3.11/queue.py", 171, "get")
STEP = Frame("/home/me/train.py", 42, "batches")


class Stalled:
    """One training under an engine, sampled once a second."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.machine = Machine(Program(10, "train.py", flat(100), save_s=1.0), settings=settings)
        self.program = self.machine.programs[0]
        agent = self.machine._agent(self.program)
        self.agent = replace(agent, step_s=0.1, step=200, reported_mono_s=0.0)
        self.there = self.connected = True
        self.engine: Engine = self.machine.engine
        self.decisions = []
        self.closed = []
        self.wanted = []

    def advance(self, seconds: float = 1.0, **agent):
        """Advance the time; return the last tick."""
        self.agent = replace(self.agent, **agent)
        for _ in range(int(seconds)):
            self.machine.now += 1.0
            tasks = [self.machine._task(self.program)] if self.there else []
            views = {self.agent.key: self.agent} if self.there and self.connected else {}
            tick = self.engine.tick(
                self.machine._snapshot(),
                tasks,
                self.machine.readings() if self.there else (),
                views,
            )
            self.decisions += tick.decisions
            self.closed += tick.closed
            self.wanted += [(self.machine.now, key) for key in tick.stalled]
        return tick

    def show(self, *frames: Frame) -> None:
        """Give the engine a dump of the training's threads."""
        thread = ThreadState(
            10, "MainThread", "S", "futex_do_wait", frames=frames or (QUEUE, STEP), trains=True
        )
        program = ProcessThreads(10, 1, "python", "S", (thread,), 1, agent=True)
        self.engine.add_thread_dump(self.machine._task(self.program), ThreadDump((program,), True))


def test_it_is_opened_looked_into_and_told_once():
    """The notice waits for the thread dump, and names the most likely cause."""
    training = Stalled()
    tick = training.advance(12)
    (incident,) = tick.incidents
    assert ("stalled", "train.py is stalled") == (incident.resource.kind.value, incident.label)
    assert [(training.machine.now, training.agent.key)] == training.wanted
    assert [] == training.decisions

    training.show()
    assert training.engine.wants_tick
    tick = training.advance(1)

    (decision,) = training.decisions
    (incident,) = tick.incidents
    said = decision.notification
    assert incident.id == said.incident
    assert "Most likely it waits for a queue that no thread fills" in said.body
    assert "queue.py:171 in get" in said.body
    assert said.body.endswith("watchdog stacks train.py")
    assert "no step since step 200" in incident.why
    assert "Most likely it waits for a queue" in incident.why
    assert incident.advice
    told = status.describe_incident(record_of(incident), incident.opened_unix_s + 2.0)
    assert "train.py is stalled: warning, noticed 2.0 s ago." in told
    assert told.endswith("See what each thread does: watchdog stacks train.py")
    assert "of the growth" not in told

    tick = training.advance(59)
    assert 1 == len(training.decisions)
    assert 2 == len(training.wanted), "it is looked into again after a minute"


def test_without_anybody_who_looks_it_is_told_all_the_same():
    """
    On another system or in a replay, the notice comes after some seconds with the known facts.
    """
    training = Stalled()
    training.advance(11)
    assert [] == training.decisions

    training.advance(7)

    (decision,) = training.decisions
    said = decision.notification
    assert ("Stalled: train.py", "normal") == (said.title, said.urgency)
    assert "since step 200" in said.body
    assert "Most likely" not in said.body
    assert "watchdog stacks train.py" in said.body
    assert ["snooze", "show"] == [each.key for each in said.actions]


def test_what_is_not_known_is_said_to_be_not_known():
    """The notice gives the place and does not guess."""
    training = Stalled()
    training.advance(12)
    training.show(Frame("/home/me/train.py", 9, "own_wait"))
    thread = ThreadState(10, "MainThread", "S", "hrtimer_nanosleep", frames=(STEP,), trains=True)
    program = ProcessThreads(10, 1, "python", "S", (thread,), 1, agent=True)
    training.engine.add_thread_dump(
        training.machine._task(training.program), ThreadDump((program,), True)
    )

    (incident,) = training.advance(1).incidents

    assert incident.why.endswith("Why is not known; it is at train.py:42 in batches")
    assert () == incident.advice


def test_it_is_over_with_the_next_step_and_that_is_told():
    """A second notice replaces the first."""
    training = Stalled()
    training.advance(12)
    training.show()
    training.advance(5)

    tick = training.advance(1, step=201)

    assert () == tick.incidents
    (closed,) = training.closed
    assert closed.closed_unix_s is not None
    first, over = training.decisions
    assert first.incident == over.incident
    said = over.notification
    assert ("Continues: train.py", "resolved") == (said.title, said.topic)
    assert "It makes steps again, and is at step 201." == said.body


@pytest.mark.parametrize("way", ["task", "training", "agent"])
def test_what_has_ended_is_closed_without_a_word(way):
    """A death has its own notice; an intended end has none."""
    training = Stalled()
    training.advance(12)
    training.show()
    training.advance(1)
    if way == "task":
        training.there = False
    elif way == "agent":
        training.connected = False

    training.advance(35, training=way != "training")

    assert 1 == len(training.closed)
    assert 1 == len(training.decisions)


def test_a_connection_that_breaks_for_a_moment_does_not_end_it():
    """The agent reconnects, and has not reported anything at first."""
    training = Stalled()
    training.advance(12)
    training.show()
    training.advance(1)
    training.connected = False
    training.advance(10)
    training.connected = True

    training.advance(1, step=None, training=False, reported_mono_s=None)
    tick = training.advance(2, step=200, training=True, reported_mono_s=1.0)

    assert [] == training.closed
    assert 1 == len(tick.incidents)


def test_another_daemon_goes_on_with_it_and_does_not_tell_it_twice():
    """It learns the training's step, and closes the incident when the training moves."""
    training = Stalled()
    training.advance(12)
    training.show()
    training.advance(1)
    state = training.engine.dump()
    engine = Engine(SETTINGS, own_uid=0)
    engine.load(state, training.machine.now, training.machine.now + 1.6e9)
    training.engine = engine

    tick = training.advance(30)
    assert 1 == len(tick.incidents)
    assert 1 == len(training.decisions)
    training.show()
    training.advance(1, step=201)

    assert 1 == len(training.closed)
    assert "makes steps again" in training.decisions[1].reason


def test_another_daemon_measures_the_processor_time_from_its_start():
    """The task's whole processor time is no sign that it computes now; the advice stays."""
    training = Stalled()
    sampled = training.machine._task
    training.machine._task = lambda program: replace(sampled(program), cpu_s=36_000.0)
    training.advance(12)
    training.show()
    (before,) = training.advance(1).incidents
    engine = Engine(SETTINGS, own_uid=0)
    engine.load(training.engine.dump(), training.machine.now, training.machine.now + 1.6e9)
    training.engine = engine

    (restored,) = training.advance(1).incidents
    assert before.advice
    assert before.advice == restored.advice

    training.advance(11)
    training.show()
    (incident,) = training.advance(1).incidents
    assert "no step since step 200 for 11 s" in incident.why
    assert "Most likely it waits for a queue" in incident.why


@pytest.mark.parametrize(
    ("changes", "protecting"),
    [
        ({"rules": (RuleSettings(resource="stalled", notify=False),)}, True),
        ({"actions": ActionSettings(notify=False)}, True),
        ({}, False),
    ],
    ids=["by a rule", "by the switch", "while protection is off"],
)
def test_stalls_can_be_silenced_and_the_incident_is_there_all_the_same(changes, protecting):
    """The switches work as for every other kind of resource."""
    training = Stalled(replace(SETTINGS, **changes))
    training.engine.protecting = protecting

    tick = training.advance(30)

    assert 1 == len(tick.incidents)
    assert [] == training.decisions


def test_nobody_is_saved_or_paused_on_its_account():
    """A save needs a step, and there is none."""
    training = Stalled()
    training.agent = replace(training.agent, rescue=RescueRecord("/r", 1, 1, 1.0, 1.0))
    training.advance(200)

    assert {"notify"} == {each.kind.value for each in training.decisions}
