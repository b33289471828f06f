"""
The method of `agent.py`, `agent_torch.py` and `found_loops.py`: stretches of steps of a training.

A block is three stretches of consecutive steps in random order: without the agent, without it
again, and with it. The ratio of the third to the mean of the other two is the agent's cost. The
ratio of the first two, which do the same, is the error of the method (A/A).

Processor time is the sum over all threads of the process. Other programs affect it only through
shared caches; they affect wall time fully. `mean` is over all steps of a stretch. `usual` is over
the three quarters of steps with the shortest time: it excludes bursts of the machine, and also the
work that the agent does a few times a second. `its own code` includes that work: the processor time
in the agent's functions during the training, without a comparison. Intervals are 95 % bootstrap
intervals of the mean over the blocks.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

OFF, AGAIN, ON = "without", "without, again", "with"
_DRAWS = 4000


@dataclass(frozen=True)
class Stretch:
    """Mean times of a stretch, in seconds per step."""

    wall_s: float
    wall_usual_s: float
    process_s: float
    process_usual_s: float
    trainer_usual_s: float


class Stretches:
    """Times stretches of steps and chooses the kind of the next stretch."""

    def __init__(self, blocks: int, seed: int = 1) -> None:
        self.blocks: list[dict[str, Stretch]] = []
        self._draw = random.Random(seed)
        self._wanted = blocks
        self._order: list[str] = []
        self._times: list[tuple[float, float, float]] = []

    @property
    def left(self) -> bool:
        """Whether another stretch has to be run."""
        return bool(self._order) or len(self.blocks) < self._wanted

    def next(self) -> str:
        """Choose the kind of the next stretch."""
        if not self._order:
            self._order = [OFF, AGAIN, ON]
            self._draw.shuffle(self._order)
            self.blocks.append({})
        return self._order.pop()

    def begins(self) -> None:
        """Start a stretch, before its first step."""
        self._times = []
        self.stepped()

    def stepped(self) -> None:
        """Record the end of a step."""
        self._times.append((time.perf_counter(), time.process_time(), time.thread_time()))

    def ends(self, kind: str) -> None:
        """End a stretch, after its last step."""
        walls, processes, trainers = (
            [end - began for began, end in itertools.pairwise(column)]
            for column in zip(*self._times, strict=True)
        )
        self.blocks[-1][kind] = Stretch(
            statistics.fmean(walls),
            _usual(walls),
            statistics.fmean(processes),
            _usual(processes),
            _usual(trainers),
        )

    def report(self, name: str, own: Sequence[OwnCode], step_s: float) -> None:
        """
        Print the results.

        Args:
            name: name of the case.
            own: times of the agent's code, in parts of a training; empty: not measured.
            step_s: duration of a step on an idle machine.
        """
        blocks = [each for each in self.blocks if len(each) == 3]
        wall_s = statistics.median(each[OFF].wall_usual_s for each in blocks)
        process_s = statistics.median(each[OFF].process_usual_s for each in blocks)
        print(
            f"{name}: {1e3 * wall_s:.2f} ms a step, {1e3 * process_s:.2f} ms of processor time, "
            f"{len(blocks)} blocks"
        )
        for label, quantity in (
            ("processor, usual", "process_usual_s"),
            ("processor, mean", "process_s"),
            ("wall, usual", "wall_usual_s"),
            ("wall, mean", "wall_s"),
        ):
            with_it = [_effect(each, quantity) for each in blocks]
            nothing = [_nothing(each, quantity) for each in blocks]
            print(f"  {label:17} with {_percent(with_it)}   A/A {_percent(nothing)}")
        for label, quantity in (
            ("its thread, usual", "trainer_usual_s"),
            ("processor, usual", "process_usual_s"),
        ):
            added = interval([_added(each, quantity) for each in blocks])
            print(f"  {label:17} added {_three(added, 1e6, 1)} us a step")
        if not own:
            return
        each_step = interval([part.each_step_s / part.steps for part in own])
        by_clock = interval([part.now_and_then_s / part.wall_s for part in own])
        both = interval(
            [
                part.each_step_s / part.steps / step_s + part.now_and_then_s / part.wall_s
                for part in own
            ]
        )
        print(
            f"  its own code      {_three(each_step, 1e6, 1)} us a step and "
            f"{_three(by_clock, 1e6, 0)} us a second: {_three(both, 100, 3)} % "
            f"of a step of {1e3 * step_s:g} ms",
            flush=True,
        )


class Meter:
    """
    Processor time of the calling thread in the functions passed to `metered`.

    Two sums: work at each step, and periodic work (a report, a check of the variables). Periodic
    work depends on the clock, not on the duration of the steps.
    """

    def __init__(self) -> None:
        self._spent = [0.0, 0.0]  # [at each step, periodic]
        self._calls = [0, 0]
        self._inside = 0.0  # time in metered functions called by the running one
        self._depth = 0
        self._each_s = 0.0
        count = 20000
        # A function that does nothing: its cost during a training is higher than in this loop.
        self.nothing = self.metered(lambda *_: None)
        for _ in range(count):
            self.nothing()
        self._each_s = self._spent[0] / count
        self.take()

    def metered(self, function: Callable[..., Any], *, seldom: bool = False) -> Callable[..., Any]:
        """Return the function with timing; a metered function that it calls counts separately."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            outer, self._inside = self._inside, 0.0
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                whole = time.thread_time() - began
                self._spent[seldom] += whole - self._inside
                self._calls[seldom] += 1
                self._inside = outer + whole

        return timed

    def take(self) -> tuple[float, float]:
        """
        Return both sums in seconds since the last call, minus the cost of timing in a tight loop.
        """
        each, now_and_then = (
            spent - calls * self._each_s
            for spent, calls in zip(self._spent, self._calls, strict=True)
        )
        self._spent, self._calls = [0.0, 0.0], [0, 0]
        return each, now_and_then


@dataclass(frozen=True)
class OwnCode:
    """Time in the agent's own code over some steps."""

    steps: int
    wall_s: float
    each_step_s: float  # sum over all steps
    now_and_then_s: float


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean between the ends of its 95 % bootstrap interval."""
    draw = random.Random(2)
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(_DRAWS))
    return means[_DRAWS // 40], statistics.fmean(values), means[-_DRAWS // 40 - 1]


class OwnThreads:
    """Processor time of the agent's connection threads that start after this object."""

    def __init__(self) -> None:
        from watchdog_app.agent.runtime.link import LinkThread

        self._ids: list[int] = []
        run: Callable[[Any], None] = LinkThread._run

        def noted(line: LinkThread) -> None:
            self._ids.append(threading.get_native_id())
            run(line)

        LinkThread._run = noted  # type: ignore[method-assign]
        self._began, self._began_s = 0.0, 0.0

    def begin(self) -> None:
        """Start to count."""
        self._began, self._began_s = self._spent(), time.perf_counter()

    def share(self) -> float:
        """Return the fraction of a core used since `begin`."""
        return (self._spent() - self._began) / (time.perf_counter() - self._began_s)

    def _spent(self) -> float:
        total = 0
        for each in self._ids:
            try:
                with open(f"/proc/self/task/{each}/schedstat") as file:
                    total += int(file.read().split()[0])
            except OSError:  # the thread has ended
                continue
        return total / 1e9


def _usual(seconds: Sequence[float]) -> float:
    return statistics.fmean(sorted(seconds)[: max(1, 3 * len(seconds) // 4)])


def _effect(block: dict[str, Stretch], quantity: str) -> float:
    without = (getattr(block[kind], quantity) for kind in (OFF, AGAIN))
    return math.log(getattr(block[ON], quantity)) - statistics.fmean(map(math.log, without))


def _nothing(block: dict[str, Stretch], quantity: str) -> float:
    return math.log(getattr(block[AGAIN], quantity) / getattr(block[OFF], quantity))


def _added(block: dict[str, Stretch], quantity: str) -> float:
    without = statistics.fmean(getattr(block[kind], quantity) for kind in (OFF, AGAIN))
    return float(getattr(block[ON], quantity) - without)


def _three(three: tuple[float, float, float], unit: float, digits: int) -> str:
    low, middle, high = (f"{unit * each:.{digits}f}" for each in three)
    return f"{middle} ({low} to {high})"


def _percent(logs: Sequence[float]) -> str:
    low, middle, high = (100 * math.expm1(each) for each in interval(logs))
    return f"{middle:+.2f} % ({low:+.2f} to {high:+.2f})"
