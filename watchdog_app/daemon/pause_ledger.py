"""
What is paused, in a small file beside the socket: there before the first signal, without a disk.

A pause lasts no longer than the machine runs, and neither does the folder that sessions keep in
memory. So nothing is synced, and a disk that is full, slow or gone keeps nobody from knowing what
stands still; the journal holds the same, for where this folder is lost.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from watchdog_app.base import paths
from watchdog_app.base.durable import write_whole

FILE = "paused.json"
_MOST_BYTES = 4 << 20
_VERSION = 1
WRITTEN = "mono_ns"  # when an entry was written, by the clock that nobody sets


@dataclass(frozen=True, slots=True)
class Ledger:
    """All that was paused at one moment, by the keys of `pauses.ident`."""

    mono_ns: int
    pauses: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read(folder: str, boot: str) -> Ledger | None:
    """
    The ledger in a folder; None: there is none of this boot that could be trusted. Never raises.

    Args:
        folder: of the daemon's socket.
        boot: of this start of the machine.
    """
    try:
        value = json.loads(_content(os.path.join(folder, FILE)))
        if value["version"] != _VERSION or value["boot"] != boot:
            return None
        pauses = {str(ident): dict(data) for ident, data in value["pauses"].items()}
        return Ledger(int(value[WRITTEN]), pauses)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    except RecursionError:
        return None


def write(folder: str, boot: str, pauses: Mapping[str, Mapping[str, Any]]) -> None:
    """
    Put all that is paused now in the place of what was there.

    Raises:
        OSError: it cannot be written; what was there stands.
    """
    value = {"version": _VERSION, "boot": boot, WRITTEN: time.monotonic_ns(), "pauses": pauses}
    content = json.dumps(value, separators=(",", ":")).encode("ascii")
    write_whole(os.path.join(folder, FILE), content, 0o600, durable=False)


def merged(
    ledger: Ledger | None, journal: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """
    What is paused, by both.

    The ledger is written as a whole, and first: what the journal alone holds was dropped since,
    unless it was written later than the ledger could be.
    """
    if ledger is None:
        return dict(journal)
    later = {ident: data for ident, data in journal.items() if _written_ns(data) > ledger.mono_ns}
    return {**ledger.pauses, **later}


def _written_ns(data: Mapping[str, Any]) -> float:
    found = data.get(WRITTEN)
    # An earlier version wrote no moment, and no ledger either.
    return found if isinstance(found, int) else float("inf")


def _content(path: str) -> bytes:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags), "rb") as file:
        found = os.fstat(file.fileno())
        # It says whom to signal: nobody else may have written it.
        if not stat.S_ISREG(found.st_mode) or paths.foreign(found):
            raise ValueError("no file of ours")
        return file.read(_MOST_BYTES)


def gone(folder: str) -> bool:
    """Whether somebody has cleaned the folder."""
    with suppress(OSError):
        os.lstat(os.path.join(folder, FILE))
        return False
    return True
