"""
The kernel log, record by record.

/dev/kmsg gives one record a read and never waits when opened so. It may be read by root, or by
anybody where kernel.dmesg_restrict is 0; elsewhere there is simply no such source. Source:
kernel, Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress

PATH = "/dev/kmsg"
_RECORD = 8192  # longer ones are refused by read; the kernel's own limit is 8 KiB
_MAX_A_LOOK = 500


def parse_record(record: bytes) -> tuple[str, float] | None:
    """
    Message and time in s since boot of one record of /dev/kmsg; None: not the kernel's own.

    `priority,sequence,microseconds,flags;message` and more lines.
    """
    head, semicolon, rest = record.partition(b";")
    fields = head.split(b",")
    if not semicolon or len(fields) < 3:
        return None
    # Facility 0 is the kernel's. Root can write there too: that is no word of the driver's.
    try:
        priority, mono_s = int(fields[0]), int(fields[2]) / 1e6
    except (ValueError, OverflowError):
        return None
    if priority >> 3:
        return None
    return rest.split(b"\n", 1)[0].decode("utf-8", "replace"), mono_s


class KernelLog:
    """
    New records of the kernel log since the last look, from the oldest that the kernel keeps.

    Args:
        path: of the device.
        most: records a look; the rest comes with the next.
    """

    def __init__(self, path: str = PATH, most: int = _MAX_A_LOOK) -> None:
        self._most = most
        self._fd: int | None = None
        with suppress(OSError):  # not for this user, or not here
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def readable(self) -> bool:
        """Whether this user may read it."""
        return self._fd is not None

    def read(self) -> Iterator[bytes]:
        """What is new, one by one: a log of years is never in memory at once."""
        for _ in range(self._most):
            if self._fd is None:
                return
            try:
                record = os.read(self._fd, _RECORD)
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EINVAL, errno.EINTR):
                    continue  # overwritten before it was read, or too long
                if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK):
                    self.close()
                return
            if not record:
                return
            yield record

    def close(self) -> None:
        """Give the descriptor back; nothing is read any more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
