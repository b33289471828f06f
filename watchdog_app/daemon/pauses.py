"""
What watchdog has paused, kept in a file so that any later daemon can resume it.

All pauses are in one file that is written to two folders; the newer copy counts. The copy in the
runtime folder is written before the first signal and needs no disk: even a kill -9 in the middle
leaves no stopped task that nobody knows of. The copy in the state folder follows in a thread: it
outlives a runtime folder that a logout removes.
"""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from watchdog_app.base import codec, paths
from watchdog_app.base.durable import make_folders, open_nonblocking, write_atomic
from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.text.plain import clean
from watchdog_app.base.threads import Worker
from watchdog_app.core.model.decisions import Notification, NotificationAction, Topic
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.daemon.log import Faults, Log
from watchdog_app.machine.process_control import Paused

FILE = "paused.json"
_SOURCE = "pauses"
_MAX_BYTES = 4 << 20
_VERSION = 2
_BY_A_PERSON = "asked for by "

_NOTHING_PAUSED = Paused((), "sigstop", 0.0)

StateOf = Callable[[ProcessKey], str | None]  # one letter as in /proc; None: gone


@dataclass(frozen=True, slots=True)
class Pause:
    """One task that is paused, or about to be."""

    task: ProcessKey
    name: str
    reason: str
    paused: Paused = _NOTHING_PAUSED  # what was stopped
    intended: tuple[ProcessKey, ...] = ()  # who is about to be stopped as well
    stopped_before: tuple[ProcessKey, ...] = ()  # of the same family, by somebody else


def still_paused(pause: Pause, state_of: StateOf) -> Pause | None:
    """
    Return what still holds of a pause that an earlier daemon recorded.

    Args:
        pause: from the file.
        state_of: state of a process now; None when it is gone or another.

    Returns:
        None when every process is gone, or all run again.
    """
    # One that waits for the disk is stopped as soon as that has answered.
    stands = any((state_of(key) or "Z") in "TtD" for key in pause.paused.keys)
    caught = [key for key in pause.intended if (state_of(key) or "Z") in "Tt"]
    if not stands and not caught:
        return None
    keys = tuple(dict.fromkeys((*pause.paused.keys, *caught)))
    paused = replace(pause.paused, keys=keys)
    return replace(pause, paused=paused, intended=(), stopped_before=())


def thaw_unfinished(pause: Pause) -> None:
    """
    Undo a freeze that was cut short by the end of the daemon.

    The freezer is a barrier that lasts for an instant; a daemon killed within it leaves a
    group that not even SIGKILL can end (cgroup v1).
    """
    if not pause.intended:
        return
    from watchdog_app.machine.process_control.linux import find_freezer

    pids = {key.pid for key in (*pause.intended, *pause.stopped_before)}
    with suppress(OSError, WatchdogError):
        freezer = find_freezer(pause.intended[0].pid, pids)
        if freezer is not None:
            freezer.thaw()


def recovered_notification(pause: Pause, unix_s: float) -> Notification:
    """
    Return what people are told of a pause that an earlier daemon left.

    Args:
        pause: of an earlier daemon.
        unix_s: seconds of the epoch.
    """
    pid = pause.task.pid
    return Notification(
        id=f"recovered-{pid}-{pause.task.start_time}-{unix_s:.0f}",
        incident="",
        stage="pause",
        urgency="normal",
        title=f"Still paused: {clean(pause.name)}",
        body="The watchdog daemon paused it, ended, and has just been started again "
        f"({clean(pause.reason, 200)}). Its state stays in memory.\n"
        f"It stays paused. Once there is room: watchdog resume {pid}",
        task=pid,
        unix_s=unix_s,
        actions=(NotificationAction("resume", "Resume", f"watchdog resume {pid}"),),
        topic=Topic.PAUSED.value,
    )


# The file


@dataclass(frozen=True, slots=True)
class _Copy:
    """What one copy of the file holds."""

    version: int
    boot: str
    mono_ns: int  # when it was written
    pauses: tuple[Pause, ...]


def folders() -> tuple[str, str]:
    """Return the folders of both copies: of the socket, and of the state."""
    return paths.runtime_dir(), os.path.abspath(paths.state_dir())


def read(where: tuple[str, str], boot: str) -> tuple[Pause, ...] | None:
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
    copies: list[_Copy] = []
    damaged = ""
    for folder in where:
        try:
            copy = codec.decode(_Copy, json.loads(_read_content(os.path.join(folder, FILE))))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, RecursionError) as error:
            damaged = f"{os.path.join(folder, FILE)} cannot be read: {error}."
            continue
        if copy.version == _VERSION and copy.boot == boot:
            copies.append(copy)
    if damaged and not copies:
        raise WatchdogError(f"What is paused is not known: {damaged}")
    return max(copies, key=lambda copy: copy.mono_ns).pauses if copies else None


def write(folder: str, content: bytes) -> None:
    """
    Replace the copy in a folder.

    Args:
        content: from `encode_file`.

    Raises:
        OSError: it cannot be written; the old copy stays.
    """
    make_folders(folder, 0o700)
    write_atomic(os.path.join(folder, FILE), content, 0o600, durable=False)


def encode_file(boot: str, pauses: Iterable[Pause]) -> bytes:
    """
    Return the content of a copy that is newer than all before.

    Args:
        boot: id of this boot.
        pauses: all that stand.
    """
    value = codec.encode(_Copy(_VERSION, boot, time.monotonic_ns(), tuple(pauses)))
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _read_content(path: str) -> bytes:
    with open(path, "rb", opener=open_nonblocking) as file:
        found = os.fstat(file.fileno())
        # It names the processes to signal: no other user may have written it.
        if not stat.S_ISREG(found.st_mode) or paths.is_foreign(found):
            raise ValueError("it is not a file of this user alone")
        return file.read(_MAX_BYTES)


class Pauses:
    """
    The pauses that stand, and their file.

    Args:
        where: see `folders`.
        boot: id of this boot.
        faults: takes that a copy cannot be written.
        state_of: one letter as in /proc; None when that process is gone.
        wake: ends the wait of the loop: `collect` has something to do.
        log: of the daemon.
    """

    def __init__(
        self,
        where: tuple[str, str],
        boot: str,
        *,
        faults: Faults,
        state_of: StateOf,
        wake: Callable[[], None],
        log: Log,
    ) -> None:
        self._runtime, self._state = self._folders = where
        self._boot = boot
        self._faults = faults
        self._state_of = state_of
        self._log = log
        self._pauses: dict[ProcessKey, Pause] = {}
        self._intents: dict[ProcessKey, Pause] = {}  # tasks that are being stopped
        self._not_seen_stopped: set[ProcessKey] = set()  # not seen stopped yet
        self._recovered: list[Pause] = []  # of an earlier daemon, and not reported
        self._failures: dict[str, str] = {}  # by folder: why its copy is older
        self._content = b""
        self._state_writer = Worker(wake)  # a state folder that hangs delays no pause

    def record_intent(
        self, task: Task, family: Iterable[tuple[ProcessKey, bool]], reason: str, timeout_s: float
    ) -> bool:
        """
        Write that a task is about to be stopped. Then: `add` or `cancel`.

        Args:
            task: what is to be paused.
            family: its processes, and whether each is stopped already, by somebody else.
            reason: why.
            timeout_s: to wait for the state folder if the runtime folder cannot be written.

        Returns:
            False if it could be written nowhere in time.
        """
        found = list(family)
        before = self._pauses.get(task.key) or Pause(task.key, task.name, reason)
        self._intents[task.key] = replace(
            before,
            intended=tuple(key for key, stopped in found if not stopped),
            stopped_before=tuple(key for key, stopped in found if stopped),
        )
        copied = self._write()
        if self._runtime not in self._failures:
            return True
        return copied.wait(timeout_s) and self._state not in self._failures

    def cancel(self, task: ProcessKey) -> None:
        """Remove an intent: no process was stopped."""
        if self._intents.pop(task, None) is not None or self._failures:
            self._write()

    def add(self, pause: Pause) -> Pause:
        """Add a pause; return all of it. A second pause of a task adds the processes it stopped."""
        before = self._pauses.get(pause.task)
        if before is not None:
            keys = tuple(dict.fromkeys((*before.paused.keys, *pause.paused.keys)))
            at_unix_s = before.paused.at_unix_s
            paused = replace(pause.paused, keys=keys, at_unix_s=at_unix_s)
            pause = replace(pause, paused=paused, reason=before.reason)
        self._intents.pop(pause.task, None)
        self._pauses[pause.task] = pause
        self._not_seen_stopped.add(pause.task)
        self._write()
        return pause

    def remove(self, task: ProcessKey) -> None:
        """Remove the pause of a task that runs again or has ended."""
        self._not_seen_stopped.discard(task)
        if self._pauses.pop(task, None) is not None or self._failures:
            self._write()

    def get(self, task: ProcessKey) -> Pause | None:
        """The pause of a task, None when we did not pause it."""
        return self._pauses.get(task)

    def has(self, task: ProcessKey) -> bool:
        """Return whether we have paused a task."""
        return task in self._pauses

    def all(self) -> list[Pause]:
        """Every pause that stands."""
        return list(self._pauses.values())

    def recover(self) -> None:
        """Restore the pauses of an earlier daemon."""
        try:
            stored = read(self._folders, self._boot)
        except WatchdogError as error:
            self._log.error(str(error))
            return
        for found in stored or ():
            thaw_unfinished(found)
            pause = still_paused(found, self._state_of)
            if pause is not None:
                self._pauses[pause.task] = pause
                self._not_seen_stopped.add(pause.task)
                self._recovered.append(pause)
                self._log.info("still paused since before", task=pause.name, pid=pause.task.pid)
        if stored:
            self._write()

    def take_unreported(self, held: Container[ProcessKey]) -> list[Pause]:
        """
        Return recovered pauses that neither engine nor people know, each once.

        The engine resumes what it has paused when there is room. It does not know a pause that the
        end of the daemon cut short, nor any pause if its state was lost.

        Args:
            held: tasks that the engine has paused.
        """
        recovered, self._recovered = self._recovered, []
        return [
            pause
            for pause in recovered
            if pause.task not in held
            and not (pause.reason.startswith(_BY_A_PERSON) and pause.paused.at_unix_s > 0)
        ]

    def remove_ended(self) -> list[Pause]:
        """Remove and return pauses that others have ended, or whose processes have ended."""
        found = []
        for pause in list(self._pauses.values()):
            states = {self._state_of(key) for key in pause.paused.keys}
            if states & {"T", "t"}:  # t: a debugger looks at it, which ends no pause
                self._not_seen_stopped.discard(pause.task)
                continue
            # SIGSTOP takes effect when a system call returns: of a dead network disk after hours.
            # One that had stopped shows like that, too, while its guard is frozen (cgroup v1).
            if "D" in states and (pause.task in self._not_seen_stopped or not states & {"R", "S"}):
                continue
            self._log.info("a paused task runs again or is gone", pid=pause.task.pid)
            self.remove(pause.task)
            found.append(pause)
        return found

    def rewrite_missing(self) -> None:
        """Write the copies again after a failure, or after the runtime folder was cleaned."""
        removed = not os.path.lexists(os.path.join(self._runtime, FILE))
        if self._failures or (self._pauses and removed):
            self._write()

    def collect(self) -> None:
        """Collect the results of writing to the state folder."""
        self._state_writer.collect()

    def close(self, timeout_s: float) -> None:
        """Finish the copies, if that takes no longer than `timeout_s`."""
        self._state_writer.close(timeout_s)

    def _write(self) -> threading.Event:
        """Write the runtime copy now; return what is set when the state copy was tried."""
        self._content = encode_file(self._boot, {**self._pauses, **self._intents}.values())
        self._write_copy(self._runtime, self._content)
        copied = threading.Event()

        def copy() -> None:
            self._write_copy(self._state, self._content)  # the newest: an older one may have waited
            copied.set()

        self._state_writer.submit(copy, lambda _, __: self._report_failures())
        self._report_failures()
        return copied

    def _write_copy(self, folder: str, content: bytes) -> None:
        try:
            write(folder, content)
        except OSError as error:
            self._failures[folder] = error.strerror or str(error)
        else:
            self._failures.pop(folder, None)

    def _report_failures(self) -> None:
        failures = [f"{folder}: {why}" for folder, why in tuple(self._failures.items())]
        if not failures:
            self._faults.clear(_SOURCE)
            return
        self._faults.put(
            _SOURCE,
            f"What is paused cannot be written to {', and not to '.join(failures)}.",
            "Make room there. If the daemon ends before that, resume stopped processes with: "
            "kill -CONT PID",
        )
