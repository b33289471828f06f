"""
Wakes the loop between two samples: memory pressure, and memory groups near their limit.

The kernel has three mechanisms:

- a trigger on the memory pressure (PSI) of the machine or of a group;
- for a cgroup v1 group, an eventfd on thresholds of its usage and on its OOM event;
- for a cgroup v2 group, its memory.events file, which changes when a limit is reached.

A source that has fired stays silent until the next `update`. A group may reach its limit a thousand
times a second, as page cache does. It still costs only one wake-up per sample.

A thread opens and closes the sources of groups, because the kernel blocks each of these calls.

Source: kernel, Documentation/accounting/psi.rst (monitoring for pressure thresholds),
Documentation/admin-guide/cgroup-v1/memory.rst (9. memory thresholds, 10. OOM control),
Documentation/admin-guide/cgroup-v2.rst (memory.events).
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import field
from functools import partial
from typing import Protocol

from watchdog_app.base.linux.files import sensor_error, write_bytes
from watchdog_app.base.records import dataclass
from watchdog_app.base.threads import Worker
from watchdog_app.core.model.machine import CgroupMemory, Fault
from watchdog_app.machine.sensors.host import parse_pressure

# Stalled for 0.1 s within 2 s. Without CAP_SYS_RESOURCE the window must be a multiple of 2 s.
_TRIGGER = b"some 100000 2000000\0"
_STALL_S = 0.1
_RATIOS = (0.80, 0.90, 0.95)
_CLOSE_S = 1.0
_LINUX: bool = sys.platform == "linux"
_READ, _URGENT = (select.EPOLLIN, select.EPOLLPRI) if sys.platform == "linux" else (0, 0)


class Poller(Protocol):
    """Waits for events on descriptors."""

    def add(self, fd: int, events: int, ready: Callable[[int], None]) -> None:
        """
        Call `ready(events)` whenever `fd` has one of `events`, an error or a hang-up.

        Args:
            fd: watched until `remove`.
            events: of epoll(7), or-ed.
            ready: called in the thread of the loop.
        """

    def remove(self, fd: int) -> None:
        """Stop calling back for `fd`."""


@dataclass(frozen=True, slots=True)
class Wakeup:
    """The reason to sample at once."""

    source: str  # "oom", "events", "threshold" or "pressure"
    path: str  # the file or group concerned


@dataclass(slots=True, eq=False)
class _Source:
    """One descriptor that reports one kind of event."""

    fd: int
    mask: int
    wakeup: Wakeup
    fired: Callable[[], bool]  # returns False on a false alarm


@dataclass(slots=True, eq=False)
class _Group:
    """A tracked group and the limit for which it was armed."""

    limit_bytes: int | None
    sources: list[_Source] = field(default_factory=list)


class Triggers:
    """
    The descriptors that the loop waits on between samples. For one thread.

    `faults` says which sources this machine lacks; then only regular samples show their events.

    Args:
        poller: waits for the descriptors.
        wake: ends the poller's wait from another thread: `pop_wakeup` has something to do.
        pressure_path: pressure file of the whole machine.
    """

    def __init__(
        self, poller: Poller, wake: Callable[[], None], pressure_path: str = "/proc/pressure/memory"
    ) -> None:
        self.faults: tuple[Fault, ...] = ()
        self._poller = poller
        self._armed: set[_Source] = set()
        self._fired: set[_Source] = set()  # fired, and not armed again yet
        self._groups: dict[str, _Group] = {}  # by path
        self._worker = Worker(wake, linger_s=0.0)
        self._wakeup: Wakeup | None = None
        if not _LINUX:
            return
        try:
            self._add(_open_pressure(pressure_path))
        except OSError as error:
            self._add_fault(
                "wakeups.pressure",
                "Memory pressure does not wake watchdog between two looks "
                f"({sensor_error(error, pressure_path)}). "
                "It looks more often when memory is short.",
                "Use a kernel with psi=1, 6.4 or newer, or let watchdog run as root.",
            )

    def update(self, groups: Iterable[CgroupMemory]) -> None:
        """
        Arm the fired sources again, and track these groups and their limits. Call once per sample.

        A new group causes no wake-up until the thread has armed it, a moment later.
        """
        if not _LINUX:
            return
        self._worker.collect()
        for source in self._fired:
            with suppress(OSError):  # discard events since the last read: this sample has seen them
                source.fired()
            with suppress(OSError):
                self._add(source)
        self._fired.clear()
        wanted = {
            group.path: group
            for group in groups
            if group.limit_bytes is not None or group.high_bytes is not None
        }
        for path in list(self._groups):
            group = wanted.get(path)
            if group is None or group.limit_bytes != self._groups[path].limit_bytes:
                for source in self._groups.pop(path).sources:
                    self._release(source)
        for path, group in wanted.items():
            if path not in self._groups:
                followed = self._groups[path] = _Group(group.limit_bytes)
                self._worker.submit(
                    partial(_open_sources, group), partial(self._add_group_sources, path, followed)
                )

    def pop_wakeup(self) -> Wakeup | None:
        """Return what fired first since the last call; None: nothing."""
        self._worker.collect()
        found, self._wakeup = self._wakeup, None
        return found

    def wait_until_armed(self, timeout_s: float) -> None:
        """Wait until the groups of the latest `update` are armed, as far as possible."""
        self._worker.collect(timeout_s)

    def close(self) -> None:
        """Close all descriptors."""
        self._groups.clear()
        self.wait_until_armed(_CLOSE_S)
        for source in (*self._armed, *self._fired):
            self._release(source)
        self._worker.close(_CLOSE_S)

    def _add(self, source: _Source) -> None:
        self._poller.add(source.fd, source.mask, partial(self._on_ready, source))
        self._armed.add(source)

    def _on_ready(self, source: _Source, _: int) -> None:
        # Remove the descriptor instead of masking it: epoll reports the error of a removed group
        # even if it is masked.
        self._poller.remove(source.fd)
        self._armed.discard(source)
        self._fired.add(source)
        with suppress(OSError):
            if source.fired():
                self._wakeup = self._wakeup or source.wakeup

    def _release(self, source: _Source) -> None:
        if source in self._armed:
            self._poller.remove(source.fd)
        self._armed.discard(source)
        self._fired.discard(source)
        self._worker.submit(partial(os.close, source.fd))

    def _add_group_sources(
        self,
        path: str,
        group: _Group,
        found: tuple[list[_Source], OSError | None] | None,
        _: Exception | None,
    ) -> None:
        """Poll the opened sources, unless the group is not watched any more."""
        sources, problem = found or ([], None)
        if self._groups.get(path) is not group:
            for source in sources:
                self._release(source)
            return
        group.sources = sources
        for source in sources:
            self._add(source)
        if problem is not None and os.path.isdir(path):
            self._add_fault(
                "wakeups.groups",
                "Memory groups do not wake watchdog between two looks "
                f"({sensor_error(problem, path)}). "
                "It looks more often when a group nears its limit.",
                None,
            )

    def _add_fault(self, source: str, message: str, remedy: str | None) -> None:
        if all(fault.source != source for fault in self.faults):
            self.faults = (*self.faults, Fault(source, message, remedy))


def _open_sources(group: CgroupMemory) -> tuple[list[_Source], OSError | None]:
    """
    Open the sources of a group, in the thread; return them and the error that prevented others.
    """
    sources: list[_Source] = []
    try:
        if group.version == 2:
            sources.append(_open_events(group.path))
            with suppress(OSError):  # works only if the group is delegated to this user
                sources.append(_open_pressure(f"{group.path}/memory.pressure"))
            return sources, None
        for ratio in _RATIOS:
            threshold = f"{int((group.limit_bytes or 0) * ratio)}"
            crossed = Wakeup("threshold", group.path)
            sources.append(_open_eventfd(crossed, "memory.usage_in_bytes", threshold))
        sources.append(_open_eventfd(Wakeup("oom", group.path), "memory.oom_control"))
    except OSError as error:
        return sources, error
    return sources, None


def _open_pressure(path: str) -> _Source:
    """Open a trigger on one pressure file."""
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def stalled_s() -> float:
        pressure = parse_pressure(os.pread(fd, 512, 0))
        return pressure.some_total_s if pressure else 0.0

    try:
        os.write(fd, _TRIGGER)
        seen_s = stalled_s()
    except OSError:
        os.close(fd)
        raise

    def fired() -> bool:
        # The trigger can fire right after arming without any stall. So check that the total has
        # grown.
        nonlocal seen_s
        before_s, seen_s = seen_s, stalled_s()
        return seen_s - before_s >= _STALL_S / 2

    return _Source(fd, _URGENT, Wakeup("pressure", path), fired)


def _open_events(group: str) -> _Source:
    """Open the memory.events file of a cgroup v2 group."""
    fd = os.open(f"{group}/memory.events", os.O_RDONLY | os.O_CLOEXEC)
    # The read also arms the file: it reports changes since the last read.
    seen = os.pread(fd, 4096, 0)

    def fired() -> bool:
        nonlocal seen
        before, seen = seen, os.pread(fd, 4096, 0)
        return seen != before

    return _Source(fd, _URGENT, Wakeup("events", group), fired)


def _open_eventfd(wakeup: Wakeup, name: str, argument: str = "") -> _Source:
    """Open an eventfd on a memory threshold or on the OOM event of a cgroup v1 group."""
    fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        target = os.open(f"{wakeup.path}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            order = f"{fd} {target} {argument}".rstrip().encode()
            write_bytes(f"{wakeup.path}/cgroup.event_control", order)
        finally:
            os.close(target)
    except OSError:
        os.close(fd)
        raise

    def fired() -> bool:
        with suppress(BlockingIOError):
            os.eventfd_read(fd)
            # The kernel also signals when the group is removed. Then its limit does not matter.
            return os.path.isdir(wakeup.path)
        return False

    return _Source(fd, _READ, wakeup, fired)
