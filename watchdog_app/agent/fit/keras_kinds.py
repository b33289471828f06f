"""What a thing is to Keras, of either generation (`keras`, `tf_keras`), without importing one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

PACKAGES = ("keras", "tf_keras")


def is_a(thing: Any, *names: str) -> bool:
    """Whether one of its classes is Keras's own of such a name, e.g. "EarlyStopping"."""
    return any(kind.__name__ in names for kind in type(thing).__mro__ if of_keras(kind.__module__))


def of_keras(module: object, packages: Iterable[str] = PACKAGES) -> bool:
    """Whether a module of this name is part of Keras."""
    return str(module).partition(".")[0] in packages
