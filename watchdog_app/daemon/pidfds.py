"""Handles (pidfds) of processes: whose process ends wakes the loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from watchdog_app.base.linux.files import handle_share
from watchdog_app.base.linux.process import open_pidfd
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon.poller import READ, Poller

_MOST = 500


class PidFds:
    """
    Handles of the processes that are followed.

    Args:
        ended: called once with each that has ended; its handle is still open then.
    """

    def __init__(self, poller: Poller, ended: Callable[[ProcessKey], None]) -> None:
        self._poller = poller
        self._ended = ended
        self._handles: dict[ProcessKey, int | None] = {}  # None: it cannot be had, or has ended

    def follow(self, keys: Collection[ProcessKey]) -> None:
        """Follow these, and nobody else any more."""
        now = set(keys)
        most = handle_share(_MOST)
        for key in self._handles.keys() - now:
            self.release(key)
        for key in now - self._handles.keys():
            handle = open_pidfd(key.pid) if len(self._handles) < most else None
            self._handles[key] = handle
            if handle is not None:
                self._poller.add(handle, READ, lambda _, key=key: self._end(key))  # type: ignore[misc]

    def fd(self, key: ProcessKey) -> int | None:
        """The handle of a process; None: there is none."""
        return self._handles.get(key)

    def release(self, key: ProcessKey) -> None:
        """Follow a process no more."""
        handle = self._handles.pop(key, None)
        if handle is not None:
            self._poller.remove(handle)
            os.close(handle)

    def close(self) -> None:
        """Give all handles back."""
        self.follow(())

    def _end(self, key: ProcessKey) -> None:
        try:
            self._ended(key)
        finally:
            self.release(key)
            self._handles[key] = None  # until it is followed no more
