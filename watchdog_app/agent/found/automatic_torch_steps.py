"""
The optimizers of one training that was found by itself, and the loop in which they step.

The first step of an optimizer says nothing yet. Then one gradient tells where the program
computes them, the next step where it applies them, and the loop around both is the training's.
"""

from __future__ import annotations

import threading
import weakref
from types import FrameType
from typing import Any

from watchdog_app.agent.found import loop_end
from watchdog_app.agent.found.loop_end import Chain, Loop
from watchdog_app.agent.frames import current_frames
from watchdog_app.agent.loops.torch_optimizers import parameters

_TRIES = 3  # gradients that are waited for before that is told
_APART = 100  # steps of the others after which an optimizer is no longer one of them


class _Optimizer:
    """What is known of one."""

    __slots__ = (
        *("get", "count", "last", "before", "gradient", "places", "loop", "tries"),
        *("_handle", "__weakref__"),
    )

    def __init__(self, optimizer: Any) -> None:
        self.get = weakref.ref(optimizer)
        self.count = 0
        self.last = self.before = 0  # of all steps, the numbers of its latest two
        self.gradient: Chain | None = None
        self.places: tuple[Chain, Chain] | None = None
        self.loop: Loop | None = None  # around its own gradients and steps
        self.tries = 0
        self._handle: Any = None

    def watch_gradient(self, optimizer: Any) -> None:
        """Note where the program stands when the next gradient is there."""
        trained = parameters(optimizer)
        with_one = [item for item in trained if item.grad is not None] or trained
        thread = threading.get_ident()
        reference = weakref.ref(self)

        def noted(_: Any) -> None:
            known = reference()
            if known is not None and known._handle is not None:
                known._handle.remove()
                known._handle = None
                # On a GPU another thread is here while the training's waits in backward().
                known.gradient = loop_end.chain(current_frames().get(thread))

        self.tries += 1
        self._handle = with_one[-1].register_post_accumulate_grad_hook(noted)

    def forget(self) -> None:
        """Take the hook off the tensor."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


class Steps:
    """Counts the steps of a training, and knows its loop."""

    def __init__(self) -> None:
        self.loop: Loop | None = None
        self.latest: Loop | None = None  # the same, also while another one is looked for
        self.outermost: Loop | None = None  # around it: over epochs, for instance
        self._known: dict[int, _Optimizer] = {}
        self._lead: _Optimizer | None = None  # whose steps are the loop's
        self._number = 0

    def add(self, optimizer: Any) -> None:
        """One more optimizer of the training, which has just stepped for the first time."""
        self._known[id(optimizer)] = known = _Optimizer(optimizer)
        self._number += 1
        known.last, known.count = self._number, 1
        known.watch_gradient(optimizer)

    def optimizers(self) -> list[Any]:
        """Those that live."""
        return [each for known in self._known.values() if (each := known.get()) is not None]

    def stepped(self, optimizer: Any, frame: FrameType) -> int | None:
        """
        Count a step.

        Args:
            optimizer: that was added.
            frame: in which it has stepped.

        Returns:
            How many iterations the loop has had, where this step tells that of one more.
        """
        known = self._known[id(optimizer)]
        self._number += 1
        known.before, known.last = known.last, self._number
        known.count += 1
        if known.places is None and not self._learn(known, optimizer, frame):
            return None
        return known.count if known is self._lead or self._leads(known) else None

    @property
    def lost(self) -> bool:
        """No loop could be found so far."""
        return self.loop is None and any(each.tries > _TRIES for each in self._known.values())

    def adding_up(self) -> set[int]:
        """Ids of parameters whose optimizer has not stepped in this iteration."""
        latest = max(self._known.values(), key=lambda each: each.last)
        return {
            id(item)
            for each in self._known.values()
            if each.last <= latest.before and (optimizer := each.get()) is not None
            for item in parameters(optimizer)
        }

    def left_behind(self) -> bool:
        """Some optimizer has not stepped for long while another one did: two trainings."""
        return any(
            self._number - each.last > _APART * len(self._known) for each in self._known.values()
        )

    def relearn(self) -> None:
        """The program trains in another loop now."""
        self.loop = self._lead = None
        for known in self._known.values():
            known.gradient = known.places = known.loop = None

    def close(self) -> None:
        """Let go of the tensors."""
        for known in self._known.values():
            known.forget()

    def _leads(self, known: _Optimizer) -> bool:
        """Of optimizers in one loop, the one that steps most often counts its iterations."""
        lead = self._lead
        if known.loop != self.loop or (lead is not None and lead.count >= known.count):
            return False
        self._lead = known
        return True

    def _learn(self, known: _Optimizer, optimizer: Any, frame: FrameType) -> bool:
        if known.gradient is None:
            known.forget()
            known.watch_gradient(optimizer)
            return False
        known.places = (known.gradient, loop_end.chain(frame))
        known.loop = loop_end.common_loop(known.places)
        together = [place for each in self._known.values() for place in each.places or ()]
        self.loop = loop_end.common_loop(together)
        self._lead = None
        if self.loop is None:
            known.gradient = known.places = None
            return False
        self.latest = self.loop
        self.outermost = loop_end.outermost_loop(known.places[1])
        return True
