"""
When a training that was found by itself is over, and whether it ended well.

A loop of somebody's own tells nobody. It is over when the cell of a notebook that it ran in is,
or the program; in a cell that failed, was interrupted, or a program that dies of an exception it
did not end well, and its rescues wait to be gone on from.
"""

from __future__ import annotations

import atexit
import sys
import weakref
from types import CodeType
from typing import Any, Protocol


class Ending(Protocol):
    """A training that is to be told."""

    def end(self, *, well: bool) -> None:
        """It is over; `well`: its rescues are not to be gone on from."""

    def runs(self) -> bool:
        """Whether the program is still in the loop."""


def watch(training: Ending) -> None:
    """Call `training.end()` when its cell or its program ends; keeps nothing alive."""
    reference = weakref.ref(training)
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    events = getattr(get() if get else None, "events", None)
    if events is None:
        atexit.register(_program_ends, reference)
        return

    def cell_ends(result: Any = None) -> None:
        found = reference()
        if found is not None and found.runs():
            return  # in a thread of its own
        events.unregister("post_run_cell", cell_ends)
        if found is not None:
            found.end(well=bool(getattr(result, "success", True)))

    events.register("post_run_cell", cell_ends)


def interrupted(code: CodeType) -> bool:
    """Whether the last exception that reached the top went through this function."""
    frame = getattr(sys, "last_traceback", None)
    while frame is not None:
        if frame.tb_frame.f_code is code:
            return True
        frame = frame.tb_next
    return False


def _program_ends(reference: weakref.ref[Ending]) -> None:
    training = reference()
    if training is not None:
        training.end(well=getattr(sys, "last_type", None) is None)
