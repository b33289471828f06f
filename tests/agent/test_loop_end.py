"""Which loop is the training's, and the moment at which one of its iterations ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from watchdog_app.agent.found import loop_end
from watchdog_app.agent.found.loop_end import Chain, Loop

Log = list[str]


class Watched:
    """Learns the loop from two places, then notes where each of its iterations ends."""

    def __init__(self) -> None:
        self.log: Log = []
        self.places: list[Chain] = []
        self.loop: Loop | None = None

    def gradient(self) -> None:
        if self.loop is None:
            self.places = [loop_end.chain(sys._getframe(1))]
        self.log.append("gradient")

    def step(self) -> None:
        frame = sys._getframe(1)
        if self.loop is None:
            self.loop = loop_end.common_loop([*self.places, loop_end.chain(frame)])
        self.log.append("step")
        place = None if self.loop is None else loop_end.frame_of(self.loop, frame)
        if self.loop is not None and place is not None:
            loop_end.at_end(self.loop, place, self.arrived)

    def arrived(self, ended: bool) -> None:
        self.log.append("end" if ended else "left")

    def draws(self, count: int) -> Iterator[int]:
        for number in range(count):
            self.log.append("draw")
            yield number


def plain(it: Watched) -> None:
    for _ in it.draws(2):
        it.gradient()
        it.step()
        it.log.append("schedule")


def in_a_function(it: Watched) -> None:
    def batch() -> None:
        it.gradient()
        it.step()

    for _ in enumerate(it.draws(2)):
        batch()
        it.log.append("schedule")


def listed(it: Watched) -> None:
    for _ in it.draws(2):
        it.gradient()
        for _optimizer in range(1):
            it.step()
        for _scheduler in range(1):
            it.log.append("schedule")


def accumulated(it: Watched) -> None:
    for _ in it.draws(2):
        for _micro in range(1):
            it.gradient()
        it.step()
        it.log.append("schedule")


def by_hand(it: Watched) -> None:
    count, batches = 0, it.draws(3)
    next(batches)
    while count < 2:
        it.gradient()
        it.step()
        it.log.append("schedule")
        count += 1
        if count == 2:
            break
        it.log.append("draw")


ITERATION = ["draw", "gradient", "step", "schedule", "end"]


@pytest.mark.parametrize("program", [plain, in_a_function, listed, accumulated])
def test_an_iteration_ends_after_everything_and_before_the_next_draw(
    program: Callable[[Watched], None],
):
    """Whatever follows the step in the loop has run, and nothing is drawn."""
    it = Watched()

    program(it)

    assert ITERATION * 2 == it.log
    assert sys.gettrace() is None


def test_a_loop_that_is_left_has_no_end_of_an_iteration():
    """A break goes past the place where the next one would begin."""
    it = Watched()

    by_hand(it)

    assert ["left"] == it.log[-1:]
    assert 1 == it.log.count("end")


def test_an_exception_ends_the_look():
    """The trace goes with the frame."""
    it = Watched()

    def failing() -> None:
        for _ in it.draws(2):
            it.gradient()
            it.step()
            if it.places:
                raise ValueError("out of luck")

    with pytest.raises(ValueError, match="out of luck"):
        failing()

    assert "left" == it.log[-1]
    assert sys.gettrace() is None


def test_variables_are_as_they_were():
    """Before Python 3.13 a trace writes them back: none may be lost or become an old one."""
    it = Watched()
    first = 1
    for number in it.draws(2):
        second = number
        it.gradient()
        it.step()
        first, second = first + second, 10

    loop_end.let_go(it.loop, sys._getframe())

    assert (2, 10, 1) == (first, second, number)


def test_what_tracing_left_behind_is_dropped():
    """The variables of then are not kept alive by the frame."""

    class Batch:
        def __del__(self) -> None:
            it.log.append("freed")

    it = Watched()
    for index in range(3):
        batch: Any = Batch() if index == 0 else None
        it.gradient()
        if index == 0:
            it.step()
        del batch
        if index == 1:
            loop_end.let_go(it.loop, sys._getframe())
    assert "freed" in it.log


def test_a_frame_that_is_traced_already_is_left_alone():
    """A debugger keeps its trace."""

    def debugger(*_: Any) -> None:
        return None

    it = Watched()
    for _ in it.draws(2):
        it.gradient()
        it.step()
        sys.settrace(debugger)
        assert it.loop is not None
        assert not loop_end.at_end(it.loop, sys._getframe(), it.arrived)
        sys.settrace(None)


def test_the_variables_of_a_loop_are_those_that_it_sets():
    """Names that mean something else in the next iteration."""
    it = Watched()
    before = 1
    for number in it.draws(2):
        inside = number
        it.gradient()
        it.step()
        inside += before

    assert {"number", "inside"} == loop_end.assigned(it.loop)
