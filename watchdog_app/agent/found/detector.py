"""
When an iteration of a training loop has ended, by the events that its framework tells.

The state machine is pure: optimizers step, batches are drawn, a model computes. The steps of an
iteration are those of the iteration before, in the same order, beginning with the optimizer that
stepped first. Behind the last of them the iteration ends where the next batch is drawn. In a loop
that reads no DataLoader, or draws ahead in the middle of an iteration, it ends where the model
computes next. Both are learned from some iterations before any end is told.
"""

from __future__ import annotations

from enum import Enum

_IDLE_STEPS = 100  # steps of the others after which an optimizer is no longer one of the loop
_MIN_EQUAL_ITERATIONS = 2  # iterations of the same steps in a row
_DRAWN, _COMPUTED = "d", "c"


class Head(Enum):
    """What the iterations of a loop begin with."""

    DRAW = "a batch is drawn from a DataLoader"
    COMPUTE = "the model computes"


class Detector:
    """One training loop. Optimizers are told apart by any number that is theirs."""

    def __init__(self) -> None:
        self.iterations = 0
        self.head: Head | None = None  # None: not learned yet
        self._last_steps: dict[int, int] = {}  # of each optimizer: the number of its latest step
        self._total = 0
        self._first: int | None = None  # the optimizer whose step is the first of an iteration
        self._steps: list[int] = []  # of this iteration: the optimizers in their order
        self._steps_before: list[int] = []  # of the iteration before
        self._equal_iterations = 0  # iterations in a row with the same steps
        self._awaits_end = False  # the last step is made, and the end has not come
        self.is_between_iterations = True  # all steps of one are made, and none of the next
        self.watching = False  # whether it is told when the model computes, and learns
        self._events = ""  # since the last step, each kind once in a row
        self._head_before: Head | None = None

    def start_watching(self) -> None:
        """Start to learn, from draws and computations, what iterations begin with."""
        self.watching = True
        self._events = ""
        self._head_before = None

    def stepped(self, optimizer: int) -> bool:
        """
        An optimizer has made a step.

        Returns:
            Whether it is the last one of an iteration, which ends at the next event.
        """
        if optimizer not in self._last_steps:
            self._add_optimizer(optimizer)
        else:
            self._total += 1
            self._last_steps[optimizer] = self._total
        if len(self._active()) == 1:
            self._first, self._steps = optimizer, [optimizer]
            self._awaits_end = True
        else:
            if optimizer == self._first and self._steps[-1:] != [optimizer]:
                self._begin_iteration()
            self._steps.append(optimizer)
            self._awaits_end = self._steps == self._steps_before
        self.is_between_iterations = self._awaits_end
        if self._awaits_end:
            self.iterations += 1
            self._equal_iterations += 1
            if self.watching:
                self._learn_head()
        return self._awaits_end

    def stop_watching(self) -> None:
        """Stop to learn; what was learned stays."""
        self.watching = False

    def drawn(self) -> bool:
        """A batch is about to be drawn; whether an iteration has ended here."""
        if self.watching:
            self._record_event(_DRAWN)
        return self._awaits_end and self.head is Head.DRAW and self._end_iteration()

    def computes(self) -> bool:
        """The model is about to compute; whether an iteration has ended here."""
        if self.watching:
            self._record_event(_COMPUTED)
        return self._awaits_end and self.head is Head.COMPUTE and self._end_iteration()

    def remove(self, optimizer: int) -> None:
        """Remove a deleted optimizer."""
        self._last_steps.pop(optimizer, None)
        if optimizer == self._first:
            self._first = None

    @property
    def has_idle_optimizer(self) -> bool:
        """Whether an optimizer has not stepped for long while others did."""
        return len(self._active()) < len(self._last_steps)

    def _add_optimizer(self, optimizer: int) -> None:
        """One more optimizer: in the first iteration, or later, behind the others or before."""
        if self._awaits_end and self.iterations:  # behind: the iteration goes on
            self.iterations -= 1
        if self._first is None or (self.iterations > 1 and not self._awaits_end):
            self._first = optimizer
        self._equal_iterations = 0
        self._last_steps[optimizer] = self._total

    def _active(self) -> list[int]:
        oldest = self._total - _IDLE_STEPS * len(self._last_steps)
        return [each for each, last in self._last_steps.items() if last >= oldest]

    def _begin_iteration(self) -> None:
        """The first step of an iteration is being made."""
        if self._steps and not self.is_between_iterations:
            self._equal_iterations = 0
            self.iterations += 1
        self._steps_before, self._steps = self._steps, []

    def _learn_head(self) -> None:
        now = _head_of_events(self._events)
        self._events = ""
        if now is not None and now is self._head_before:
            self.head = now
        self._head_before = now

    def _record_event(self, event: str) -> None:
        if self._events[-1:] != event:
            self._events = (self._events + event)[-8:]

    def _end_iteration(self) -> bool:
        self._awaits_end = False
        return self._equal_iterations >= _MIN_EQUAL_ITERATIONS


def _head_of_events(events: str) -> Head | None:
    """What an iteration of these events begins with; None where that is not clear."""
    if events == _DRAWN or (events[:1] == _DRAWN and events[-1:] == _COMPUTED):
        return Head.DRAW
    if events == _COMPUTED or (events[:1] == _COMPUTED and events[-1:] == _DRAWN):
        return Head.COMPUTE
    return None
