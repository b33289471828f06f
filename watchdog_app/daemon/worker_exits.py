"""
WorkerExits of workers: at rest nobody looks at them for up to a minute, so they wake the daemon.

The ends of whole tasks are `exit_monitor`' own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from watchdog_app.base.linux.files import handle_share
from watchdog_app.base.linux.process import open_pidfd
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.daemon.poller import READ, Poller

_MOST = 500


class WorkerExits:
    """
    Handles of the workers of all tasks.

    Args:
        ended: called when one has ended.
    """

    def __init__(self, poller: Poller, ended: Callable[[], None]) -> None:
        self._poller = poller
        self._ended = ended
        self._handles: dict[ProcessKey, int | None] = {}  # None: it cannot be had

    def follow(self, tasks: Iterable[Task]) -> None:
        """The tasks of one more look."""
        now = {member.key for task in tasks for member in task.members[1:]}
        most = handle_share(_MOST)
        for key in self._handles.keys() - now:
            self._release(key)
        for key in now - self._handles.keys():
            handle = open_pidfd(key.pid) if len(self._handles) < most else None
            self._handles[key] = handle
            if handle is not None:
                self._poller.add(handle, READ, lambda _, key=key: self._end(key))  # type: ignore[misc]

    def close(self) -> None:
        """Give the handles back."""
        for key in list(self._handles):
            self._release(key)

    def _end(self, key: ProcessKey) -> None:
        self._release(key)
        self._handles[key] = None  # until the look that finds it gone
        self._ended()

    def _release(self, key: ProcessKey) -> None:
        handle = self._handles.pop(key, None)
        if handle is not None:
            self._poller.remove(handle)
            os.close(handle)
