"""
Whether `tracemalloc` may be switched on, and off again, in this program without ending it.

Ending a trace frees what a native thread may be about to write to: one that comes into Python by
itself takes memory before it has the GIL, and waits for it in the midst of being traced. It then
crashes (CPython issue 128679, mended in 3.12.9 and 3.13.2). Threads that Python has started are
safe.
"""

from __future__ import annotations

import sys
from typing import Any

_Version = tuple[int, int, int]


def crash_risk(version: _Version = sys.version_info[:3]) -> str | None:
    """
    Why a trace could end this program; None: it cannot, as far as that is known.

    Args:
        version: of Python.
    """
    if version >= (3, 13, 2) or (3, 12, 9) <= version < (3, 13, 0):
        return None
    whose = _callers()
    if whose is None:
        return None
    return (
        f"{whose} calls this program from threads of its own, and before Python 3.12.9 a trace can "
        "crash such a program as it ends"
    )


def _callers() -> str | None:
    """A framework whose native threads come into Python here; None: none that is known."""
    scripts: Any = sys.modules.get("tensorflow.python.ops.script_ops")
    if scripts is not None:
        try:
            # Functions of Python's in a graph: numpy_function, py_function, from_generator.
            registered = int(scripts._py_funcs.size())
        except Exception:  # another version keeps them elsewhere
            registered = 1
        if registered:
            return "TensorFlow"
    torch: Any = sys.modules.get("torch")
    cuda: Any = getattr(torch, "cuda", None)
    try:
        if cuda is not None and cuda.is_initialized():
            return "PyTorch"  # the backward pass of a card runs in a thread of its own
    except Exception:
        return "PyTorch"
    return "JAX" if _jax_runs() else None


def _jax_runs() -> bool:
    """Whether JAX has a device at work: Keras imports it beside every other backend."""
    if "jax" not in sys.modules:
        return False
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    try:
        return bool(bridge.backends_are_initialized())
    except Exception:  # another version keeps them elsewhere
        return True
