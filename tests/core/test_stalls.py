"""A training that stops making steps is reported once; nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation import Machine, Program, flat

from watchdog_app.core.diagnosis.stalls import StallProblems
from watchdog_app.core.model.decisions import Observation, Stage
from watchdog_app.core.model.settings import StallSettings

STEP_S = 0.1


class Training:
    """A training that is sampled once a second."""

    def __init__(self, **agent) -> None:
        self.machine = Machine(Program(10, "train.py", flat(100), save_s=1.0))
        program = self.machine.programs[0]
        self.task = self.machine._task(program)
        self.agent = replace(self.machine._agent(program), step_s=STEP_S, step=5, **agent)
        self.agent = replace(self.agent, reported_mono_s=0.0)
        self.stalls = StallProblems()
        self.stalled = False
        self.now = 100.0
        self.cpu_s = 10.0

    def advance(self, seconds: float = 1.0, cores: float = 0.0, every_s: float = 1.0, **agent):
        """Advance the time with these values; return the stalls that were found."""
        self.agent = replace(self.agent, **agent)
        found = []
        end = self.now + seconds
        while self.now < end:
            self.now += every_s
            self.cpu_s += cores * every_s
            task = replace(self.task, cpu_s=self.cpu_s)
            found += self.observe({task.key: task})
        return found

    def observe(self, tasks):
        """Observe these tasks now; return a stall that was not there before."""
        snapshot = replace(self.machine._snapshot(), mono_s=self.now)
        observation = Observation(snapshot, tasks, (), dict.fromkeys(tasks, (self.agent,)))
        problems = [
            each
            for each in self.stalls.observe(observation, StallSettings(), {})
            if each.stage is not Stage.OK
        ]
        before, self.stalled = self.stalled, bool(problems)
        return [] if before else problems


def test_no_step_for_a_minute_is_a_stall_and_is_told_once():
    """It comes neither at once nor twice; the next stall is reported again."""
    training = Training()

    assert [] == training.advance(59)
    (stall,) = training.advance(10)
    assert "no step since step 5 for 1 min 1 s; one takes 100 ms" == stall.why
    assert "train.py has made no step for 61 s" == stall.reason
    assert [] == training.advance(1000)
    assert [] == training.advance(1, step=6)
    # A gap that ended is no measure for the next one, unless the next is much longer.
    assert 1 == len(training.advance(4000))


@pytest.mark.parametrize(
    "agent",
    [
        {"training": False},
        {"saving": True},
        {"phase": "validate"},
        {"phase": "epoch_end"},
        {"phase": "my own word"},
        {"step_s": None},
        {"step": None},
    ],
    ids=str,
)
def test_what_has_a_reason_of_its_own_is_no_stall(agent):
    """A validation, a save, a training that has ended, an agent that has reported nothing."""
    assert [] == Training().advance(3000, **agent)


def test_a_training_that_makes_steps_is_none():
    """The steps may be slow as long as they come."""
    training = Training()

    for step in range(50):
        assert [] == training.advance(50, step=step)


def test_long_steps_are_given_time():
    """The limit is twenty steps."""
    training = Training()

    assert [] == training.advance(190, step_s=10.0)
    assert 1 == len(training.advance(20))


def test_one_that_computes_is_given_ten_times_as_long():
    """It may be a validation that the program did not announce."""
    training = Training()

    assert [] == training.advance(590, cores=1.0)
    (stall,) = training.advance(30, cores=1.0)
    assert "no step since step 5 for 10 min; one takes 100 ms" == stall.why


def test_a_gap_that_was_none_before_is_none_again():
    """The same pause after every epoch belongs to the program."""
    training = Training()
    training.advance(50, step=6)
    training.advance(1, step=7)

    assert [] == training.advance(100)
    assert 1 == len(training.advance(80))


def test_time_in_which_it_was_paused_or_we_did_not_look_does_not_count():
    """After a stop the daemon sees old reports first."""
    training = Training()
    training.advance(50)
    stopped = replace(training.task.members[0], state="T")
    running = training.task
    training.task = replace(running, members=(stopped,))
    assert [] == training.advance(500)
    training.task = running

    assert [] == training.advance(50)
    assert [] == training.advance(500, every_s=500)
    assert [] == training.advance(5)
    assert 1 == len(training.advance(20))


def test_a_break_of_the_connection_is_no_long_step():
    """Steps of that time are not seen, so they do not delay the next report."""
    training = Training()
    training.advance(10)
    task = training.task
    for _ in range(25):
        training.now += 1.0
        snapshot = replace(training.machine._snapshot(), mono_s=training.now)
        away = Observation(snapshot, {task.key: task}, (), {})
        assert [] == list(training.stalls.observe(away, StallSettings(), {}))
    training.agent = replace(training.agent, step=500)

    assert [] == training.advance(60)
    assert 1 == len(training.advance(5))


def test_what_has_ended_is_forgotten():
    """The memory is bounded by the number of agents."""
    training = Training()
    training.advance(50)

    training.observe({})

    assert {} == training.stalls._trainings
