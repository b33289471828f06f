"""
Rescues from outside: the segments that trainings hand over, and the copy of a stopped one.

A stopped task cannot save itself. The task that a pause selects may even be stopped because it did
not answer. A separate process then copies the state that the task has published.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from watchdog_app.base import children
from watchdog_app.base.linux.files import descriptor_share
from watchdog_app.base.threads import Worker
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon.poller import READ, Poller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.rescue.segment.exchange import Offer, Registry

REASON = "copied from outside after it was stopped"
_COPY_DEADLINE_S = 600.0
_HANG_TIMEOUT_S = 60.0  # after the deadline, which a copy checks between two reads
_LINGER_S = 1.0
_CLOSE_TIMEOUT_S = 1.0  # for a copy to end after SIGTERM
_MODULE = "watchdog_app.guard.copier"
_MOST_TRAININGS = 256

Copied = Callable[[dict[str, Any]], None]  # called with the answer of `guard.copier`


class OutOfProcessCopies:
    """
    What the agents have handed over, by process.

    Args:
        poller: waits for agents.
        folder: of the daemon's sockets.
        wake: ends the wait of the loop, as `collect` has something to do.
    """

    def __init__(self, poller: Poller, folder: str, wake: Callable[[], None]) -> None:
        self._poller = poller
        self._folder = folder
        self._fd: int | None = None
        self._registry: Registry | None = None
        self._every_batch: set[ProcessKey] = set()
        self._worker = Worker(wake, _LINGER_S)  # one copy at a time, because memory is short
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    def socket_path(self) -> str | None:
        """Where an agent hands over its segment; None if the socket cannot be created."""
        # Imported late: a daemon without trainings saves 0.3 MB.
        from watchdog_app.rescue.segment import exchange

        path = os.path.join(self._folder, exchange.SOCKET)
        if self._registry is None:
            registry = exchange.Registry(descriptor_share(8, _MOST_TRAININGS))
            try:
                self._fd = registry.listen(path)
            except OSError:  # the agent saves as usual
                return None
            self._registry = registry
            self._poller.add(self._fd, READ, self._receive)
        self._registry.remove_ended()  # processes that ended without a bye
        return path

    def ask_every_batch(self, key: ProcessKey, on: bool) -> None:
        """
        Ask a training to publish each of its steps, or no longer.

        Args:
            key: its process.
            on: whether a resource is near its limit.
        """
        if (key in self._every_batch) is not on:
            (self._every_batch.add if on else self._every_batch.discard)(key)
            training = self._offer(key)
            if training is not None:
                training.segment.ask_every_batch(on)

    def copy(self, key: ProcessKey, done: Copied) -> bool:
        """
        Copy a stopped training; return whether the copy will be tried.

        Args:
            key: its process.
            done: called by `collect`, with `path`, `step`, `bytes`, `seconds`, or with `error`.
        """
        training = self._offer(key)
        if training is None:
            return False

        def copied(answer: bytes | None, error: Exception | None) -> None:
            done({"error": str(error)} if answer is None else _parse_answer(answer))

        self._worker.submit(partial(self._run, training), copied)
        return True

    def collect(self) -> None:
        """Collect the copies that have ended."""
        self._worker.collect()

    def forget(self, key: ProcessKey) -> None:
        """Close the segment of a training that has ended, or whose process has."""
        self._every_batch.discard(key)
        if self._registry is not None and self._offer(key) is not None:
            self._registry.remove(key.pid)

    def close(self) -> None:
        """End a running copy. Running trainings hand their segments to the next daemon."""
        self._closed = True
        child = self._child
        if child is not None:
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGTERM)
        self._worker.close(_CLOSE_TIMEOUT_S)
        if self._registry is not None and self._fd is not None:
            from watchdog_app.rescue.segment import exchange

            self._poller.remove(self._fd)
            self._registry.close()
            self._registry = None
            with suppress(OSError):
                os.unlink(os.path.join(self._folder, exchange.SOCKET))

    def _receive(self, _: int) -> None:
        if self._registry is not None:
            for each in self._registry.receive():
                key = ProcessKey(each.pid, each.start_time)
                each.segment.ask_every_batch(key in self._every_batch)

    def _offer(self, key: ProcessKey) -> Offer | None:
        """What a process has handed over; None: nothing."""
        found = None if self._registry is None else self._registry.offers.get(key.pid)
        return found if found is not None and found.start_time == key.start_time else None

    def _run(self, training: Offer) -> bytes:
        """Run the copying process in the worker's thread; return its output."""
        if self._closed:
            raise OSError("the daemon ends")
        about = (training.pid, training.start_time, training.directory)
        words = map(str, (*about, _COPY_DEADLINE_S, REASON, *training.fds))
        with subprocess.Popen(
            [*children.module_argv(_MODULE), *words],
            pass_fds=training.fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as child:
            self._child = child
            try:
                return child.communicate(timeout=_COPY_DEADLINE_S + _HANG_TIMEOUT_S)[0]
            except subprocess.TimeoutExpired:
                child.kill()
                raise OSError("the copy took too long") from None
            finally:
                self._child = None


def _parse_answer(answer: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(answer)
    except ValueError:
        return {"error": "the copy ended without a word"}
    return found
