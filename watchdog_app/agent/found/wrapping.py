"""Methods of a framework's public classes with ours around them, and how they are put back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Wrapped:
    """Ours around some methods."""

    def __init__(self) -> None:
        self.is_on = False  # else ours does nothing, as what stands on top of it may call it still
        self._methods: list[tuple[Any, str, Any, Any]] = []  # class, name, before, ours

    def wraps(self, kind: Any) -> bool:
        """Whether some method of this class has ours around it."""
        return any(kind is each for each, _, _, _ in self._methods)

    def wrap(self, kind: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put what `make` makes of a method in its place."""
        before = getattr(kind, name)
        ours = functools.wraps(before)(make(before))
        setattr(kind, name, ours)
        self._methods.append((kind, name, before, ours))
        self.is_on = True

    def unwrap(self) -> None:
        """Restore the methods that nobody else has changed since."""
        for kind, name, before, ours in self._methods:
            if getattr(kind, name) is ours:
                setattr(kind, name, before)
        self._methods.clear()
        self.is_on = False
