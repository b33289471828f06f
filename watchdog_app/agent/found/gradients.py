"""
Find loops that update parameters by hand: they compute gradients, and no optimizer steps.

Each place of the program that computes gradients stands for an optimizer. It trains the parameters
whose values have changed from one call to the next. A loop without such parameters is reported: it
makes new tensors, or runs one long step of an optimizer such as LBFGS. The watch ends with the
first step of an optimizer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

from watchdog_app.agent.contain import print_message
from watchdog_app.agent.found import folders
from watchdog_app.agent.identity.attributes import weak_reference
from watchdog_app.agent.runtime.link import Link, registered_links
from watchdog_app.agent.telemetry.stacks import callers
from watchdog_app.agent.wrapping import Wrapped
from watchdog_app.rescue.identity.notebook import notebook_path

_REPORT_AFTER_S = 20.0  # since the first gradients
_LEAST_CALLS = 10  # a program that explains a network computes gradients as well
_MOST_LOOKS = 32  # calls at one place whose parameters are compared
_CHANGES = 2  # times in a row that they must have changed


class ByHand:
    """Stands for an optimizer; keeps no parameter alive."""

    def __init__(self) -> None:
        self.looks = 0
        self.changes = 0
        self._sums: dict[int, float] = {}  # of the parameters at the last look, by their ids
        self._references: Sequence[Callable[[], Any]] = ()

    @property
    def parameters(self) -> list[Any]:
        """The parameters that still exist."""
        return [each for get in self._references if (each := get()) is not None]

    _trainable_variables = parameters  # as of Keras's optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """All parameters, as of PyTorch's optimizers."""
        return [{"params": self.parameters}]

    def unseen_steps(self) -> int:
        """The steps that were made before it was known; 0 from the second call on."""
        looks, self.looks = self.looks, 0
        return looks

    @property
    def is_known(self) -> bool:
        """Whether it is known what the program updates."""
        if self.changes >= _CHANGES and not self.parameters:
            self.changes = 0  # the program has made others
        return self.changes >= _CHANGES

    def train(self, parameters: Sequence[Any]) -> None:
        """Set the parameters that the program updates."""
        self._references = [weak_reference(each) for each in parameters]
        self.changes = _CHANGES

    def look(self, parameters: Sequence[Any], sum_of: Callable[[Any], float]) -> None:
        """Compare the parameters of this call with those of the call before."""
        self.looks += 1
        before, self._sums = self._sums, {id(each): sum_of(each) for each in parameters}
        kept = [each for each in self.parameters if id(each) in self._sums]
        changed = any(self._sums[id(each)] != before[id(each)] for each in kept)
        changes = self.changes + 1 if changed else 0
        self.train(kept if changed else parameters)
        self.changes = changes


class GradientWatch:
    """
    Watches one framework until an optimizer steps, or until the loop was reported.

    Args:
        framework: "torch" or "tensorflow".
        optimizers: the module with its optimizers, as a prefix.
        sum_of: the sum of a parameter's elements.
    """

    def __init__(self, framework: str, optimizers: str, sum_of: Callable[[Any], float]) -> None:
        self._framework = framework
        self._optimizers = optimizers
        self._sum_of = sum_of
        self._method = Wrapped()
        self._places: dict[tuple[CodeType, int], ByHand] = {}
        self._link: Link | None = None  # tells the daemon as long as the program runs

    @property
    def is_on(self) -> bool:
        """Whether no optimizer has stepped yet."""
        return self._method.is_on or self._link is not None

    def begin(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Wrap the public method of the framework that computes gradients."""
        self._calls, self._first_s = 0, 0.0
        self._method.wrap(owner, name, make)

    def end(self) -> None:
        """End the watch, as an optimizer has stepped or the agent is switched off."""
        self._method.unwrap()
        self._places.clear()
        link, self._link = self._link, None
        if link is not None:
            link.close(0.0)

    def at(self, frame: FrameType) -> ByHand | None:
        """What stands for the optimizer of a place; None if Keras or a Rescue saves the program."""
        place = frame.f_code, frame.f_lineno
        if place not in self._places:
            if self._is_saved_otherwise():
                self._method.unwrap()
                return None
            self._places[place] = ByHand()
        return self._places[place]

    def computed(self, parameters: Callable[[], Sequence[Any]], frame: FrameType) -> ByHand | None:
        """
        Look for changes at a call that has computed gradients.

        Args:
            parameters: returns the parameters of these gradients.
            frame: the frame of the call.

        Returns:
            What has stepped; None if no loop by hand is known here.
        """
        found = self.at(frame) if self._method.is_on else None
        if found is None or found.is_known:
            return found
        now = time.monotonic()
        self._calls += 1
        self._first_s = self._first_s or now
        if found.looks < _MOST_LOOKS and not _is_below(frame, self._optimizers):
            found.look(parameters(), self._sum_of)
        is_late = self._calls >= _LEAST_CALLS and now - self._first_s >= _REPORT_AFTER_S
        if is_late and not any(each.is_known for each in self._places.values()):
            self._method.unwrap()
            self._report(frame)
        return None

    def _is_saved_otherwise(self) -> bool:
        of_keras = {
            "torch": _is_below(sys._getframe(), "keras."),  # a fit on PyTorch
            "tensorflow": "tf_keras" in sys.modules,
        }
        return of_keras[self._framework] or bool(registered_links(self._framework))

    def _report(self, frame: FrameType) -> None:
        why = "no optimizer steps, and no parameters are updated in place"
        advice = "Update them in place (PyTorch: under torch.no_grad(), w -= lr * w.grad)."
        if _is_below(frame, self._optimizers):
            why = (
                "one step of its optimizer calls the model again and again (LBFGS): it is "
                "saved when a step ends, and no step has ended yet"
            )
            advice = "Let a step take fewer iterations (max_iter), and make more steps."
        print_message(f"a program that computes gradients is not saved: {why}. {advice}")
        directory = folders.rescue_folder()[0]
        self._link = link = Link(self._framework, directory, notebook_path(), by_lines=True)
        link.start()
        link.report(training=False, not_restored=[f"{why}. {advice}"[:300].rstrip(".")])


def _is_below(frame: FrameType | None, modules: str) -> bool:
    """Whether a function of these modules, given by a prefix, has called a frame."""
    names = (str(each.f_globals.get("__name__")) for each in callers(frame))
    return any(name.startswith(modules) for name in names)
