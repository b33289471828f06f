"""What a step of a TensorFlow loop may change: looked at before it, compared and put back after."""

from __future__ import annotations

from typing import Any

from watchdog_app.agent.exhaustion.exhaustion_copies import TensorFlowCopies
from watchdog_app.agent.exhaustion.exhaustion_loop import LoopLook
from watchdog_app.agent.loops.loop_state import LoopState
from watchdog_app.agent.state.rows import METRIC, OPTIMIZER

_LOOKS = 2  # at which variables may be new: the first step makes slots
_AGAIN = 500  # and after so many more: layers may have been frozen


class TensorFlowLook(LoopLook):
    """See `exhaustion_copies`."""

    def __init__(self, state: LoopState) -> None:
        self._state = state
        self._copies = TensorFlowCopies(always=True)  # the loop keeps the pace
        self._random: dict[str, Any] = {}
        self._count = 0

    def take(self) -> None:
        """See `LoopLook`."""
        if self._count < _LOOKS or self._count % _AGAIN == 0:
            variables = self._state.variables()
            self._copies.of(
                variables,
                [
                    place
                    for place, item in enumerate(variables)
                    if item.group not in (METRIC, OPTIMIZER) and item.holder.trainable
                ],
            )
        self._count += 1
        self._copies.take()
        self._random = self._state.take_random()

    def untouched(self) -> bool:
        """See `LoopLook`."""
        return self._copies.untouched()

    def put_back(self) -> bool:
        """See `LoopLook`."""
        self._copies.put_back()
        self._state.put_random(self._random)
        return True

    def let_go(self) -> None:
        """See `LoopLook`."""
        self._copies.let_go()
