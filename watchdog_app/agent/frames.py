"""The frames of all threads, without a way to hang the program."""

from __future__ import annotations

import gc
import sys
from types import FrameType


def current_frames() -> dict[int, FrameType]:
    """
    As `sys._current_frames`: the innermost frame of each thread, by `threading.get_ident`.

    Up to Python 3.11 that function makes objects while it holds a lock of the interpreter's. If
    one of them begins a garbage collection, finalizers run and may let go of the GIL; a thread
    that ends just then takes the GIL and waits for that lock, and nothing runs any more, for
    ever. So no collection begins in there (CPython issue 106883).
    """
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return sys._current_frames()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()
