"""The random states with which the resume of a loop without a Rescue begins."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any

from watchdog_app.agent.identity import source_loops
from watchdog_app.agent.identity.names import Named
from watchdog_app.agent.identity.source_loops import Place
from watchdog_app.agent.state import own_random, randomness

# Keys of random states, by the libraries that draw from them.
_LIBRARIES = {"python": "Python", "numpy": "NumPy", "torch": "PyTorch", "devices": "PyTorch"}


class RandomDraws:
    """
    The random states after a step, and those before the loop draws its next batch.

    The agent learns of such a draw only when the model computes. What else the loop drew since its
    step cannot be told from the draw.
    """

    def __init__(self) -> None:
        self.after_step: dict[str, Any] | None = None  # after the last step of an iteration
        # Libraries and generators from which the loop may draw after its step.
        self.drawn_after: list[str] = []
        self._before_draws: dict[str, Any] | None = None

    def at_boundary(self, objects: Sequence[Named]) -> dict[str, Any]:
        """The random states that a resume begins with."""
        return self._before_draws or _states(objects)

    def record_step(self, objects: Sequence[Named]) -> None:
        """Record the states after a step, if the agent does not see the draw of the next batch."""
        self.after_step = _states(objects)

    def model_computes(
        self,
        objects: Sequence[Named],
        places: Sequence[Place],
        frame: FrameType,
        *,
        has_turned: bool = False,
    ) -> None:
        """
        Find out which random states a resume needs, as the model computes.

        Args:
            objects: the objects of the training; a resume restores the generators among them.
            places: the program's functions at the step.
            frame: where the model computes.
            has_turned: whether the loop has begun again since the step, in the loop around it.
        """
        after, now = self.after_step, _states(objects)
        self._before_draws = after
        if (
            after is None
            or after == now
            or not source_loops.draws_after(places, frame, has_turned=has_turned)
        ):
            self.drawn_after = []
            return  # a resume draws the next batch again
        own = {each.name: each.expression for each in objects}
        moved = [own[name] for name, state in now["own"].items() if after["own"].get(name) != state]
        libraries = {_LIBRARIES.get(key, "TensorFlow") for key in now.keys() - {"own"}
                     if after.get(key) != now[key]}  # fmt: skip
        self.drawn_after = [*dict.fromkeys((*self.drawn_after, *moved, *sorted(libraries)))]
        self._before_draws = {**after, "own": now["own"]}

    def iteration_ended(self) -> None:
        """Forget the states before the draws of the iteration that has begun."""
        self._before_draws = None


def _states(objects: Sequence[Named]) -> dict[str, Any]:
    """States of the global random generators and of those among the objects."""
    own = {
        each.name: own_random.capture(thing)
        for each in objects
        if own_random.is_generator(thing := each.get())
    }
    return {**randomness.capture(), "own": own}
