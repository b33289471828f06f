"""
Whether somebody has written to the limit of a memory group, without reading the limits.

Limits are changed by hand, rarely: `docker update`, `systemctl set-property`. The kernel tells
of writes to the files of a group as of those to any file; asking costs one system call.

Source: inotify(7).
"""

from __future__ import annotations

import os
import select
import struct
import sys
from collections.abc import Collection
from contextlib import suppress

_MODIFIED = 0x2  # IN_MODIFY
_OVERFLOW = 0x4000  # IN_Q_OVERFLOW: something may have been missed
_ABSENT = frozenset((2, 20))  # ENOENT, ENOTDIR: the root has no limit, an old kernel no memory.high


class LimitChanges:
    """Writes to a set of files. `complete`: whether each of those that exist is followed."""

    def __init__(self) -> None:
        self.complete = False
        self._fd = -1
        self._watches: dict[str, int] = {}
        if sys.platform != "linux":
            return
        import ctypes

        with suppress(OSError, AttributeError):
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._errno = ctypes.get_errno
            self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:  # else this user has too many already, or we have no descriptor left
            # To be told that there is nothing to read costs a quarter of failing to read it.
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN)

    def follow(self, files: Collection[str]) -> None:
        """These files from now on, and no others."""
        if self._fd < 0:
            return
        for path in self._watches.keys() - set(files):
            self._libc.inotify_rm_watch(self._fd, self._watches.pop(path))
        self.complete = True
        for path in files:
            if path in self._watches:
                continue
            watch = self._libc.inotify_add_watch(self._fd, os.fsencode(path), _MODIFIED)
            if watch >= 0:
                self._watches[path] = watch
            elif self._errno() not in _ABSENT:
                self.complete = False  # too many for this user, or not allowed

    def pending(self) -> bool:
        """Whether `any` may have something to say."""
        return not self.complete or bool(self._poll.poll(0))

    def any(self) -> bool:
        """Whether one of them was written to since the last call."""
        found = False
        if self._fd >= 0 and self._poll.poll(0):
            with suppress(BlockingIOError):  # nothing more
                while data := os.read(self._fd, 4096):
                    # No names: a file is watched, and not its folder.
                    masks = (mask for _, mask, _, _ in struct.iter_unpack("iIII", data))
                    found = any(mask & (_MODIFIED | _OVERFLOW) for mask in masks) or found
        return found

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
