"""What a capture of a found PyTorch training was of: so that later ones need not be made whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from watchdog_app.agent.found.automatic_torch_find import Named, weak
from watchdog_app.agent.loops.torch_part import Part
from watchdog_app.agent.loops.torch_state import TorchState


class Taken:
    """Of one capture; keeps nothing of the program alive."""

    def __init__(self, names: list[Named], loaders: Sequence[Any], state: TorchState) -> None:
        """
        Args:
            names: of all that the training consists of.
            loaders: that its data comes from.
            state: that was taken.
        """
        self.names = names
        self.never: Sequence[str] = state.never
        self._loaders = [weak(each) for each in loaders]
        self._parts: list[tuple[str, type[Part], Callable[[], Any]]] = [
            (name, type(part), weak(part.thing)) for name, part in state.parts.items()
        ]
        # Modules that are left out as long as nothing is written to them.
        self._left_out = [
            each for each in names if each.stamp is not None and each.name not in state.parts
        ]

    def parts(self) -> dict[str, Part] | None:
        """What was taken, as far as it lives; None where some of it does not."""
        found = {name: (kind, get()) for name, kind, get in self._parts}
        if any(thing is None for _, thing in found.values()):
            return None
        return {name: kind(name, thing) for name, (kind, thing) in found.items()}

    def same(self, loaders: Sequence[Any]) -> bool:
        """Whether its data comes from the same loaders, and nothing that was left out changed."""
        if [id(each) for each in loaders] != [id(get()) for get in self._loaders]:
            return False
        return all(each.part() is None for each in self._left_out)
