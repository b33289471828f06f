"""Growth per step of a loop whose number of steps is known: what is held back, and what is told."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

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


@functools.cache
def ramp(to_mb: float, seconds: float, base_mb: float = 100.0, begins: float = 0.0) -> Growth:
    return lambda t: (base_mb + (to_mb - base_mb) * min(1.0, max(0.0, t - begins) / seconds)) * MB


def steps(seconds: float) -> int:
    return int(seconds / STEP_S)


@functools.cache
def ran(grows: Growth, seconds: float, loop_s: float | None, epoch_s: float = 0.0) -> Training:
    """A training that has run; tests that share one only read it."""
    total, epoch = None if loop_s is None else steps(loop_s), steps(epoch_s) or None
    return Training(grows, total=total, epoch=epoch).run(seconds)


@pytest.mark.parametrize(
    ("to_mb", "seconds"), [(800, 40), (800, 300), (880, 40), (880, 60), (880, 120)]
)
def test_a_ramp_that_ends_with_its_loop_and_fits_is_not_told_of(to_mb: float, seconds: float):
    knowing = ran(ramp(to_mb, seconds), seconds + 40, seconds)

    assert [] == knowing.kinds(DecisionKind.NOTIFY, DecisionKind.PAUSE)


def test_without_a_known_end_such_a_ramp_is_told_of_and_saved_just_the_same():
    """Knowledge holds back the notification alone, never a save."""
    without, knowing = ran(ramp(880, 60), 100, None), ran(ramp(880, 60), 100, 60)

    assert without.warnings, "the case is no case"
    assert without.train.saves
    assert without.train.saves == knowing.train.saves


@pytest.mark.parametrize("seconds", [60, 300])
def test_a_ramp_that_does_not_fit_is_told_of_early_with_both_numbers(seconds: float):
    """The first save and the pause come at the same moments as without knowledge."""
    grows = ramp(1600, seconds)  # full after 0.6 of that time

    without, knowing = ran(grows, 0.65 * seconds, None), ran(grows, 0.65 * seconds, seconds)

    assert without.train.dead or without.train.stopped, "the case is no case"
    assert knowing.warned_s < 0.75 * without.warned_s
    why = knowing.warnings[0].reason
    assert why.startswith("train.py grows by ")
    assert " per step and has " in why
    assert " steps left: needs " in why
    assert " are free" in why
    assert knowing.warnings[0].notification.body.startswith("train.py grows by ")
    first, *_, last = without.train.saves
    assert (first, last) == (knowing.train.saves[0], knowing.train.saves[-1])
    assert len(without.train.saves) == len(knowing.train.saves)
    assert without.kinds(DecisionKind.PAUSE) == knowing.kinds(DecisionKind.PAUSE) != []


def times(machine: Machine) -> list[float]:
    return [each.at_mono_s for each in machine.log]


def test_an_unknown_number_of_steps_changes_nothing():
    class Silent(Training):
        def _agent(self, program: Program) -> AgentState:
            return Machine._agent(self, program)

    without = Silent(ramp(1600, 100), total=None).run(90)

    assert times(without) == times(Training(ramp(1600, 100), total=None, epoch=400).run(90))


def with_leak(grows: Growth, after_s: float, mb_per_s: float) -> Growth:
    return lambda t: grows(t) + max(0.0, t - after_s) * mb_per_s * MB


@pytest.mark.parametrize(
    ("grows", "other_mb_s", "knowledge"),
    [
        pytest.param(
            with_leak(ramp(600, 80), 30, 25), None, {"total": steps(80)}, id="not by its steps"
        ),
        # The agent still reports the finished loop.
        *(
            pytest.param(
                with_leak(ramp(600, 60), 62, rate), None, {"total": steps(60)}, id=f"later, {rate}"
            )
            for rate in (5, 40)
        ),
        *(
            pytest.param(ramp(500, 100), rate, {"total": steps(100)}, id=f"another process, {rate}")
            for rate in (6, 15, 40)
        ),
        # The loop stands still for a validation that does not end: its steps explain nothing.
        pytest.param(
            with_leak(ramp(500, 40), 40, 15),
            None,
            {"total": steps(60), "says": lambda t: {"done": steps(min(int(t), 40.0))}},
            id="without steps",
        ),
        # It fits into the first pass, and too little time would be left after it.
        pytest.param(
            ramp(1300, 90), None, {"total": steps(600), "epoch": steps(55)}, id="in an epoch"
        ),
    ],
)
def test_growth_that_the_steps_do_not_explain_is_told_of_as_ever(
    grows: Growth, other_mb_s: float | None, knowledge: dict[str, Any]
):
    def first(**known: Any) -> float:
        leaks = ramp(100 + 600 * (other_mb_s or 0.0), 600, begins=30)
        others = [Program(200, "other.py", leaks, group="g")] if other_mb_s else []
        machine = Training(grows, *others, **known)
        return machine.run(160, lambda: machine.warnings).warned_s

    without = first(total=None)
    assert without < 160, "the case is no case"
    assert first(**knowledge) <= without + 0.5


def test_growth_before_the_first_step_is_told_of_as_ever():
    without = ran(ramp(1100, 100), 100, None)
    knowing = Training(ramp(1100, 100), total=1000, says=lambda _: {"done": 0}).run(100)

    assert without.warnings, "the case is no case"
    assert knowing.warned_s == without.warned_s


@pytest.mark.parametrize("to_mb", [500, 650])
def test_a_cache_that_fills_in_the_first_of_many_epochs_is_not_told_of(to_mb: float):
    """In all epochs together such growth would need ten times as much."""
    assert [] == ran(ramp(to_mb, 60), 300, 600, 60).kinds(DecisionKind.NOTIFY)


def test_a_leak_through_all_epochs_is_told_of_in_the_second():
    without, knowing = ran(ramp(1600, 300), 195, None), ran(ramp(1600, 300), 100, 300, 30)

    assert 30.0 < knowing.warned_s < 0.5 * without.warned_s
    assert " in this epoch" not in knowing.warnings[0].reason


def test_a_first_epoch_that_does_not_fit_is_told_of_early():
    without, knowing = ran(ramp(1600, 200), 130, None), ran(ramp(1600, 200), 130, 2000, 200)

    assert knowing.warned_s < 0.75 * without.warned_s
    assert " steps left in this epoch: needs " in knowing.warnings[0].reason


def test_a_ramp_that_nearly_fills_the_limit_is_paused_and_saved_as_ever():
    """It ends at 99 %: no margin is left, and nothing is held back."""
    without, knowing = ran(ramp(995, 60), 80, None), ran(ramp(995, 60), 80, 60)

    assert without.warnings, "the case is no case"
    assert knowing.warned_s <= without.warned_s
    assert without.train.saves == knowing.train.saves
    assert without.kinds(DecisionKind.PAUSE) == knowing.kinds(DecisionKind.PAUSE)


def test_three_steps_prove_nothing():
    """Long steps: after three of them neither a warning nor silence follows from their number."""
    long = Training(ramp(1600, 100), total=10, says=lambda t: {"done": int(t / 10.0)}).run(90)

    assert times(ran(ramp(1600, 100), 90, None)) == times(long)


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
