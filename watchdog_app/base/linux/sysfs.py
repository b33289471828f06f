"""
Attributes of devices below /sys: one value a file, and devices that come and go.

Reading one asks the device itself: a laptop's embedded controller takes
milliseconds, a disk that hangs takes for ever. Never ask in a thread that others
wait for.
"""

from __future__ import annotations

import os
import re

from watchdog_app.base.errors import SensorError
from watchdog_app.base.linux.files import read_bytes
from watchdog_app.base.text.plain import plain

_NUMBER = re.compile(rb"\s*(-?\d{1,19})\s*\Z")


def folders(path: str) -> list[str]:
    """Names in a folder of devices, in the order of their numbers; none where it is missing."""
    try:
        return sorted(os.listdir(path), key=_by_number)
    except OSError:
        return []


def parse_number(data: bytes) -> int | None:
    """The whole number that an attribute holds; None for `N/A`, nothing at all, or garbage."""
    found = _NUMBER.match(data)
    return None if found is None else int(found[1])


def number(path: str) -> int | None:
    """The same of a file; None as well where it is missing or cannot be read (EIO, ENODATA)."""
    try:
        return parse_number(read_bytes(path, 64))
    except SensorError:
        return None


def words(path: str) -> str | None:
    """The text of an attribute, safe to show; None where there is none."""
    try:
        text = read_bytes(path, 256).decode("utf-8", "replace").strip("\0\n\r\t ")
    except SensorError:
        return None
    return plain(text) if text else None


def _by_number(name: str) -> tuple[str, int]:
    head = name.rstrip("0123456789")
    tail = name[len(head) :]
    return head, int(tail) if tail else -1
