"""
Room left on the file systems that hold folders of rescues.

They are asked in a thread of their own: a network disk that has gone away does
not answer, and whoever asks it waits for as long.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from watchdog_app.base.threads import Worker
from watchdog_app.core.model.machine import DiskSpace, Fault

_EVERY_S = 5.0
_FIRST_WAIT_S = 0.1  # for all new ones together: a local disk answers within a thousandth of that
_SILENT_AFTER_S = 15.0


class _Disk:
    """One watched folder."""

    __slots__ = ("asked_mono_s", "space")

    def __init__(self) -> None:
        self.asked_mono_s: float | None = None
        self.space: DiskSpace | None = None  # as last heard


class Disks:
    """The watched folders. `faults` holds those that cannot be read, by folder."""

    def __init__(self, ask: Callable[[str], DiskSpace] | None = None) -> None:
        """
        Args:
            ask: reads the room for a folder; raises OSError. None: the machine is asked.
        """
        self._ask_machine = ask or space
        self._disks: dict[str, _Disk] = {}
        self._waiting: set[str] = set()
        self._worker = Worker()
        self.faults: dict[str, Fault] = {}

    def add(self, path: str) -> None:
        """Watch the file system of a folder, whether the folder exists yet or not."""
        self._disks.setdefault(path, _Disk())

    def remove(self, path: str) -> None:
        """Watch it no longer; nothing happens when it is not watched."""
        self._disks.pop(path, None)
        self.faults.pop(path, None)

    def read(self, now_mono_s: float) -> tuple[DiskSpace, ...]:
        """
        Room as last heard, some seconds ago at most, in the order of adding.

        A folder that cannot be read or does not answer is a fault instead.
        """
        if not self._disks:
            return ()
        self._worker.collect()
        unheard = False
        for path, disk in self._disks.items():
            if path in self._waiting:
                if now_mono_s - (disk.asked_mono_s or 0.0) >= _SILENT_AFTER_S:
                    disk.space = None
                    self._say(path, "the disk does not answer")
            elif disk.asked_mono_s is None or now_mono_s - disk.asked_mono_s >= _EVERY_S:
                unheard |= disk.asked_mono_s is None
                disk.asked_mono_s = now_mono_s
                self._ask(path)
        if unheard:
            self._worker.collect(_FIRST_WAIT_S)
        return tuple(disk.space for disk in self._disks.values() if disk.space is not None)

    def _answered(self, path: str, found: DiskSpace | None, error: Exception | None) -> None:
        self._waiting.discard(path)
        disk = self._disks.get(path)
        if disk is None:
            return  # removed meanwhile
        disk.space = found
        if error is None:
            self.faults.pop(path, None)
        else:
            self._say(path, (isinstance(error, OSError) and error.strerror) or str(error))

    def _say(self, path: str, reason: str) -> None:
        self.faults[path] = Fault(
            f"disk {path}",
            f"The room left for rescues in {path} is not watched: {reason}.",
            "Give watchdog the right to enter that folder, see that its disk is there, or choose "
            "another folder.",
        )

    def _ask(self, path: str) -> None:
        self._waiting.add(path)
        self._worker.submit(partial(self._ask_machine, path), partial(self._answered, path))

    def close(self) -> None:
        """End the thread; its disk may never answer, so it is not waited for."""
        self._worker.close()


def space(path: str) -> DiskSpace:
    """
    Room on the file system that holds a folder. Blocks for as long as its disk does.

    Raises:
        OSError: it cannot be read.
    """
    # A folder that the agent has not made yet will stand where its nearest parent stands.
    place = path
    while not os.path.exists(place):
        above = os.path.dirname(place)
        if above == place:
            break
        place = above
    if hasattr(os, "statvfs"):
        found = os.statvfs(place)
        # bavail leaves out what is kept for root.
        return DiskSpace(path, found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)
    import shutil  # Windows; elsewhere it would only cost the daemon 2 MB of compressors

    usage = shutil.disk_usage(place)
    return DiskSpace(path, usage.free, usage.total)
