"""
Waits for the first event of sockets, ended processes, signals and pressure triggers.

A thin layer over select.epoll, because pressure triggers report by EPOLLPRI, which the selectors
module does not support. Uses select.poll on systems without epoll.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from watchdog_app.base.linux.files import descriptor_share
from watchdog_app.base.linux.process import open_pidfd
from watchdog_app.core.model.machine import ProcessKey

_MOST_HANDLES = 500  # pidfds
READ = select.POLLIN
WRITE = select.POLLOUT

Callback = Callable[[int], None]


class Poller:
    """
    Calls back with the events of each ready descriptor.

    Args:
        failed: called with an exception of a callback; the other callbacks still run.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._is_epoll = hasattr(select, "epoll")
        self._poll: Any = select.epoll() if self._is_epoll else select.poll()
        self._callbacks: dict[int, Callback] = {}

    def add(self, fd: int, events: int, callback: Callback) -> None:
        """
        Call `callback(events)` whenever `fd` has one of `events`, an error or a hang-up.

        Args:
            fd: the descriptor, watched until `remove`.
            events: READ, WRITE, or those of epoll(7).
            callback: called with the occurred events.
        """
        self._poll.register(fd, events)
        self._callbacks[fd] = callback

    def change(self, fd: int, events: int) -> None:
        """
        Wait for other events of `fd` from now on.

        Args:
            fd: a watched descriptor.
            events: see `add`.
        """
        self._poll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Stop watching `fd`; call this before closing it."""
        if self._callbacks.pop(fd, None) is None:
            return
        with suppress(OSError, KeyError):
            self._poll.unregister(fd)

    def wait(self, timeout_s: float) -> bool:
        """
        Wait at most `timeout_s`, then call back for all ready descriptors; whether there were any.
        """
        timeout_s = max(0.0, timeout_s)
        # epoll takes seconds, poll milliseconds
        events = self._poll.poll(timeout_s if self._is_epoll else timeout_s * 1000)
        for fd, occurred in events:
            callback = self._callbacks.get(fd)  # an earlier call may have removed it
            if callback is not None:
                try:
                    callback(occurred)
                except Exception as error:  # one bad client must not end the loop
                    self._failed(error)
        return bool(events)

    def close(self) -> None:
        """Stop watching all descriptors."""
        self._callbacks.clear()
        if self._is_epoll:
            self._poll.close()


class Waker:
    """Ends a wait from another thread or from a signal handler."""

    def __init__(self, poller: Poller) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._poller = poller
        poller.add(self._read, READ, self._drain)

    @property
    def fd(self) -> int:
        """Descriptor for signal.set_wakeup_fd."""
        return self._write

    def wake(self) -> None:
        """End the current wait; without one, the next wait returns at once."""
        with suppress(OSError):  # full pipe: the wait ends anyway
            os.write(self._write, b"\0")

    def close(self) -> None:
        """Close the descriptors."""
        self._poller.remove(self._read)
        os.close(self._read)
        os.close(self._write)

    def _drain(self, _: int) -> None:
        with suppress(BlockingIOError):
            while len(os.read(self._read, 4096)) == 4096:
                pass


class PidFds:
    """
    Pidfds of the followed processes.

    Args:
        ended: called once for each process that has ended; its pidfd is still open then.
    """

    def __init__(self, poller: Poller, ended: Callable[[ProcessKey], None]) -> None:
        self._poller = poller
        self._ended = ended
        self._handles: dict[ProcessKey, int | None] = {}  # None: no pidfd available, or ended

    def follow(self, keys: Collection[ProcessKey]) -> None:
        """Follow these processes and no others."""
        now = set(keys)
        for key in self._handles.keys() - now:
            self.release(key)
        for key in now - self._handles.keys():
            self.add(key)

    def add(self, key: ProcessKey) -> None:
        """Follow one more process."""
        self.release(key)
        handle = (
            open_pidfd(key.pid) if len(self._handles) < descriptor_share(8, _MOST_HANDLES) else None
        )
        self._handles[key] = handle
        if handle is not None:
            self._poller.add(handle, READ, lambda _: self._end(key))

    def fd(self, key: ProcessKey) -> int | None:
        """The pidfd of a process; None: there is none."""
        return self._handles.get(key)

    def release(self, key: ProcessKey) -> None:
        """Stop following a process."""
        handle = self._handles.pop(key, None)
        if handle is not None:
            self._poller.remove(handle)
            os.close(handle)

    def close(self) -> None:
        """Close all pidfds."""
        self.follow(())

    def _end(self, key: ProcessKey) -> None:
        try:
            self._ended(key)
        finally:
            self.release(key)
            self._handles[key] = None  # until `follow` or `release` drops it
