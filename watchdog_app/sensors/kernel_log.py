"""
The kernel log, and what it says about NVIDIA's cards: the only witness when the driver is gone.

/dev/kmsg gives one record a read and never waits when opened so. It may be read by root, or by
anybody where kernel.dmesg_restrict is 0; elsewhere there is simply no such source. Sources:
kernel, Documentation/ABI/testing/dev-kmsg; NVIDIA's Xid catalogue for the form of an Xid.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

_PATH = "/dev/kmsg"
_RECORD = 8192  # longer ones are refused by read; the kernel's own limit is 8 KiB
_MOST_A_LOOK = 500
_MOST_TEXT = 200
FALLEN_XID = 79

# Such as: NVRM: Xid (PCI:0000:05:00): 79, pid=1234, name=python, GPU has fallen off the bus
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{7,20})\): (\d{1,5})"
    r"(?:, pid='?(<unknown>|\d{1,10})'?)?(?:, name=[^,]*)?(?:, *(.*))?$"
)
_FALLEN = re.compile(
    r"NVRM:.*?\b(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\b"
    r".*fallen off the bus"
)
_MISMATCH = re.compile(r"NVRM: API mismatch")


class LogKind(StrEnum):
    """What a line is about."""

    XID = "xid"
    MISMATCH = "mismatch"  # a program's driver library does not fit the loaded module


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the driver's in the kernel log."""

    kind: LogKind
    mono_s: float  # since boot, as the kernel counts
    address: str | None = None  # as written there: "0000:05:00"
    code: int | None = None
    pid: int | None = None
    text: str | None = None  # untrusted


def parse_line(message: str, mono_s: float) -> LogLine | None:
    """What one message says of a card; None: nothing."""
    if "NVRM" not in message:
        return None
    found = _XID.search(message)
    if found:
        address, code, pid, said = found.groups()
        return LogLine(
            LogKind.XID,
            mono_s,
            address,
            int(code),
            int(pid) if pid and pid.isdigit() else None,
            _plain(said or "") or None,
        )
    found = _FALLEN.search(message)
    if found:
        text = _plain(message.partition("NVRM:")[2])
        return LogLine(LogKind.XID, mono_s, found.group(1), FALLEN_XID, None, text)
    if _MISMATCH.search(message):
        return LogLine(LogKind.MISMATCH, mono_s, text=_plain(message.partition("NVRM:")[2]))
    return None


def message_of(record: bytes) -> tuple[str, float] | None:
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


def parse_record(record: bytes) -> LogLine | None:
    """What one record of /dev/kmsg says of a card; None: nothing."""
    if b"NVRM" not in record:
        return None
    found = message_of(record)
    return None if found is None else parse_line(*found)


class Records:
    """
    New records of the kernel log since the last look, from the oldest that the kernel keeps.

    Args:
        path: of the device.
        most: records a look; the rest comes with the next.
    """

    def __init__(self, path: str = _PATH, most: int = _MOST_A_LOOK) -> None:
        self._path = path
        self._most = most
        self._fd: int | None = None
        self._tried = False

    @property
    def readable(self) -> bool:
        """Whether this user may read it."""
        return self._fd is not None or not self._tried

    def read(self) -> Iterator[bytes]:
        """What is new, one by one: a log of years is never in memory at once."""
        if not self._tried:
            self._tried = True
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                self._fd = None  # not for this user, or not here
        for _ in range(self._most if self._fd is not None else 0):
            if self._fd is None:
                break
            try:
                record = os.read(self._fd, _RECORD)
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EINVAL, errno.EINTR):
                    continue  # overwritten before it was read, or too long
                if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK):
                    self.close()
                break
            if not record:
                break
            yield record

    def close(self) -> None:
        """Give the descriptor back; nothing is read any more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class KernelLog:
    """New lines about cards since the last look; at most 500 records a look."""

    def __init__(self, path: str = _PATH) -> None:
        self._records = Records(path)

    @property
    def readable(self) -> bool:
        """Whether this user may read it."""
        return self._records.readable

    def read(self) -> list[LogLine]:
        """What is new about cards."""
        found = (parse_record(record) for record in self._records.read())
        return [line for line in found if line is not None]

    def close(self) -> None:
        """Give the descriptor back; nothing is read any more."""
        self._records.close()


def _plain(text: str) -> str:
    kept = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(kept.split())[:_MOST_TEXT]
