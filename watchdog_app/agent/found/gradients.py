"""
Report a loop that cannot be saved: it computes gradients, and no step of an optimizer ends.

Such a loop updates its parameters by hand, or runs one long step of an optimizer such as LBFGS. No
public hook shows when its state is whole. The watch ends with the first step of an optimizer.
"""

from __future__ import annotations

import sys
import time
from types import FrameType
from typing import Any

from watchdog_app.agent.contain import Guard, print_message
from watchdog_app.agent.found import folders
from watchdog_app.agent.runtime.link import Link, registered_links
from watchdog_app.agent.wrapping import Wrapped
from watchdog_app.rescue.identity.notebook import notebook_path

_REPORT_AFTER_S = 20.0  # since the first gradients
_LEAST_CALLS = 10  # a program that explains a network computes gradients as well


class GradientWatch:
    """
    Watches one framework until an optimizer steps, or until the loop was reported.

    Args:
        framework: "torch" or "tensorflow".
        optimizers: the module with its optimizers, as a prefix.
        advice: how the user can have the loop saved, as a sentence.
    """

    def __init__(self, framework: str, optimizers: str, advice: str) -> None:
        self._framework = framework
        self._optimizers = optimizers
        self._advice = advice
        self._method = Wrapped()
        self._guard = Guard("the search for loops that cannot be saved")
        self._calls = 0
        self._first_s = 0.0
        self._link: Link | None = None  # tells the daemon as long as the program runs

    @property
    def is_on(self) -> bool:
        """Whether no optimizer has stepped yet."""
        return self._method.is_on or self._link is not None

    @property
    def has_begun(self) -> bool:
        """Whether gradients were computed, and no optimizer has stepped yet."""
        return self._calls > 0 and self._method.is_on

    def begin(self, owner: Any, name: str) -> None:
        """Watch the public method of the framework that computes gradients."""
        self._calls, self._first_s = 0, 0.0
        self._method.wrap(owner, name, self._counting)

    def end(self) -> None:
        """End the watch, as an optimizer has stepped or the agent is switched off."""
        self._method.unwrap()
        link, self._link = self._link, None
        if link is not None:
            link.close(0.0)

    def computed(self, frame: FrameType | None) -> None:
        """Count gradients that the program has computed; `frame` is that of the call."""
        now = time.monotonic()
        self._calls += 1
        self._first_s = self._first_s or now
        if self._calls >= _LEAST_CALLS and now - self._first_s >= _REPORT_AFTER_S:
            self._method.unwrap()
            with self._guard:
                self._report(frame)

    def _counting(self, before: Any) -> Any:
        def gradients(*args: Any, **kwargs: Any) -> Any:
            if self._method.is_on:
                self.computed(sys._getframe(1))
            return before(*args, **kwargs)

        return gradients

    def _report(self, frame: FrameType | None) -> None:
        keras: Any = sys.modules.get("keras")
        backend = getattr(keras, "backend", None)
        if self._framework == "torch" and backend is not None and backend.backend() == "torch":
            return  # Keras updates the parameters, and a fit has its own Rescue
        if self._framework == "tensorflow" and "tf_keras" in sys.modules:
            return
        if registered_links(self._framework):
            return
        while frame is not None:
            if str(frame.f_globals.get("__name__")).startswith(self._optimizers):
                why = (
                    "one step of its optimizer calls the model again and again (LBFGS): it is "
                    "saved when a step ends, and no step has ended yet"
                )
                advice = "Let a step take fewer iterations (max_iter), and make more steps."
                break
            frame = frame.f_back
        else:
            why = "no optimizer steps; parameters that are updated by hand are not saved"
            advice = self._advice
        print_message(f"a program that computes gradients is not saved: {why}. {advice}")
        directory = folders.rescue_folder()[0]
        self._link = link = Link(self._framework, directory, notebook_path(), by_lines=True)
        link.start()
        link.report(training=False, not_restored=[f"{why}. {advice}"[:300].rstrip(".")])
