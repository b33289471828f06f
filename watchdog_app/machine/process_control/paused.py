"""What a pause did: a record that outlives the daemon."""

from __future__ import annotations

from dataclasses import dataclass

from watchdog_app.core.model.machine import ProcessKey


@dataclass(frozen=True, slots=True)
class Paused:
    """
    What a pause did, and all that undoing it needs; kept over a restart of the daemon.

    `keys` holds the processes that this pause stopped, in that order. Those that were stopped
    before are not among them: they are their user's pause, and no resume of ours ends it.
    """

    keys: tuple[ProcessKey, ...]
    method: str  # "freezer" (all at one instant), "sigstop" or "psutil"
    at_unix_s: float
