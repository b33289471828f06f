"""
Detect the end of an iteration of a training loop from events of its framework.

The state machine is pure. Its events are: an optimizer steps, the program draws a batch, the model
computes. An iteration has the same optimizer steps in the same order as the iteration before, and
begins with the optimizer that stepped first. After its last step the iteration ends when the
program draws the next batch. Some loops read no DataLoader, or draw ahead in the middle of an
iteration: there it ends when the model computes next. The detector learns the steps and the kind of
loop from some iterations before it reports any end.
"""

from __future__ import annotations

_IDLE_STEPS = 100  # steps of other optimizers after which an optimizer has left the loop
_FIRST_STEPS = 8  # in the first iteration an optimizer may step so often before the next one does
_MIN_EQUAL_ITERATIONS = 2  # iterations in a row with the same steps before ends are reported
_DRAWN, _COMPUTED = "d", "c"
# The first event of each iteration of a loop; the members of an enum take microseconds to read.
DRAW, COMPUTE = "a batch is drawn from a DataLoader", "the model computes"


class Detector:
    """Detects the iterations of one training loop; the caller identifies optimizers by numbers."""

    def __init__(self) -> None:
        self.iterations = 0
        self.unseen = 0  # iterations before the first event
        self.head: str | None = None  # None: not learned yet
        self._last_steps: dict[int, int] = {}  # by optimizer: the number of its latest step
        self._total = 0
        self._late: int | None = None  # an optimizer that came when others had made iterations
        self._in_row = 0  # steps that it has made since one of another optimizer
        self._first: int | None = None  # the optimizer whose step is the first of an iteration
        self._steps: list[int] = []  # optimizers that stepped in this iteration, in order
        self._steps_before: list[int] = []  # optimizers of the iteration before, in order
        self._equal_iterations = 0  # iterations in a row with the same steps
        self.awaits_end = False  # whether the last step was made and the iteration has not ended
        # Whether all steps of an iteration were made and none of the next.
        self.is_between_iterations = True
        self.watching = False  # whether the detector gets all events and learns the head
        self._events = ""  # events since the last step, without repetitions
        self._head_before: str | None = None

    def start_watching(self) -> None:
        """Start to learn from draws and computations which event begins an iteration."""
        self.watching = True
        self._events = ""
        self._head_before = None

    def stepped(self, optimizer: int) -> bool:
        """
        Record a step of an optimizer.

        Returns:
            Whether it is the last step of an iteration, which ends at the next event.
        """
        self._in_row = self._in_row + 1 if optimizer == self._late else 0
        if optimizer not in self._last_steps:
            self._add_optimizer(optimizer)
        else:
            self._total += 1
            self._last_steps[optimizer] = self._total
        if len(self._last_steps) == 1 or len(self._active()) == 1:
            self._first, self._steps = optimizer, [optimizer]
            self.awaits_end = True
        else:
            if optimizer == self._first and self._steps[-1:] != [optimizer]:
                self._begin_iteration()
            self._steps.append(optimizer)
            self.awaits_end = self._steps == self._steps_before
        self.is_between_iterations = self.awaits_end
        if self.awaits_end:
            self.iterations += 1
            self._equal_iterations += 1
            if self.watching:
                self._learn_head()
        return self.awaits_end

    def stop_watching(self) -> None:
        """Stop learning, and keep the learned head."""
        self.watching = False

    def drawn(self) -> bool:
        """Record that the program is about to draw a batch; whether an iteration ends here."""
        if self.watching:
            self._record_event(_DRAWN)
        return self.awaits_end and self.head is DRAW and self._end_iteration()

    def computes(self) -> bool:
        """Record that the model is about to compute; whether an iteration ends here."""
        if self.watching:
            self._record_event(_COMPUTED)
        return self.awaits_end and self.head is COMPUTE and self._end_iteration()

    @property
    def has_computed(self) -> bool:
        """Whether it is learning and has seen the model compute since the last step."""
        return self.watching and _COMPUTED in self._events

    def remove(self, optimizer: int) -> None:
        """Remove a deleted optimizer."""
        self._last_steps.pop(optimizer, None)
        if optimizer == self._first:
            self._first = None

    @property
    def is_regular(self) -> bool:
        """Whether the last iterations had the same steps, and all of the last one were made."""
        return self.is_between_iterations and self._equal_iterations >= _MIN_EQUAL_ITERATIONS

    @property
    def has_idle_optimizer(self) -> bool:
        """Whether an optimizer has not stepped for long while others did."""
        return len(self._active()) < len(self._last_steps)

    def _add_optimizer(self, optimizer: int) -> None:
        """Add an optimizer, which may step before or after the known ones of an iteration."""
        if self.awaits_end and self.iterations:  # it steps after them: the iteration continues
            is_first = self._total < _FIRST_STEPS
            self.iterations = self.unseen if is_first else self.iterations - 1
        if self._first is None or (self.iterations > 1 and not self.awaits_end):
            self._first = optimizer
        self._late = optimizer if self._equal_iterations >= _MIN_EQUAL_ITERATIONS else None
        self._equal_iterations = 0
        self._last_steps[optimizer] = self._total

    def _active(self) -> list[int]:
        if self._late is not None and self._in_row >= _FIRST_STEPS:
            return [self._late]  # the loop now trains something else
        oldest = self._total - _IDLE_STEPS * len(self._last_steps)
        return [each for each, last in self._last_steps.items() if last >= oldest]

    def _begin_iteration(self) -> None:
        """Begin an iteration at the step of its first optimizer."""
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
        self.awaits_end = False
        return self._equal_iterations >= _MIN_EQUAL_ITERATIONS


def _head_of_events(events: str) -> str | None:
    """The head of an iteration with these events; None: unclear."""
    if events == _DRAWN or (events[:1] == _DRAWN and events[-1:] == _COMPUTED):
        return DRAW
    if events == _COMPUTED or (events[:1] == _COMPUTED and events[-1:] == _DRAWN):
        return COMPUTE
    return None
