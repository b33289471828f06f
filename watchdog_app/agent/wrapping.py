"""Replace methods of a framework's public classes, or of single objects, and restore them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Wrapped:
    """The methods that we have replaced."""

    def __init__(self) -> None:
        # Wrappers do nothing while this is False: other code may have wrapped our wrapper, and
        # would still call it after `unwrap`.
        self.is_on = False
        # class or object, name, its own attribute before (None: inherited), wrapper
        self._methods: list[tuple[Any, str, Any, Any]] = []

    def wraps(self, owner: Any) -> bool:
        """Whether a method of this class or object is replaced."""
        return any(owner is each for each, _, _, _ in self._methods)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace a method of a class or an object by the wrapper that `make` returns for it."""
        before = getattr(owner, name)
        own = vars(owner).get(name)
        ours = make(before)
        if isinstance(owner, type):
            ours = functools.wraps(before)(ours)
            setattr(owner, name, ours)
        else:
            vars(owner)[name] = ours  # frameworks track attributes that are set in other ways
        self._methods.append((owner, name, own, ours))
        self.is_on = True

    def unwrap(self) -> None:
        """Restore the methods, except those that other code has replaced since."""
        for owner, name, own, ours in reversed(self._methods):
            if vars(owner).get(name) is not ours:
                continue
            if isinstance(owner, type):
                setattr(owner, name, own) if own is not None else delattr(owner, name)
            elif own is not None:
                vars(owner)[name] = own
            else:
                del vars(owner)[name]
        self._methods.clear()
        self.is_on = False
