"""
A training loop of the program's own that runs out of memory: the state before that step.

At the end of each step, as often as it pays, a look is taken at what the next one may change.
When an error of memory leaves the program, that is put back and saved, unless an optimizer has
been at the weights since.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from watchdog_app.agent.contain import Guard
from watchdog_app.agent.exhaustion import exhaustion, exhaustion_hooks
from watchdog_app.agent.exhaustion.exhaustion_copies import Pace
from watchdog_app.agent.exhaustion.last_place import LastPlace
from watchdog_app.agent.loops.passes import EpochPasses

INEXACT = (
    "random numbers, statistics and gradients that are being added up as they were before the "
    "batch that ran out of memory, or weights that are certain to be of a whole step (the last "
    "look at them was some steps before)"
)
GRADIENTS = "gradients that are being added up without those of the batch that ran out of memory"
AFTERWARDS = (
    "what the program does after the last batch of an epoch, or with no batch at all: memory ran "
    "out there, and what was done of it is done again"
)


class LoopLook(ABC):
    """What a step may change, as a framework keeps it."""

    def stepped(self) -> None:  # noqa: B027 - where there is nothing to note
        """A step has ended, and may be looked at or not."""

    @abstractmethod
    def take(self) -> None:
        """Look: a step has ended, or a pass over the data has begun."""

    @abstractmethod
    def untouched(self) -> bool:
        """Whether no optimizer has been at the weights since, as far as that shows."""

    @abstractmethod
    def put_back(self) -> bool:
        """Statistics and random numbers as they were; False where gradients are not."""

    def drop_gradients(self) -> None:  # noqa: B027 - where variables hold none
        """Those of the step that failed are no part of the state."""

    @abstractmethod
    def let_go(self) -> None:
        """Keep nothing."""


class LoopExhaustion:
    """Waits for errors of memory in one loop, from its making to `end`."""

    def __init__(
        self,
        look: LoopLook,
        passes: EpochPasses[Any, Any],
        save: Callable[[str], str | None],
        *,
        shrinks: bool,
    ) -> None:
        """
        Args:
            look: of the framework.
            passes: over the loop's data.
            save: saves the state as it is; the argument is the reason, the answer the folder.
            shrinks: the program asked for parts of batches.
        """
        self.inexact: list[str] = []  # how the save under way is not as of the step's end
        self._look = look
        self._passes = passes
        self._save = save
        self._shrinks = shrinks
        self._guard = Guard()
        self._pace, self._pace_of_passes = Pace(), Pace()
        self._looked = False  # at the end of the step before
        self._holding = False  # what was seen then, or some of it
        self._place = LastPlace(passes)
        self._told: BaseException | None = None
        self._steps = 0
        exhaustion_hooks.watch(self)

    def stepped(self) -> None:
        """A step has ended."""
        self._steps += 1
        try:
            self._look.stepped()
            if self._holding or self._pace.due(time.perf_counter()):
                self._may_look(self._pace)
            else:
                self._looked = False
                self._place.note(own=False)
        except Exception as error:
            self._guard.caught(error)

    def pass_begun(self) -> None:
        """
        A pass over the data has begun, or the rescue's has been found again.

        What lies between two epochs has been done then, and is not to be done twice: a scheduler's
        step.
        """
        if self._steps and self._place.is_beginning():
            self._may_look(self._pace_of_passes)

    def exhausted(self, error: BaseException) -> None:
        """An error of memory leaves the loop: save what was before the step, and say so."""
        if self._told is error:
            return
        self._told = error
        with self._guard:
            note = self._rescue(error)
            exhaustion_hooks.say_and_note(error, note)

    def end(self) -> None:
        """The training is over."""
        exhaustion_hooks.forget(self)
        self._look.let_go()
        self._place.forget()
        self._told = None

    def _may_look(self, pace: Pace) -> None:
        began = time.perf_counter()
        self._looked = False
        try:
            if pace.due(began):
                self._holding = True
                self._look.take()
                self._place.note(own=True)
                self._looked = True
                pace.looked(began, time.perf_counter())
                return
            if self._holding:
                self._look.let_go()
                self._holding = False
            self._place.note(own=False)
        except Exception as error:
            self._guard.caught(error)

    def _rescue(self, error: BaseException) -> str:
        exhaustion.free()
        if self._steps == 0:
            return "memory ran out before a step had ended: there was nothing to save."
        if not self._look.untouched() if self._looked else exhaustion.in_optimizer(error):
            return (
                "memory ran out while an optimizer was at work, or after it and before "
                "rescue.step(): the weights in memory are not those of a whole step. They were "
                "not saved; an earlier rescue, if there is one, stands and is gone on from by the "
                "next run."
            )
        inexact = [] if self._looked and self._place.is_of_this_epoch() else [INEXACT]
        if not self._looked:
            self._look.drop_gradients()
        elif not self._look.put_back():
            inexact.append(GRADIENTS)
        if not self._place.has_moved():
            inexact.append(AFTERWARDS)
        self.inexact = inexact
        try:
            with self._place.put_back():
                path = self._save(exhaustion.REASON)
        finally:
            self.inexact = []
        if path is None:
            return "memory ran out in a training step; no rescue was saved."
        advice = (
            "Not even the smallest part of a batch fits: free memory elsewhere."
            if self._shrinks
            else 'With Rescue(..., on_oom="shrink") and its helper for the step a batch that does '
            "not fit is trained in parts: see docs/agent.md."
        )
        return (
            "memory ran out in a training step. The training was saved as it was before that "
            f"step: {path}. The next run of the program goes on from there; in this same process, "
            f'Rescue(..., resume="newest") does. {advice}'
        )
