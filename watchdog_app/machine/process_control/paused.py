"""What a pause and a resume did: records that outlive the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from watchdog_app.core.model.machine import ProcessKey


@dataclass(frozen=True, slots=True)
class Paused:
    """
    What a pause did, and all that undoing it needs; kept over a restart of the daemon.

    `keys` holds the processes that this pause stopped, in that order. Those that were stopped
    before are in `already_stopped`: they are their user's pause, and no resume of ours ends it.
    """

    keys: tuple[ProcessKey, ...]
    method: str  # "freezer" (all at one instant), "sigstop" or "psutil"
    at_unix_s: float
    already_stopped: tuple[ProcessKey, ...] = ()
    skipped: tuple[ProcessKey, ...] = ()  # descendants of another user or of watchdog itself

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the journal."""
        return {
            "keys": [[key.pid, key.start_time] for key in self.keys],
            "method": self.method,
            "at_unix_s": self.at_unix_s,
            "already_stopped": [[key.pid, key.start_time] for key in self.already_stopped],
            "skipped": [[key.pid, key.start_time] for key in self.skipped],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Paused:
        """
        The pause that `to_json` wrote down.

        Raises:
            ValueError: these are not its values.
        """

        def keys(name: str) -> tuple[ProcessKey, ...]:
            return tuple(ProcessKey(int(pid), int(start)) for pid, start in value[name])

        try:
            return cls(
                keys=keys("keys"),
                method=str(value["method"]),
                at_unix_s=float(value["at_unix_s"]),
                already_stopped=keys("already_stopped"),
                skipped=keys("skipped"),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"no record of a pause: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a resume did."""

    keys: tuple[ProcessKey, ...]  # running again, in the order they were resumed
    gone: tuple[ProcessKey, ...] = ()  # ended while they were paused
    already_running: tuple[ProcessKey, ...] = ()  # somebody else resumed them before
