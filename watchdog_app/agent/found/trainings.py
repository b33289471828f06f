"""The trainings of this process without a Rescue, by their optimizers and by their threads."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from watchdog_app.agent.contain import Guard
from watchdog_app.agent.found import folders
from watchdog_app.agent.found.detector import DRAW

if TYPE_CHECKING:
    from watchdog_app.agent.found.training import FoundTraining

_MOST_OPTIMIZERS = 16  # of one training; a program with one for each weight is not supported
_UNKNOWN: Any = object()  # in place of the training of an optimizer that has not stepped before

T = TypeVar("T", bound="FoundTraining")


class Trainings(Generic[T]):
    """The trainings of one framework; passes each event to the training of its thread."""

    def __init__(
        self,
        permits: Callable[[Any, Guard], bool],
        make: Callable[[Guard], T],
    ) -> None:
        """
        Args:
            permits: whether the training of an optimizer can be saved; prints a message if not.
            make: makes a training of this thread.
        """
        self.guard = Guard("the agent that was switched on")
        self._permits = permits
        self._make = make
        # By id of the optimizer: its training; None: the agent ignores the optimizer.
        self._by_optimizer: dict[int, T | None] = {}
        self._references: dict[int, Any] = {}
        self._by_thread: dict[int, T] = {}
        self._count = 0
        self._resumed_at = 0, 0
        self._is_fork_hook_set = False

    def resumes_at(self, step: int, epoch: int) -> None:
        """Count the steps and epochs of the next training from these on: a library resumes it."""
        self._resumed_at = step, epoch

    def end(self) -> None:
        """Stop watching all trainings."""
        for training in list(self._by_thread.values()):
            training.end(succeeded=False)
        self._reset()

    def active(self) -> list[T]:
        """The trainings that have not ended."""
        return [each for each in self._by_thread.values() if not each.over]

    def current(self) -> T | None:
        """The training of the current thread; None if it has none."""
        training = self._by_thread.get(get_ident())
        return None if training is None or training.over else training

    def current_listening(self) -> T | None:
        """The training of the current thread if it listens for computations of its model."""
        training = self._by_thread.get(get_ident())
        return training if training is not None and training.listening else None

    def knows(self, optimizer: Any) -> bool:
        """Whether this optimizer has stepped before."""
        return id(optimizer) in self._by_optimizer

    def about_to_draw(self, has_ended: bool = False) -> None:
        """Handle a draw of a batch that is about to begin in this thread, or that found none."""
        training = self._by_thread.get(get_ident())
        if training is None:
            return
        if has_ended:
            training.pass_ended()
            return
        session = training.session
        if training.wants_draws or (session is not None and session.is_asked):
            training.draws()
        else:
            training.unseen_ends = 0
            if training.detector.head is DRAW:
                training.detector.awaits_end = False

    def stepped(self, optimizer: Any, frame: FrameType, done: int = 0) -> None:
        """Handle a step of an optimizer in `frame`, in this thread, after `done` unseen ones."""
        try:
            training = self._by_optimizer.get(id(optimizer), _UNKNOWN)
            if training is None:
                return
            if training is _UNKNOWN or training.may_begin_again:
                self._start_or_join(optimizer, frame, done)
            elif training.over:
                self._by_optimizer[id(optimizer)] = None
            else:
                training.step(optimizer, frame)
                if training.may_begin_again:  # this second step is the first of a new training
                    self._start_or_join(optimizer, frame, done=1)
        except Exception as error:
            self.guard.caught(error)

    def _start_or_join(self, optimizer: Any, frame: FrameType, done: int = 0) -> None:
        """
        Add an optimizer to the training of this thread, or start a new training with it.

        Args:
            optimizer: an optimizer that has just stepped.
            frame: the frame of that step.
            done: steps of the optimizer before that one.
        """
        if not self._is_fork_hook_set:
            self._is_fork_hook_set = True
            os.register_at_fork(after_in_child=self._reset)  # a forked child has its own trainings
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
                and training.loop.contains_step(frame)
                and not training.detector.has_idle_optimizer
            ):
                if len(living) < _MOST_OPTIMIZERS:
                    self._by_optimizer[key] = training
                    training.step(optimizer, frame)
                return
            training.end(succeeded=training.has_succeeded())
        if folders.has_begun_too_many(self._count, "trainings", self.guard):
            return
        another = ""
        if training is not None and training.loop.contains_step(frame):
            another = training.made_again or training.makes_another_optimizer(frame)
        if training is not None and another:
            self._resumed_at = training.detector.iterations, training.passes.epoch
        self._count += 1
        self._by_thread[thread] = self._by_optimizer[key] = training = self._make(self.guard)
        training.made_again = another
        (step, epoch), self._resumed_at = self._resumed_at, (0, 0)
        training.detector.iterations = training.detector.unseen = step + done
        training.passes.epoch = epoch
        training.passes.begin_after(done)
        training.step(optimizer, frame)

    def _optimizer_deleted(self, key: int, _reference: Any) -> None:
        """Handle the deletion of an optimizer; runs in the thread that drops the last reference."""
        self._references.pop(key, None)
        training = self._by_optimizer.pop(key, None)
        if training is None or training.over or training.optimizers():
            return
        training.over = True
        if sys.is_finalizing():  # a thread would not run, and its start would wait forever
            return
        # The end waits for a thread and the disk, so it must not run in the program's thread.
        end = functools.partial(self._end, training)
        try:
            threading.Thread(target=end, name="watchdog-end", daemon=True).start()
        except RuntimeError:  # Python is shutting down, and its exit hooks end the training
            return

    def _end(self, training: T) -> None:
        with self.guard:
            training.end(succeeded=training.has_succeeded())

    def _reset(self) -> None:
        self._by_optimizer.clear()
        self._references.clear()
        self._by_thread.clear()
