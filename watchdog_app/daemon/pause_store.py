"""
What watchdog paused, in one file that is written to two folders. The newer copy counts.

The copy in the runtime folder is written before the first signal and needs no disk. The copy in
the state folder follows in a thread: it outlives a runtime folder that a logout removes.
"""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from watchdog_app.base import paths
from watchdog_app.base.durable import make_folders, write_whole
from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.threads import Worker
from watchdog_app.daemon import pauses as pausing
from watchdog_app.daemon.log import Faults, Log
from watchdog_app.daemon.pauses import Pause, Pauses, StateOf

FILE = "paused.json"
_SOURCE = "pauses"
_MAX_BYTES = 4 << 20
_VERSION = 1
# What a file that anything may have written raises when it is read.
_UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError),
    *(OverflowError, RecursionError),
)

Stored = Mapping[str, Mapping[str, Any]]  # by the keys of `pauses.ident`


def folders() -> tuple[str, str]:
    """Return the folders of both copies: of the socket, and of the state."""
    return paths.runtime_dir(), os.path.abspath(paths.state_dir())


def read(where: tuple[str, str], boot: str) -> Stored | None:
    """
    Return what is paused, from the newer of both copies.

    Args:
        where: see `folders`.
        boot: id of this boot; a pause does not outlive it.

    Returns:
        None if there is no copy of this boot.

    Raises:
        WatchdogError: there are copies, and none can be read or trusted.
    """
    newest: tuple[int, Stored] | None = None
    damaged = ""
    for folder in where:
        try:
            value = json.loads(_content(os.path.join(folder, FILE)))
            if (value["version"], value["boot"]) != (_VERSION, boot):
                continue
            stored = {str(ident): dict(data) for ident, data in value["pauses"].items()}
            found = int(value["mono_ns"]), stored
        except (FileNotFoundError, NotADirectoryError):
            continue
        except _UNREADABLE as error:
            damaged = f"{os.path.join(folder, FILE)} cannot be read: {error}."
        else:
            newest = found if newest is None or found[0] > newest[0] else newest
    if newest is None and damaged:
        raise WatchdogError(f"What is paused is not known: {damaged}")
    return None if newest is None else newest[1]


def write(folder: str, content: bytes) -> None:
    """
    Replace the copy in a folder.

    Args:
        content: from `encoded`.

    Raises:
        OSError: it cannot be written; the old copy stays.
    """
    make_folders(folder, 0o700)
    write_whole(os.path.join(folder, FILE), content, 0o600, durable=False)


def encoded(boot: str, pauses: Stored) -> bytes:
    """Return the content of a copy that is newer than all before."""
    value = {
        "version": _VERSION,
        "boot": boot,
        "mono_ns": time.monotonic_ns(),
        "pauses": pauses,
    }
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _content(path: str) -> bytes:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags), "rb") as file:
        found = os.fstat(file.fileno())
        # It says which processes to signal: nobody else may have written it.
        if not stat.S_ISREG(found.st_mode) or paths.foreign(found):
            raise ValueError("it is not a file of this user alone")
        return file.read(_MAX_BYTES)


class PauseStore:
    """
    Keeps `pauses` over the end of the daemon.

    Args:
        where: see `folders`.
        boot: id of this boot.
        state_of: one letter as in /proc; None when that process is gone.
        wake: ends the wait of the loop: `collect` has something to do.
    """

    def __init__(
        self,
        where: tuple[str, str],
        boot: str,
        *,
        pauses: Pauses,
        faults: Faults,
        state_of: StateOf,
        wake: Callable[[], None],
        log: Log,
    ) -> None:
        self.recovered: list[Pause] = []  # of an earlier daemon; whoever reports them clears it
        self._runtime, self._state = self._folders = where
        self._boot = boot
        self._pauses = pauses
        self._faults = faults
        self._state_of = state_of
        self._log = log
        self._stored: dict[str, Mapping[str, Any]] = {}
        self._failures: dict[str, str] = {}  # by folder: why its copy is older
        self._content = b""
        self._copier = Worker(wake)  # a state folder that hangs delays no pause

    def record_intent(self, ident: str, data: Mapping[str, Any], timeout_s: float) -> bool:
        """
        Write that a task is about to be stopped.

        Args:
            ident: from `pauses.ident`.
            data: from `pauses.intent`.
            timeout_s: to wait for the state folder if the runtime folder cannot be written.

        Returns:
            False if it could be written nowhere in time.
        """
        self._stored[ident] = data
        copied = self._write()
        if self._runtime not in self._failures:
            return True
        return copied.wait(timeout_s) and self._state not in self._failures

    def record(self, pause: Pause) -> None:
        """Write that a task is stopped."""
        self._stored[pause.ident(self._boot)] = pausing.outcome(pause, self._boot)
        self._write()

    def forget(self, ident: str) -> None:
        """Write that a task runs again, is gone, or was not stopped after all."""
        if self._stored.pop(ident, None) is not None or self._failures:
            self._write()

    def recover(self) -> None:
        """Take over the pauses that an earlier daemon left."""
        try:
            stored = read(self._folders, self._boot)
        except WatchdogError as error:
            self._log.error(str(error))
            return
        for ident, data in (stored or {}).items():
            pausing.thaw_unfinished(data, self._boot)
            pause = pausing.remembered(data, self._boot, self._state_of)
            if pause is None:
                continue
            self._pauses.add(pause)
            self._stored[ident] = pausing.outcome(pause, self._boot)
            self.recovered.append(pause)
            self._log.info("still paused since before", task=pause.name, pid=pause.task.pid)
        if stored:
            self._write()

    def review(self) -> None:
        """Forget the pauses that somebody else ended, or whose processes are gone."""
        for pause in self._pauses.ended(self._state_of):
            self._log.info("a paused task runs again or is gone", pid=pause.task.pid)
            self.forget(pause.ident(self._boot))

    def keep(self) -> None:
        """Write the copies again if that failed, or if somebody cleaned the runtime folder."""
        if self._failures or (self._stored and self._is_gone()):
            self._write()

    def collect(self) -> None:
        """Take in what became of the copies in the state folder."""
        self._copier.collect()

    def close(self, timeout_s: float) -> None:
        """Finish the copies, if that takes no longer than `timeout_s`."""
        self._copier.close(timeout_s)

    def _write(self) -> threading.Event:
        """Write the runtime copy now; return what is set when the state copy was tried."""
        self._content = encoded(self._boot, self._stored)
        self._put(self._runtime, self._content)
        copied = threading.Event()

        def copy() -> None:
            self._put(self._state, self._content)  # the newest: an older one may have waited
            copied.set()

        self._copier.submit(copy, lambda _, __: self._report())
        self._report()
        return copied

    def _put(self, folder: str, content: bytes) -> None:
        try:
            write(folder, content)
        except OSError as error:
            self._failures[folder] = error.strerror or str(error)
        else:
            self._failures.pop(folder, None)

    def _report(self) -> None:
        failures = [f"{folder}: {why}" for folder, why in tuple(self._failures.items())]
        if not failures:
            self._faults.clear(_SOURCE)
            return
        self._faults.put(
            _SOURCE,
            f"What is paused cannot be written to {', and not to '.join(failures)}.",
            "Make room there. If the daemon ends before that, let stopped processes go on with: "
            "kill -CONT PID",
        )

    def _is_gone(self) -> bool:
        with suppress(OSError):
            os.lstat(os.path.join(self._runtime, FILE))
            return False
        return True
