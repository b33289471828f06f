"""Counters of a step that failed: two earlier readings tell how to undo them, or they stay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from watchdog_app.agent.oom.fit import StepCounters, failed_in_fetch
from watchdog_app.agent.state.rows import MODEL, OPTIMIZER


@dataclass
class Number:
    """A variable without a place in memory."""

    group: str
    row: tuple
    value: np.ndarray

    @property
    def holder(self):
        return self

    def array(self):
        return self.value

    def assign(self, value):
        self.value = np.array(value)


def count(value, name="adam/iteration", kind="int64"):
    return Number(OPTIMIZER, (f"optimizer/{name}", kind, ()), np.array(value, kind))


def seed(drawn):
    row = ("model/seed_generator/seed_generator_state~1", "int64", (2,))
    return Number(MODEL, row, np.array([5, drawn]))


def at_steps(counters, numbers, readings):
    counters.set_variables(numbers)
    for step, values in readings:
        for each, value in zip(numbers, values, strict=True):
            each.assign(value)
        counters.sample(step)


@pytest.mark.parametrize("moved", [0, 1])
def test_counters_are_put_back_whether_the_step_had_moved_them_or_not(moved):
    """
    A step counts once and draws three times.

    The agent reads at steps 2 and 6, and step 9 fails.
    """
    numbers = [count(0), seed(0)]
    counters = StepCounters()
    at_steps(counters, numbers, [(2, (1, [5, 3])), (6, (5, [5, 15]))])
    numbers[0].assign(8 + moved)
    numbers[1].assign([5, 24 + 3 * moved])

    assert counters.restore(9)
    assert 8 == numbers[0].value
    assert [5, 24] == numbers[1].value.tolist()
    assert "int64" == numbers[1].value.dtype.name


@pytest.mark.parametrize(
    ("readings", "now"),
    [
        ([], [5, 24]),
        ([(2, ([5, 3],))], [5, 24]),
        ([(2, ([5, 3],)), (6, ([5, 16],))], [5, 24]),  # 13 in four steps
        ([(2, ([5, 3],)), (6, ([5, 15],))], [5, 25]),  # other code draws too
        ([(2, ([5, 3],)), (6, ([5, 15],))], [7, 24]),  # seeded again
    ],
)
def test_what_is_not_certain_is_left_alone(readings, now):
    """The rescue then reports what it does not restore."""
    number = seed(0)
    counters = StepCounters()
    at_steps(counters, [number], readings)
    number.assign(now)

    assert not counters.restore(9)
    assert now == number.value.tolist()


def test_an_optimizer_with_numbers_of_its_own_is_not_undone():
    """Nadam multiplies a value in each step, with or without a batch."""
    counters = StepCounters()
    counters.set_variables([count(0), count(0.1, "adam/learning_rate", "float32")])
    assert not counters.restore(1)
    counters = StepCounters()
    counters.set_variables([count(0), count(1.0, "nadam/variable", "float32")])
    counters.sample(1)
    counters.sample(2)

    assert not counters.restore(3)


def test_only_the_fetch_of_a_step_is_taken_for_one():
    """The last operation in TensorFlow's message is the one that failed."""
    of_data = RuntimeError("MemoryError: 1 GiB\n\t [[{{node PyFunc}}]]\n\t [[IteratorGetNext]]")

    assert failed_in_fetch(of_data)
    assert not failed_in_fetch(RuntimeError("OOM when allocating\n\t [[{{node dense/MatMul}}]]"))
