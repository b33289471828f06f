"""
Rescues from outside: a shared memory page for each training, and the copy of a stopped one.

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
from watchdog_app.base.threads import Worker
from watchdog_app.core.model.machine import ProcessKey

REASON = "copied from outside after it was stopped"
_COPY_DEADLINE_S = 600.0
_LINGER_S = 1.0
_CLOSE_TIMEOUT_S = 1.0  # for a copy to end after SIGTERM
_MODULE = "watchdog_app.guard.copier"

Copied = Callable[[dict[str, Any]], None]  # called with the answer of `guard.copier`


class OutOfProcessCopies:
    """
    The pages of all agents, by process.

    Args:
        wake: ends the wait of the loop, as `collect` has something to do.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._folder: str | None = None
        self._pages: dict[ProcessKey, str] = {}
        self._every_batch: set[ProcessKey] = set()
        self._worker = Worker(wake, _LINGER_S)  # one copy at a time, because memory is short
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    def page(self, key: ProcessKey) -> str | None:
        """The path of a page for the agent in this process; None if none can be created."""
        # Imported late: a daemon without trainings saves 0.3 MB.
        from watchdog_app.rescue.segment import segment_folder as pages

        try:
            if self._folder is None:
                self._folder = pages.folder()
                pages.make_folder(self._folder)
            pages.remove_ended(self._folder)  # also those of processes that ended without a bye
            path = pages.segment_path(self._folder, key.pid, key.start_time)
            if not os.path.exists(path):  # it may exist: an earlier daemon created it
                pages.make_segment(path)
            pages.permit(path, os.getpid())
        except OSError:  # no space, or no shared memory: the agent saves as usual
            return None
        self._pages[key] = path
        return path

    def ask_every_batch(self, key: ProcessKey, on: bool) -> None:
        """
        Ask a training to publish each of its steps, or no longer.

        Args:
            key: its process.
            on: whether a resource is near its limit.
        """
        path = self._pages.get(key)
        if path is not None and (key in self._every_batch) is not on:
            (self._every_batch.add if on else self._every_batch.discard)(key)
            # Already imported: `page` was called.
            from watchdog_app.rescue.segment import segment_folder as pages

            with suppress(OSError):
                pages.ask(path, on)

    def copy(self, key: ProcessKey, directory: str, done: Copied) -> bool:
        """
        Copy a stopped training; return whether the copy will be tried.

        Args:
            key: its process.
            directory: the folder that its agent has registered.
            done: called by `collect`, with `path`, `step`, `bytes`, `seconds`, or with `error`.
        """
        path = self._pages.get(key)
        if path is None:
            return False
        arguments = [
            str(key.pid),
            str(key.start_time),
            path,
            directory,
            str(_COPY_DEADLINE_S),
            REASON,
        ]

        def copied(answer: bytes | None, error: Exception | None) -> None:
            done({"error": str(error)} if answer is None else _parse_answer(answer))

        self._worker.submit(partial(self._run, arguments), copied)
        return True

    def collect(self) -> None:
        """Collect the copies that have ended."""
        self._worker.collect()

    def forget(self, key: ProcessKey) -> None:
        """Remove the page of a training that has ended, or whose process has."""
        self._every_batch.discard(key)
        path = self._pages.pop(key, None)
        if path is not None:
            with suppress(OSError):
                os.unlink(path)

    def close(self) -> None:
        """End a running copy. Pages of running trainings stay for the next daemon."""
        self._closed = True
        child = self._child
        if child is not None:
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGTERM)
        self._worker.close(_CLOSE_TIMEOUT_S)
        if self._folder is not None:
            from watchdog_app.rescue.segment import segment_folder as pages

            pages.remove_unused(self._folder)

    def _run(self, arguments: list[str]) -> bytes:
        """Run the copying process in the worker's thread; return its output."""
        if self._closed:
            raise OSError("the daemon ends")
        with subprocess.Popen(
            [*children.module_argv(_MODULE), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as child:
            self._child = child
            try:
                return child.communicate()[0]
            finally:
                self._child = None


def _parse_answer(answer: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(answer)
    except ValueError:
        return {"error": "the copy ended without a word"}
    return found
