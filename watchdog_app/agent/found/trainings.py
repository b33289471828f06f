"""The trainings of this process that name no Rescue, by their optimizers and by their threads."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from watchdog_app.agent.contain import Guard

if TYPE_CHECKING:
    from watchdog_app.agent.found.training import FoundTraining

# A search over parameters trains thousands of times, and each takes 15 to 40 ms to begin.
_MOST_TRAININGS = 100
_MOST_OPTIMIZERS = 16  # of one training; one for each weight is another way to train
_UNKNOWN: Any = object()  # in place of the training of an optimizer that was not met

T = TypeVar("T", bound="FoundTraining")


class Trainings(Generic[T]):
    """Those of one framework. What its signals tell goes to the training of that thread."""

    def __init__(
        self,
        permits: Callable[[Any, Guard], bool],
        make: Callable[[Guard], T],
    ) -> None:
        """
        Args:
            permits: whether what an optimizer trains can be saved; says it where that is not so.
            make: a training of this thread.
        """
        self.guard = Guard("the agent that was switched on")
        self._permits = permits
        self._make = make
        # By id of the optimizer: its training, or None where it is left alone.
        self._by_optimizer: dict[int, T | None] = {}
        self._references: dict[int, Any] = {}
        self._by_thread: dict[int, T] = {}
        self._count = 0
        self._is_fork_hook_set = False

    def end(self) -> None:
        """Trainings under way are no longer watched."""
        for training in list(self._by_thread.values()):
            training.end(well=False)
        self._reset()

    def active(self) -> list[T]:
        """The trainings that were found and have not ended."""
        return [each for each in self._by_thread.values() if not each.over]

    def current(self) -> T | None:
        """The one of the thread that asks; None where it trains nothing."""
        training = self._by_thread.get(get_ident())
        return None if training is None or training.over else training

    def current_listening(self) -> T | None:
        """The one of this thread, where it is to be told that its model computes."""
        training = self._by_thread.get(get_ident())
        return training if training is not None and training.listening else None

    def knows(self, optimizer: Any) -> bool:
        """Whether this optimizer has stepped before."""
        return id(optimizer) in self._by_optimizer

    def about_to_draw(self) -> None:
        """A batch is about to be drawn in this thread."""
        training = self._by_thread.get(get_ident())
        if training is None:
            return
        if training.wants_draws:
            training.draws()
        else:
            training.unseen_ends = 0

    def stepped(self, optimizer: Any, frame: FrameType) -> None:
        """An optimizer has stepped in `frame`, in this thread."""
        try:
            training = self._by_optimizer.get(id(optimizer), _UNKNOWN)
            if training is None:
                return
            if training is _UNKNOWN or training.may_begin_again:
                self._start_or_join(optimizer, frame)
            elif training.over:
                self._by_optimizer[id(optimizer)] = None
            else:
                training.step(optimizer, frame)
                if training.may_begin_again:  # its second step, and the first of another training
                    self._start_or_join(optimizer, frame, done=1)
        except Exception as error:
            self.guard.caught(error)

    def _start_or_join(self, optimizer: Any, frame: FrameType, done: int = 0) -> None:
        """The first step of an optimizer, or the one after those that were `done`."""
        if not self._is_fork_hook_set:
            self._is_fork_hook_set = True
            os.register_at_fork(after_in_child=self._reset)  # a forked process trains for itself
        key = id(optimizer)
        self._by_optimizer[key] = None
        self._references[key] = weakref.ref(
            optimizer, functools.partial(self._optimizer_deleted, key)
        )
        if not self._permits(optimizer, self.guard):
            return
        thread = get_ident()
        training = self._by_thread.get(thread)
        if training is not None and not training.over:
            living = training.optimizers()
            if (
                living
                and training.contains_step(frame)
                and not training.detector.has_idle_optimizer
            ):
                if len(living) < _MOST_OPTIMIZERS:
                    self._by_optimizer[key] = training
                    training.step(optimizer, frame)
                return
            training.end(well=training.ended_well())
        if self._count >= _MOST_TRAININGS:
            self.guard.print_once(
                f"this program has begun {_MOST_TRAININGS} trainings; further ones are not saved "
                "by themselves. Give Rescue(...) to those that matter."
            )
            return
        self._count += 1
        self._by_thread[thread] = self._by_optimizer[key] = training = self._make(self.guard)
        training.detector.iterations = done
        training.step(optimizer, frame)

    def _optimizer_deleted(self, key: int, _reference: Any) -> None:
        """An optimizer was let go of. Runs wherever the last reference was dropped."""
        self._references.pop(key, None)
        training = self._by_optimizer.pop(key, None)
        if training is None or training.over or training.optimizers():
            return
        training.over = True
        # Its end waits for a thread and the disk: not here.
        end = functools.partial(self._end, training)
        try:
            threading.Thread(target=end, name="watchdog-end", daemon=True).start()
        except RuntimeError:  # the interpreter is about to end, and ends it
            return

    def _end(self, training: T) -> None:
        with self.guard:
            training.end(well=training.ended_well())

    def _reset(self) -> None:
        self._by_optimizer.clear()
        self._references.clear()
        self._by_thread.clear()
