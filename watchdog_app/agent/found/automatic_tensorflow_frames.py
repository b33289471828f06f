"""Who calls an optimizer: Keras's own training, or a tf.function of the program."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Any


def outermost(frame: FrameType | None, call: CodeType) -> Any:
    """
    The outermost tf.function that is called here; None where Keras itself trains.

    Args:
        call: the code of our wrapper around a tf.function's call: its own locals are looked at
            and nobody else's.
    """
    found = None
    while frame is not None:
        if frame.f_code is call:
            found = frame.f_locals.get("self")
        elif _is_trainer(frame):
            return None
        frame = frame.f_back
    return found


def in_keras_trainer(frame: FrameType | None) -> bool:
    """Whether a fit or another method of a Keras model that trains leads here."""
    while frame is not None:
        if _is_trainer(frame):
            return True
        frame = frame.f_back
    return False


def _is_trainer(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__"))
    return name.startswith("keras.src.") and name.endswith("trainer")
