"""
Read the kernel log record by record.

/dev/kmsg returns one record per read and does not block with O_NONBLOCK. Root may read it, and all
users if kernel.dmesg_restrict is 0. Source: kernel, Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress

PATH = "/dev/kmsg"
_RECORD = 8192  # bytes per read; the kernel limits records to 8 KiB
_MOST_RECORDS = 500  # per read


def parse_record(record: bytes) -> tuple[str, float] | None:
    """
    Message and time (s since boot) of one record of /dev/kmsg; None: not from the kernel.

    The format is `priority,sequence,microseconds,flags;message`, followed by more lines.
    """
    head, semicolon, rest = record.partition(b";")
    fields = head.split(b",")
    if not semicolon or len(fields) < 3:
        return None
    # Only facility 0 is from the kernel. Root can write records of other facilities.
    try:
        priority, mono_s = int(fields[0]), int(fields[2]) / 1e6
    except (ValueError, OverflowError):
        return None
    if priority >> 3:
        return None
    return rest.split(b"\n", 1)[0].decode("utf-8", "replace"), mono_s


class KernelLog:
    """
    Reads new records of the kernel log, starting with the oldest that the kernel has.

    Args:
        path: path of the device.
        most: maximum number of records per `read`; the next `read` continues.
    """

    def __init__(self, path: str = PATH, most: int = _MOST_RECORDS) -> None:
        self._most = most
        self._fd: int | None = None
        with suppress(OSError):  # not allowed for this user, or missing
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def readable(self) -> bool:
        """Whether this user may read the log."""
        return self._fd is not None

    def read(self) -> Iterator[bytes]:
        """Yield the new records one by one, so that a long log is never in memory at once."""
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
        """Close the log; `read` then yields nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
