"""
Memory that ran out inside the program: which errors say so, and what can be freed after one.

The frameworks word it in many ways, and none of them has a class of its own for it that
others share: `is_of_memory` knows them by type and text, and imports none of them.
"""

from __future__ import annotations

import gc
import sys
import traceback
from typing import Any

from watchdog_app.base.oom_text import says_memory

REASON = "out of memory in the program"

CHOICES = ("save", "shrink", None)

_CAUSES = 5  # errors that lie behind an error and are looked at
_TYPES = frozenset(
    {
        "OutOfMemoryError",  # torch, CuPy
        "_ArrayMemoryError",  # NumPy: a MemoryError
        "ArrayMemoryError",
    }
)
# Frameworks whose errors are told from those of others by their text alone.
_FRAMEWORKS = ("tensorflow.", "torch", "jax", "jaxlib.", "keras.", "cupy", "builtins")


def check(on_oom: object) -> None:
    """
    Refuse what is no choice of `on_oom`.

    Raises:
        ValueError: it is neither "save" nor "shrink" nor None.
    """
    if on_oom not in CHOICES:
        raise ValueError(f'on_oom must be "save", "shrink" or None, not {on_oom!r}')


def is_of_memory(error: BaseException | None) -> bool:
    """
    Whether `error`, or one that it was raised from, says that memory ran out.

    Known are Python's and NumPy's MemoryError, TensorFlow's ResourceExhaustedError and what it
    makes of a MemoryError in a data pipeline, torch.OutOfMemoryError and the RuntimeError of its
    CPU allocator, and the RESOURCE_EXHAUSTED of XLA and JAX. A full disk is none of them.
    """
    for _ in range(_CAUSES):
        if error is None:
            return False
        if _says_so(error):
            return True
        error = error.__cause__
    return False


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    kind = type(error)
    if kind.__name__ in _TYPES:
        return True
    if not isinstance(error, Exception) or isinstance(error, OSError):
        return False
    if not (kind.__module__ or "").startswith(_FRAMEWORKS):
        return False
    exhausted = kind.__name__ == "ResourceExhaustedError"
    if not exhausted and not isinstance(error, RuntimeError) and not hasattr(error, "error_code"):
        return False
    # The text of a graph's error goes on with the whole stack of its operations.
    said = says_memory(str(error)[:4000])
    return exhausted if said is None else said


def in_optimizer(error: BaseException) -> bool:
    """Whether one of PyTorch's optimizers was at work when `error` was raised."""
    place = error.__traceback__
    while place is not None:
        if str(place.tb_frame.f_globals.get("__name__", "")).startswith("torch.optim."):
            return True
        place = place.tb_next
    return False


def drop_frames(error: BaseException) -> None:
    """
    Let go of what the functions below the caller held when `error` was raised.

    For an error that goes no further: the local variables of each function that it came through
    keep activations alive as long as the error itself.
    """
    below = error.__traceback__
    if below is not None and below.tb_next is not None:
        traceback.clear_frames(below.tb_next)
    error.__traceback__ = None
    error.__context__ = None


def free() -> None:
    """Give back what nobody holds any more, to the system and to the GPU's allocator."""
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
