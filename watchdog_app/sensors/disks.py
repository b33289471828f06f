"""Room left on the file systems that hold folders of rescues."""

from __future__ import annotations

import os

from watchdog_app.core.records import DiskSpace, Fault


class Disks:
    """The watched folders. `faults` holds those that cannot be read, by folder."""

    def __init__(self) -> None:
        self._paths: list[str] = []
        self.faults: dict[str, Fault] = {}

    def add(self, path: str) -> None:
        """Watch the file system of a folder, whether the folder exists yet or not."""
        if path not in self._paths:
            self._paths.append(path)

    def remove(self, path: str) -> None:
        """Watch it no longer; nothing happens when it is not watched."""
        if path in self._paths:
            self._paths.remove(path)
            self.faults.pop(path, None)

    def read(self) -> tuple[DiskSpace, ...]:
        """Room now, in the order of adding; a folder that cannot be read is a fault instead."""
        found = []
        for path in self._paths:
            try:
                found.append(_space(path))
            except OSError as error:
                self.faults[path] = Fault(
                    f"disk {path}",
                    f"The room left for rescues in {path} is not watched: {error.strerror}.",
                    "Give watchdog the right to enter that folder, or choose another.",
                )
            else:
                self.faults.pop(path, None)
        return tuple(found)


def _space(path: str) -> DiskSpace:
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
