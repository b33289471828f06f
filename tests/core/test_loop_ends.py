"""Growth per step of a loop whose number of steps is known: what is held back, and what is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from simulation import MB, Machine, Program

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Decision, DecisionKind
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind

STEP_S = 0.05
LIMIT_MB = 1000.0

Growth = Callable[[float], float]


class Training(Machine):
    """A machine with a limited group, in which one training may report the steps of its loop."""

    def __init__(
        self,
        grows: Growth,
        *others: Program,
        total: int | None,
        epoch: int | None = None,
        says: Callable[[float], dict[str, int]] = lambda _: {},
    ) -> None:
        self.train = Program(100, "train.py", grows, STEP_S, save_s=0.1, group="g")
        super().__init__(self.train, *others, groups={"g": LIMIT_MB})
        self._loop, self._says = (total, epoch), says

    def _agent(self, program: Program) -> AgentState:
        told = int(program.ran_s) / STEP_S  # reports come once a second
        done = min(int(told), self._loop[0] or 0)
        more = self._says(program.ran_s)
        total, epoch = self._loop
        left = None if total is None else total - more.pop("done", done)
        loop = {"steps_left": left, "epoch_steps": epoch}
        return replace(super()._agent(program), **{**loop, "phase": "train", **more})

    @property
    def warnings(self) -> list[Decision]:
        return [
            each
            for each in self.log
            if each.kind is DecisionKind.NOTIFY and each.evidence["topic"] == "warning"
        ]

    @property
    def warned_s(self) -> float:
        return self.warnings[0].at_mono_s if self.warnings else float("inf")


def ramp(to_mb: float, seconds: float, base_mb: float = 100.0, begins: float = 0.0) -> Growth:
    return lambda t: (base_mb + (to_mb - base_mb) * min(1.0, max(0.0, t - begins) / seconds)) * MB


def steps(seconds: float) -> int:
    return int(seconds / STEP_S)


@pytest.mark.parametrize("seconds", [40.0, 60.0, 120.0, 300.0])
@pytest.mark.parametrize("to_mb", [800.0, 880.0])
def test_a_ramp_that_ends_with_its_loop_and_fits_is_not_told_of(to_mb: float, seconds: float):
    grows = ramp(to_mb, seconds)

    knowing = Training(grows, total=steps(seconds)).run(seconds + 40)

    assert [] == knowing.kinds(DecisionKind.NOTIFY, DecisionKind.PAUSE)


def test_without_a_known_end_such_a_ramp_is_told_of_and_saved_just_the_same():
    """Knowledge holds back the notification alone, never a save."""
    grows = ramp(880.0, 60.0)

    without = Training(grows, total=None).run(100)
    knowing = Training(grows, total=steps(60.0)).run(100)

    assert without.warnings, "the case is no case"
    assert without.train.saves
    assert without.train.saves == knowing.train.saves


@pytest.mark.parametrize("seconds", [60.0, 120.0, 600.0])
def test_a_ramp_that_does_not_fit_is_told_of_early_with_both_numbers(seconds: float):
    grows = ramp(1600.0, seconds)

    without = Training(grows, total=None).run(seconds)
    knowing = Training(grows, total=steps(seconds)).run(seconds)

    assert without.train.dead or without.train.stopped, "the case is no case"
    assert knowing.warned_s < 0.75 * without.warned_s
    why = knowing.warnings[0].reason
    assert why.startswith("train.py grows by ")
    assert " per step and has " in why
    assert " steps left: needs " in why
    assert " are free" in why
    assert knowing.warnings[0].notification.body.startswith("train.py grows by ")


def test_the_early_warning_saves_and_pauses_nothing():
    """The first save and the pause come at the same moments as without knowledge."""
    grows = ramp(1600.0, 600.0)

    without = Training(grows, total=None).run(600)
    knowing = Training(grows, total=steps(600.0)).run(600)

    first, *_, last = without.train.saves
    assert (first, last) == (knowing.train.saves[0], knowing.train.saves[-1])
    assert len(without.train.saves) == len(knowing.train.saves)
    assert without.kinds(DecisionKind.PAUSE) == knowing.kinds(DecisionKind.PAUSE) != []


def test_an_unknown_number_of_steps_changes_nothing():
    grows = ramp(1600.0, 100.0)

    class Silent(Training):
        def _agent(self, program: Program) -> AgentState:
            return Machine._agent(self, program)

    without = Silent(grows, total=None).run(100)
    knowing = Training(grows, total=None, epoch=400).run(100)

    assert [each.at_mono_s for each in without.log] == [each.at_mono_s for each in knowing.log]


def test_a_leak_faster_than_the_steps_explain_is_told_of_as_ever():
    """From 30 s on a thread of the training takes 25 MB/s, which no step explains."""
    slow = ramp(600.0, 80.0)

    def grows(t: float) -> float:
        return slow(t) + max(0.0, t - 30.0) * 25 * MB

    without = Training(grows, total=None).run(80)
    knowing = Training(grows, total=steps(80.0)).run(80)

    assert without.warnings, "the case is no case"
    assert knowing.warned_s <= without.warned_s + 0.5


@pytest.mark.parametrize("rate_mb", [6.0, 15.0, 40.0])
def test_a_leak_in_another_process_is_told_of_as_ever(rate_mb: float):
    def other() -> Program:
        leaks = ramp(100.0 + 600 * rate_mb, 600.0, begins=30.0)
        return Program(200, "other.py", leaks, group="g")

    grows = ramp(500.0, 100.0)

    without = Training(grows, other(), total=None).run(100)
    knowing = Training(grows, other(), total=steps(100.0)).run(100)

    assert without.warnings, "the case is no case"
    assert knowing.warned_s <= without.warned_s + 0.5


@pytest.mark.parametrize("rate_mb", [5.0, 12.0, 40.0])
def test_a_second_ramp_after_the_loop_is_told_of_as_ever(rate_mb: float):
    """The agent still reports the finished loop."""
    first = ramp(600.0, 60.0)

    def grows(t: float) -> float:
        return first(t) + max(0.0, t - 62.0) * rate_mb * MB

    without = Training(grows, total=None).run(160)
    knowing = Training(grows, total=steps(60.0)).run(160)

    assert without.warnings, "the case is no case"
    assert knowing.warned_s <= without.warned_s + 0.5


def test_growth_without_steps_is_told_of_as_ever():
    """The loop stands still for a validation that does not end: its steps explain nothing."""

    def says(t: float) -> dict[str, int]:
        return {"done": steps(min(int(t), 40.0))}

    def grows(t: float) -> float:
        return ramp(500.0, 40.0)(t) + max(0.0, t - 40.0) * 15 * MB

    without = Training(grows, total=None).run(100)
    knowing = Training(grows, total=steps(60.0), says=says).run(100)

    assert without.warnings, "the case is no case"
    assert knowing.warned_s <= without.warned_s + 0.5


def test_growth_before_the_first_step_is_told_of_as_ever():
    def says(_: float) -> dict[str, int]:
        return {"done": 0}

    grows = ramp(1100.0, 100.0)

    without = Training(grows, total=None).run(100)
    knowing = Training(grows, total=1000, says=says).run(100)

    assert without.warnings, "the case is no case"
    assert knowing.warned_s == without.warned_s


@pytest.mark.parametrize("to_mb", [500.0, 650.0])
def test_a_cache_that_fills_in_the_first_of_many_epochs_is_not_told_of(to_mb: float):
    """In all epochs together such growth would need ten times as much."""
    grows = ramp(to_mb, 60.0)

    knowing = Training(grows, total=steps(600.0), epoch=steps(60.0)).run(300)

    assert [] == knowing.kinds(DecisionKind.NOTIFY)


def test_a_leak_through_all_epochs_is_told_of_in_the_second():
    grows = ramp(1600.0, 600.0)

    without = Training(grows, total=None).run(600)
    knowing = Training(grows, total=steps(600.0), epoch=steps(60.0)).run(600)

    assert 60.0 < knowing.warned_s < 0.5 * without.warned_s
    assert " in this epoch" not in knowing.warnings[0].reason


def test_a_leak_that_the_first_epoch_hides_is_told_of_in_time():
    """Its growth fits into the first pass, and too little time would be left after it."""
    grows = ramp(1300.0, 90.0)  # full 67.5 s after the start

    without = Training(grows, total=None).run(90)
    knowing = Training(grows, total=steps(600.0), epoch=steps(55.0)).run(90)

    assert without.warnings, "the case is no case"
    assert knowing.warned_s <= without.warned_s + 0.5


def test_a_first_epoch_that_does_not_fit_is_told_of_early():
    grows = ramp(1600.0, 200.0)

    without = Training(grows, total=None).run(200)
    knowing = Training(grows, total=steps(2000.0), epoch=steps(200.0)).run(200)

    assert knowing.warned_s < 0.75 * without.warned_s
    assert " steps left in this epoch: needs " in knowing.warnings[0].reason


def test_a_ramp_that_nearly_fills_the_limit_is_paused_and_saved_as_ever():
    """It ends at 99 %: no margin is left, and nothing is held back."""
    grows = ramp(995.0, 60.0)

    without = Training(grows, total=None).run(80)
    knowing = Training(grows, total=steps(60.0)).run(80)

    assert without.warnings, "the case is no case"
    assert knowing.warned_s <= without.warned_s
    assert without.train.saves == knowing.train.saves
    assert without.kinds(DecisionKind.PAUSE) == knowing.kinds(DecisionKind.PAUSE)


def test_three_steps_prove_nothing():
    """Long steps: after three of them neither a warning nor silence follows from their number."""

    def says(t: float) -> dict[str, int]:
        return {"done": int(t / 10.0)}

    grows = ramp(1600.0, 100.0)

    without = Training(grows, total=None).run(90)
    knowing = Training(grows, total=10, says=says).run(90)

    assert [each.at_mono_s for each in without.log] == [each.at_mono_s for each in knowing.log]


class OnCard(Training):
    """The same training, whose memory is that of a GPU's allocator."""

    def readings(self) -> list[Reading]:
        key = ResourceKey(ResourceKind.GPU_ALLOCATOR, "100:GPU:0")
        return [replace(each, key=key, label="GPU 0") for each in super().readings()[1:]]

    def _kill(self) -> None:
        """A full card kills nothing here."""


def test_gpu_memory_is_judged_alike():
    """By the allocator's figures: a ramp that fits, and one that does not."""
    fits, long = ramp(880.0, 60.0), ramp(1600.0, 120.0)

    assert OnCard(fits, total=None).run(100).warnings, "the case is no case"
    assert [] == OnCard(fits, total=steps(60.0)).run(100).warnings
    without = OnCard(long, total=None).run(60)
    knowing = OnCard(long, total=steps(120.0)).run(60)
    assert knowing.warned_s < 0.75 * without.warned_s
    assert "train.py grows by " in knowing.warnings[0].reason
