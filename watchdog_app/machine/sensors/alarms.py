"""
Descriptors by which the kernel tells that memory runs short: of the machine, or of one group.

To arm one, or to give one up, can take tens of milliseconds: the kernel waits until all
processors have been elsewhere once (synchronize_rcu in psi_trigger_destroy and in
__mem_cgroup_usage_register_event), and longer where there is none to be had.

Sources: kernel, Documentation/accounting/psi.rst (monitoring for pressure
thresholds), Documentation/admin-guide/cgroup-v1/memory.rst (9. memory
thresholds, 10. OOM control), Documentation/admin-guide/cgroup-v2.rst (memory.events).
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from watchdog_app.core.model.machine import CgroupMemory
from watchdog_app.machine.sensors.host import parse_pressure

# Stalled for 0.1 s within 2 s. Without CAP_SYS_RESOURCE the window must be a multiple of 2 s.
_TRIGGER = b"some 100000 2000000\0"
_STALL_S = 0.1
_RATIOS = (0.80, 0.90, 0.95)


@dataclass(frozen=True, slots=True)
class Wakeup:
    """Why to look at once."""

    source: str  # "pressure", "threshold", "oom", "events"
    path: str  # the file or group that it concerns
    detail: str


def rank(wakeup: Wakeup) -> int:
    """The lower, the graver."""
    # One look answers all that came in together: it is told the gravest of them.
    return ("oom", "events", "threshold", "pressure").index(wakeup.source)


class Source(Protocol):
    """One descriptor that tells one thing."""

    fd: int
    mask: int

    def fired(self) -> Wakeup | None:
        """What happened; None when it was a false alarm."""

    def close(self) -> None:
        """Give the descriptor back."""


class PressureTrigger:
    """A trigger on one pressure file."""

    mask = select.EPOLLPRI if sys.platform == "linux" else 0

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(self.fd, _TRIGGER)
            self._total_s = self._read()
        except OSError:
            os.close(self.fd)
            raise

    def _read(self) -> float:
        pressure = parse_pressure(os.pread(self.fd, 512, 0))
        return pressure.some_total_s if pressure else 0.0

    def fired(self) -> Wakeup | None:
        """What happened; None when it was a false alarm."""
        # It can fire right after arming without any stall: only a grown total is true.
        total_s = self._read()
        grown_s, self._total_s = total_s - self._total_s, total_s
        if grown_s < _STALL_S / 2:
            return None
        return Wakeup("pressure", self.path, f"stalled for {grown_s:.2f} s more")

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)


class _EventV1:
    """An eventfd on a memory threshold or on the OOM event of a cgroup v1 group."""

    mask = select.EPOLLIN if sys.platform == "linux" else 0

    def __init__(self, wakeup: Wakeup, group: str, name: str, argument: str = "") -> None:
        self._wakeup = wakeup
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            target = os.open(f"{group}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                control = os.open(f"{group}/cgroup.event_control", os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.write(control, f"{self.fd} {target} {argument}".rstrip().encode())
                finally:
                    os.close(control)
            finally:
                os.close(target)
        except OSError:
            os.close(self.fd)
            raise

    def fired(self) -> Wakeup | None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return None
        # The kernel signals once more when the group is removed: nothing is near its limit then.
        return self._wakeup if os.path.isdir(self._wakeup.path) else None

    def close(self) -> None:
        os.close(self.fd)


class _EventsV2:
    """The memory.events file of a cgroup v2 group, which changes when a limit is met."""

    mask = select.EPOLLPRI if sys.platform == "linux" else 0

    def __init__(self, group: str) -> None:
        self._group = group
        self.fd = os.open(f"{group}/memory.events", os.O_RDONLY | os.O_CLOEXEC)
        self._seen = self._read()

    def _read(self) -> bytes:
        # Reading is also what arms it: it reports changes since the last read.
        return os.pread(self.fd, 4096, 0)

    def fired(self) -> Wakeup | None:
        try:
            now = self._read()
        except OSError:  # the group was removed
            return None
        before, self._seen = self._seen, now
        changed = sorted(set(now.splitlines()) - set(before.splitlines()))
        if not changed:
            return None
        return Wakeup("events", self._group, b", ".join(changed).decode("ascii", "replace"))

    def close(self) -> None:
        os.close(self.fd)


def arm(group: CgroupMemory, armed: list[Source]) -> None:
    """
    All that tells of this group, appended to `armed` one by one.

    Raises:
        OSError: the rest cannot be had.
    """
    if group.version == 2:
        armed.append(_EventsV2(group.path))
        with suppress(OSError):  # only where the group is delegated to us
            armed.append(PressureTrigger(f"{group.path}/memory.pressure"))
        return
    limit = group.limit_bytes or 0
    for ratio in _RATIOS:
        wakeup = Wakeup("threshold", group.path, f"usage crossed {ratio:.0%} of its limit")
        threshold = f"{int(limit * ratio)}"
        armed.append(_EventV1(wakeup, group.path, "memory.usage_in_bytes", threshold))
    oom = Wakeup("oom", group.path, "the limit was met and nothing could be given back")
    armed.append(_EventV1(oom, group.path, "memory.oom_control"))
