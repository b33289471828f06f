"""
What wakes the loop between two ticks: pressure, and memory groups near their limit.

All sources sit behind one epoll descriptor, because a plain selector cannot
ask for POLLPRI, which pressure and group events are told by. A source that has
fired is silent until the next `update`, so that a group which brushes its limit
a thousand times a second (page cache does) costs one wake-up a tick and no more.

Groups are armed and given up by a thread, which is there as long as it has something to do: the
kernel makes each of these calls wait, and no look is to be late by it.
"""

from __future__ import annotations

import os
import select
import selectors
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from watchdog_app.base.linux.files import translate
from watchdog_app.base.threads import Done, Worker
from watchdog_app.core.model.machine import CgroupMemory, Fault
from watchdog_app.machine.sensors.alarms import PressureTrigger, Source, Wakeup, arm, rank

_END_S = 1.0


@dataclass(slots=True, eq=False)
class _Armed:
    """A group that is followed, with the limit that it was armed for."""

    limit_bytes: int | None
    fds: list[int] = field(default_factory=list)


class Wakeups:
    """
    The descriptors that a loop waits on between ticks. For one thread.

    `faults` says what cannot be had here; ticks then have to do alone.
    """

    def __init__(self, pressure_path: str = "/proc/pressure/memory") -> None:
        self.faults: tuple[Fault, ...] = ()
        self._epoll: select.epoll | None = None
        self._sources: dict[int, Source] = {}
        self._quiet: set[int] = set()  # fired, and not armed again yet
        self._groups: dict[str, _Armed] = {}  # by path
        self._worker = Worker(lambda: os.eventfd_write(self._told, 1), linger_s=0.0)
        self._told = -1  # readable when a group has been armed
        if sys.platform != "linux":
            return
        self._epoll = select.epoll()
        try:
            self._add(PressureTrigger(pressure_path))
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
        """
        Arm what has fired again, and follow these groups and their limits. Once a tick.

        A group that is new here wakes nobody until it is armed: a moment later.
        """
        if self._epoll is None:
            return
        self._worker.collect()
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
            if group is None or group.limit_bytes != self._groups[path].limit_bytes:
                for fd in self._groups.pop(path).fds:
                    self._soon(self._remove(fd).close)
        for path, group in wanted.items():
            if path not in self._groups:
                armed = self._groups[path] = _Armed(group.limit_bytes)
                self._soon(partial(_arm, group), partial(self._take_in, path, armed))

    def fired(self, fd: int) -> Wakeup | None:
        """The gravest of what woke the loop, or None. To be called when `fd` is readable."""
        if self._epoll is None or fd != self._epoll.fileno():
            return None
        found: Wakeup | None = None
        ready = [ready_fd for ready_fd, _ in self._epoll.poll(0)]
        if self._told in ready:
            os.eventfd_read(self._told)
            self._worker.collect()
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
            if wakeup is not None and (found is None or rank(wakeup) < rank(found)):
                found = wakeup
        return found

    def settle(self, timeout_s: float) -> None:
        """Wait until the groups of the latest `update` are armed, as far as they can be."""
        self._worker.collect(timeout_s)

    def close(self) -> None:
        """Give all descriptors back."""
        if self._epoll is None:
            return
        self._groups.clear()
        self.settle(_END_S)
        for fd in list(self._sources):
            self._remove(fd).close()
        self.settle(_END_S)
        self._epoll.close()
        self._epoll = None
        if self._told >= 0:
            os.close(self._told)
            self._told = -1

    def _soon(self, job: Callable[[], Any], done: Done | None = None) -> None:
        """Let the thread do this, in the order of these calls."""
        if self._told < 0 and self._epoll is not None:
            self._told = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._epoll.register(self._told, select.EPOLLIN)
        self._worker.submit(job, done)

    def _take_in(
        self, path: str, armed: _Armed, found: tuple[list[Source], OSError | None] | None, _: object
    ) -> None:
        """Wait for what has been armed, unless the group is not followed any more."""
        sources, problem = found or ([], None)
        wanted = self._groups.get(path) is armed
        for source in sources:
            if wanted:
                armed.fds.append(self._add(source))
            else:
                self._soon(source.close)
        if problem is not None and wanted and os.path.isdir(path):
            self._say(
                "wakeups.groups",
                "Memory groups do not wake watchdog between two looks "
                f"({translate(problem, path)}). "
                "It looks more often when a group nears its limit.",
                None,
            )

    def _add(self, source: Source) -> int:
        if self._epoll is None:
            raise OSError("closed")
        self._epoll.register(source.fd, source.mask)
        self._sources[source.fd] = source
        return source.fd

    def _remove(self, fd: int) -> Source:
        source = self._sources.pop(fd)
        self._quiet.discard(fd)
        if self._epoll is not None:
            with suppress(OSError):
                self._epoll.unregister(fd)
        return source

    def _say(self, source: str, message: str, remedy: str | None) -> None:
        if all(fault.source != source for fault in self.faults):
            self.faults = (*self.faults, Fault(source, message, remedy))


def _arm(group: CgroupMemory) -> tuple[list[Source], OSError | None]:
    """In the thread: the sources of a group, and what keeps it from having all of them."""
    sources: list[Source] = []
    try:
        arm(group, sources)
    except OSError as error:
        return sources, error
    return sources, None
