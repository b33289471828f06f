"""
What wakes the loop between two ticks: pressure, and memory groups near their limit.

All sources sit behind one epoll descriptor, because a plain selector cannot
ask for POLLPRI, which pressure and group events are told by. A source that has
fired is silent until the next `update`, so that a group which brushes its limit
a thousand times a second (page cache does) costs one wake-up a tick and no more.

Sources: kernel, Documentation/accounting/psi.rst (monitoring for pressure
thresholds), Documentation/admin-guide/cgroup-v1/memory.rst (9. memory
thresholds, 10. OOM control), Documentation/admin-guide/cgroup-v2.rst (memory.events).
"""

from __future__ import annotations

import os
import select
import selectors
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from watchdog_app.core.records import CgroupMemory, Fault
from watchdog_app.errors import SensorError
from watchdog_app.sensors.files import translate
from watchdog_app.sensors.host import parse_pressure

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


class _Source(Protocol):
    """One descriptor that tells one thing."""

    fd: int
    mask: int

    def fired(self) -> Wakeup | None:
        """What happened; None when it was a false alarm."""

    def close(self) -> None:
        """Give the descriptor back."""


class _PressureTrigger:
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
        # It can fire right after arming without any stall: only a grown total is true.
        total_s = self._read()
        grown_s, self._total_s = total_s - self._total_s, total_s
        if grown_s < _STALL_S / 2:
            return None
        return Wakeup("pressure", self.path, f"stalled for {grown_s:.2f} s more")

    def close(self) -> None:
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


class Wakeups:
    """
    The descriptors that a loop waits on between ticks.

    `faults` says what cannot be had here; ticks then have to do alone.
    """

    def __init__(self, pressure_path: str = "/proc/pressure/memory") -> None:
        self.faults: tuple[Fault, ...] = ()
        self._epoll: select.epoll | None = None
        self._sources: dict[int, _Source] = {}
        self._quiet: set[int] = set()  # fired, and not armed again yet
        self._groups: dict[str, tuple[int | None, list[int]]] = {}  # limit and descriptors by path
        if sys.platform != "linux":
            return
        self._epoll = select.epoll()
        try:
            self._add(_PressureTrigger(pressure_path))
        except OSError as error:
            self._say(
                "wakeups.pressure",
                "Memory pressure does not wake watchdog between two looks "
                f"({translate(error, pressure_path)}). It looks more often when memory is short.",
                "Use a kernel with psi=1, 6.4 or newer, or let watchdog run as root.",
            )

    def fds(self) -> list[tuple[int, int]]:
        """(descriptor, selectors mask) to wait on; empty where nothing can be had."""
        if self._epoll is None:
            return []
        return [(self._epoll.fileno(), selectors.EVENT_READ)]

    def update(self, groups: Iterable[CgroupMemory]) -> None:
        """Arm what has fired again, and follow these groups and their limits. Once a tick."""
        if self._epoll is None:
            return
        for fd in self._quiet:
            source = self._sources.get(fd)
            if source is not None:
                with suppress(OSError):  # swallow what came in since: this tick has seen it
                    source.fired()
                with suppress(OSError):
                    self._epoll.register(fd, source.mask)
        self._quiet.clear()
        wanted = {
            group.path: group
            for group in groups
            if group.limit_bytes is not None or group.high_bytes is not None
        }
        for path in list(self._groups):
            group = wanted.get(path)
            if group is None or group.limit_bytes != self._groups[path][0]:
                for fd in self._groups.pop(path)[1]:
                    self._remove(fd)
        for path, group in wanted.items():
            if path not in self._groups:
                self._groups[path] = (group.limit_bytes, self._arm(group))

    def fired(self, fd: int) -> Wakeup | None:
        """What woke the loop; None when it was nothing. To be called when `fd` is readable."""
        if self._epoll is None or fd != self._epoll.fileno():
            return None
        found: Wakeup | None = None
        ready = [ready_fd for ready_fd, _ in self._epoll.poll(0)]
        # The outer wait may have taken a pressure event away already (a trigger reports each one
        # once): its counter is asked whenever anything is readable and nothing else has spoken.
        pressure = [fd for fd, source in self._sources.items() if source.mask == select.EPOLLPRI]
        for source_fd in dict.fromkeys((*ready, *pressure)):
            source = self._sources.get(source_fd)
            if source is None:
                continue
            try:
                wakeup = source.fired()
            except OSError:
                wakeup = None
            if source_fd in ready:
                # Taken out and not merely masked: an error of a removed group is never masked.
                self._epoll.unregister(source_fd)
                self._quiet.add(source_fd)
            found = found or wakeup
        return found

    def close(self) -> None:
        """Give all descriptors back."""
        for fd in list(self._sources):
            self._remove(fd)
        self._groups.clear()
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None

    def _arm(self, group: CgroupMemory) -> list[int]:
        armed: list[int] = []
        try:
            if group.version == 2:
                armed.append(self._add(_EventsV2(group.path)))
                with suppress(OSError):  # only where the group is delegated to us
                    armed.append(self._add(_PressureTrigger(f"{group.path}/memory.pressure")))
                return armed
            limit = group.limit_bytes or 0
            for ratio in _RATIOS:
                wakeup = Wakeup("threshold", group.path, f"usage crossed {ratio:.0%} of its limit")
                threshold = f"{int(limit * ratio)}"
                armed.append(
                    self._add(_EventV1(wakeup, group.path, "memory.usage_in_bytes", threshold))
                )
            oom = Wakeup("oom", group.path, "the limit was met and nothing could be given back")
            armed.append(self._add(_EventV1(oom, group.path, "memory.oom_control")))
        except OSError as error:
            problem: SensorError = translate(error, group.path)
            if os.path.isdir(group.path):
                self._say(
                    "wakeups.groups",
                    f"Memory groups do not wake watchdog between two looks ({problem}). "
                    "It looks more often when a group nears its limit.",
                    None,
                )
        return armed

    def _add(self, source: _Source) -> int:
        if self._epoll is None:
            raise OSError("closed")
        self._epoll.register(source.fd, source.mask)
        self._sources[source.fd] = source
        return source.fd

    def _remove(self, fd: int) -> None:
        source = self._sources.pop(fd)
        self._quiet.discard(fd)
        if self._epoll is not None:
            with suppress(OSError):
                self._epoll.unregister(fd)
        source.close()

    def _say(self, source: str, message: str, remedy: str | None) -> None:
        if all(fault.source != source for fault in self.faults):
            self.faults = (*self.faults, Fault(source, message, remedy))
