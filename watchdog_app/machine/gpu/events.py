"""
GPU errors of the last hour from the driver's event set and the kernel log, each once.

When the driver is gone, only the kernel log reports errors. Source of the form of an Xid: NVIDIA's
Xid catalogue.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from watchdog_app.base.linux.files import parse_log_record
from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import clean
from watchdog_app.core.model.hardware import XidEvent

_MAX_TEXT = 200
_FALLEN_XID = 79
KEEP_S = 3600.0
_MAX_EVENTS = 64  # per GPU: a broken one reports hundreds a minute
# The driver and the log may report the same event this far apart.
_DUPLICATE_WITHIN_S = 15.0

# Example: NVRM: Xid (PCI:0000:05:00): 79, pid=1234, name=python, GPU has fallen off the bus
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{7,20})\): (\d{1,5})"
    r"(?:, pid='?(<unknown>|\d{1,10})'?)?(?:, name=[^,]*)?(?:, *(.*))?$"
)
_FALLEN = re.compile(
    r"NVRM:.*?\b(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\b"
    r".*fallen off the bus"
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """An error of a GPU in the kernel log."""

    mono_s: float  # since boot, as the kernel counts
    address: str  # as written in the log: "0000:05:00"
    code: int
    pid: int | None = None
    text: str | None = None  # untrusted


def parse_line(message: str, mono_s: float) -> LogLine | None:
    """
    Parse one message about a GPU error; None: about something else.

    Args:
        message: of the kernel log, without its head.
        mono_s: when it was written, in seconds since boot.
    """
    if "NVRM" not in message:
        return None
    found = _XID.search(message)
    if found:
        address, code, pid, text = found.groups()
        known_pid = int(pid) if pid and pid.isdigit() else None
        plain = clean(text, _MAX_TEXT) if text else None
        return LogLine(mono_s, address, int(code), known_pid, plain)
    found = _FALLEN.search(message)
    if found:
        text = clean(message.partition("NVRM:")[2], _MAX_TEXT)
        return LogLine(mono_s, found.group(1), _FALLEN_XID, None, text)
    return None


def parse_record(record: bytes) -> LogLine | None:
    """Parse one record of /dev/kmsg about a GPU error; None: about something else."""
    if b"NVRM" not in record:
        return None
    found = parse_log_record(record)
    return None if found is None else parse_line(*found)


@dataclass(slots=True)
class _Entry:
    """An event and the sources that reported it."""

    event: XidEvent
    sources: set[str]


class DeviceEvents:
    """GPU errors by GPU."""

    def __init__(self) -> None:
        self._by_gpu: dict[str, list[_Entry]] = {}

    def add(self, gpu_id: str, event: XidEvent, source: str) -> None:
        """
        Add an event; one that both sources report counts once.

        Args:
            gpu_id: of the GPU.
            event: what happened.
            source: "driver" or "log".
        """
        entries = self._by_gpu.setdefault(gpu_id, [])
        for entry in entries:
            same = entry.event.code == event.code and source not in entry.sources
            if same and abs(entry.event.at_unix_s - event.at_unix_s) <= _DUPLICATE_WITHIN_S:
                entry.sources.add(source)
                entry.event = replace(
                    entry.event,
                    pid=entry.event.pid if entry.event.pid is not None else event.pid,
                    text=entry.event.text or event.text,
                )
                return
        entries.append(_Entry(event, {source}))
        entries.sort(key=lambda each: each.event.at_unix_s)
        while len(entries) > _MAX_EVENTS:
            # Remove one of the commonest code, so that a rare event that explains a failure
            # survives a thousand consequences.
            counts = Counter(each.event.code for each in entries)
            commonest = counts.most_common(1)[0][0]
            entries.remove(next(each for each in entries if each.event.code == commonest))

    def recent(self, gpu_id: str, now_unix_s: float) -> tuple[XidEvent, ...]:
        """
        Return a GPU's events of the last hour, oldest first.

        Args:
            gpu_id: of the GPU.
            now_unix_s: seconds of the epoch.
        """
        entries = self._by_gpu.get(gpu_id)
        if entries is None:
            return ()
        entries[:] = [each for each in entries if now_unix_s - each.event.at_unix_s <= KEEP_S]
        return tuple(each.event for each in entries)
