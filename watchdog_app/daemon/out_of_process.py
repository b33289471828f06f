"""
Trainings that are saved from outside: a page for each, and the copy of one that was stopped.

A task that is stopped cannot save itself any more, and the one that a pause falls on may be stopped
because it did not answer. What it has published is copied then, by a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from watchdog_app.base import children
from watchdog_app.base.linux.process import open_pidfd
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon.poller import READ, Poller

REASON = "copied from outside after it was stopped"
_DEADLINE_S = 600.0
_MOST_ANSWER_BYTES = 64 * 1024
_MODULE = "watchdog_app.airbag.copy"

Copied = Callable[[dict[str, Any]], None]  # with the words of `airbag.copy`


class OutOfProcessCopies:
    """The pages of all agents, by their process."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._where: str | None = None
        self._pages: dict[ProcessKey, str] = {}
        self._asked: set[ProcessKey] = set()
        self._running: dict[int, tuple[subprocess.Popen[bytes], bytearray, Copied]] = {}
        self._ending: dict[int, subprocess.Popen[bytes]] = {}  # have said all; by their handles

    def page(self, key: ProcessKey) -> str | None:
        """A page for the agent in this process; None where there can be none."""
        # 0.3 MB that a daemon without trainings does without.
        from watchdog_app.airbag import page_folder as pages

        try:
            if self._where is None:
                self._where = pages.folder()
                pages.prepare(self._where)
            pages.clear(self._where)  # also of whoever ended without a word
            path = pages.path_for(self._where, key.pid, key.start_time)
            if not os.path.exists(path):  # else an earlier daemon has made it
                pages.make(path)
            pages.permit(path, os.getpid())
        except OSError:  # no room, or no such memory here: it is saved as ever
            return None
        self._pages[key] = path
        return path

    def ask_every_batch(self, key: ProcessKey, on: bool) -> None:
        """Whether a resource is near this training, and each of its steps is to be published."""
        path = self._pages.get(key)
        if path is not None and (key in self._asked) is not on:
            (self._asked.add if on else self._asked.discard)(key)
            from watchdog_app.airbag import page_folder as pages  # it is there: `page` was called

            with suppress(OSError):
                pages.ask(path, on)

    def copy(self, key: ProcessKey, directory: str, done: Copied) -> bool:
        """
        Copy a training that stands still; whether that was begun.

        Args:
            key: of its process.
            directory: that its agent has registered.
            done: called once, with `path`, `step`, `bytes`, `seconds`, or with `error`.
        """
        path = self._pages.get(key)
        if path is None:
            return False
        words = [str(key.pid), str(key.start_time), path, directory, str(_DEADLINE_S), REASON]
        try:
            child = subprocess.Popen(
                [*children.argv_of(_MODULE), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return False
        fd = child.stdout.fileno()  # type: ignore[union-attr]
        os.set_blocking(fd, False)
        self._running[fd] = (child, bytearray(), done)
        self._poller.add(fd, READ, lambda _: self._said(fd))
        return True

    def forget(self, key: ProcessKey) -> None:
        """The training, or its process, has ended."""
        self._asked.discard(key)
        path = self._pages.pop(key, None)
        if path is not None:
            with suppress(OSError):
                os.unlink(path)

    def close(self) -> None:
        """End what runs. Pages of trainings that are still there stay for the next daemon."""
        for fd, (child, _, _) in list(self._running.items()):
            self._poller.remove(fd)
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGTERM)
            _put_away(child)
        self._running.clear()
        for handle, child in self._ending.items():
            self._poller.remove(handle)
            os.close(handle)
            _put_away(child)
        self._ending.clear()
        if self._where is not None:
            from watchdog_app.airbag import page_folder as pages

            pages.leave(self._where)

    def _said(self, fd: int) -> None:
        child, answer, done = self._running[fd]
        try:
            more = os.read(fd, 4096)
        except BlockingIOError:
            return
        answer += more
        if more and len(answer) < _MOST_ANSWER_BYTES:
            return
        self._poller.remove(fd)
        del self._running[fd]
        if more:  # what says that much is none of ours
            child.kill()
        self._leave(child)
        done(_read(bytes(answer)))

    def _leave(self, child: subprocess.Popen[bytes]) -> None:
        """Take note of its end when it comes: it has said all, but may still give memory back."""
        if child.stdout is not None:
            child.stdout.close()
        handle = open_pidfd(child.pid)
        if handle is None:
            _put_away(child)
            return
        self._ending[handle] = child
        self._poller.add(handle, READ, lambda _: self._ended(handle))

    def _ended(self, handle: int) -> None:
        child = self._ending.pop(handle)
        self._poller.remove(handle)
        os.close(handle)
        child.wait()


def _put_away(child: subprocess.Popen[bytes]) -> None:
    if child.stdout is not None:
        child.stdout.close()
    try:
        child.wait(1.0)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _read(answer: bytes) -> dict[str, Any]:
    try:
        found = json.loads(answer)
        if "error" in found:
            return {"error": str(found["error"])}
        return {
            "path": str(found["path"]),
            "step": int(found["step"]),
            "bytes": int(found["bytes"]),
            "seconds": float(found["seconds"]),
        }
    except (ValueError, TypeError, KeyError):
        return {"error": "the copy ended without a word"}
