"""The pauses of a daemon, without the daemon."""

from __future__ import annotations

import os
from pathlib import Path

from watchdog_app.daemon.log import Faults, Log
from watchdog_app.daemon.pauses import Pauses, StateOf


def standing_pauses(folder: Path, state_of: StateOf) -> Pauses:
    """
    Return pauses that are stored in two folders.

    Args:
        folder: the parent of both folders.
        state_of: returns the state letter of /proc; None if the process is gone.
    """
    log = Log(False, fd=os.open(os.devnull, os.O_WRONLY))
    where = str(folder / "run"), str(folder / "state")
    return Pauses(where, "boot", faults=Faults(log), state_of=state_of, wake=lambda: None, log=log)
