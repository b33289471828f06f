"""Wrap methods of a framework's public classes, and restore them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Wrapped:
    """The methods that we have wrapped."""

    def __init__(self) -> None:
        # Wrappers do nothing while this is False: other code may have wrapped our wrapper, and
        # would still call it after `unwrap`.
        self.is_on = False
        self._methods: list[tuple[Any, str, Any, Any]] = []  # class, name, original, wrapper

    def wraps(self, kind: Any) -> bool:
        """Whether a method of this class is wrapped."""
        return any(kind is each for each, _, _, _ in self._methods)

    def wrap(self, kind: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace a method by the wrapper that `make` returns for it."""
        before = getattr(kind, name)
        ours = functools.wraps(before)(make(before))
        setattr(kind, name, ours)
        self._methods.append((kind, name, before, ours))
        self.is_on = True

    def unwrap(self) -> None:
        """Restore the methods, except those that other code has replaced since."""
        for kind, name, before, ours in self._methods:
            if getattr(kind, name) is ours:
                setattr(kind, name, before)
        self._methods.clear()
        self.is_on = False
