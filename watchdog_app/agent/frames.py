"""The variables of a function that runs."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any


def locals_of(frame: FrameType) -> dict[str, Any]:
    """
    The variables of a function that runs.

    Before Python 3.13 the look leaves a dict behind that keeps alive what the function holds,
    also after it deleted it: it is emptied, unless the program has called `locals()` and has it.
    """
    found = frame.f_locals
    names = dict(found)
    # The frame, `found` and the argument: nobody else.
    if sys.version_info < (3, 13) and sys.getrefcount(found) <= 3:
        found.clear()
    return names
