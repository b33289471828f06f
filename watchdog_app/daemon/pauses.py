"""
The pauses by watchdog, in a file from which any later daemon can resume them.

All pauses are in one file with copies in two folders; the newer copy counts. The copy in the
runtime folder is written before the first signal and needs no disk. So even a kill -9 in between
leaves no stopped task without a record. A thread writes the copy in the state folder, which
survives the removal of the runtime folder at a logout.
"""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import field, replace

from watchdog_app.base import codec, paths
from watchdog_app.base.durable import make_folders, open_nonblocking, write_atomic
from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import clean
from watchdog_app.base.threads import Worker
from watchdog_app.core.model.decisions import Topic
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.status import Button, Notification
from watchdog_app.daemon.log import Faults, Log
from watchdog_app.machine.process_control import Paused

FILE = "paused.json"
_SOURCE = "pauses"
_UNREAD = "pauses.unread"
_MAX_BYTES = 4 << 20
_VERSION = 2
_BY_A_PERSON = "asked for by "

_NOTHING_PAUSED = Paused((), "sigstop", 0.0)

StateOf = Callable[[ProcessKey], str | None]  # one letter as in /proc; None: ended


@dataclass(frozen=True, slots=True)
class Pause:
    """A task that is paused, or about to be."""

    task: ProcessKey
    name: str
    reason: str
    paused: Paused = _NOTHING_PAUSED  # the stopped processes
    intended: tuple[ProcessKey, ...] = ()  # processes about to be stopped as well
    stopped_before: tuple[ProcessKey, ...] = ()  # processes of the same family stopped by others


def still_paused(pause: Pause, state_of: StateOf) -> Pause | None:
    """
    The part of a recorded pause that still holds.

    Args:
        pause: from the file.
        state_of: present state of a process; None: it has ended, or its pid is another's.

    Returns:
        None if every process has ended, or all run again.
    """
    # A process in disk sleep (D) stops as soon as the disk answers.
    stands = any((state_of(key) or "Z") in "TtD" for key in pause.paused.keys)
    caught = [key for key in pause.intended if (state_of(key) or "Z") in "Tt"]
    if not stands and not caught:
        return None
    keys = tuple(dict.fromkeys((*pause.paused.keys, *caught)))
    paused = replace(pause.paused, keys=keys)
    return replace(pause, paused=paused, intended=(), stopped_before=())


def thaw_unfinished(pause: Pause) -> None:
    """
    Undo a freeze that the end of the daemon interrupted.

    The freezer is a barrier for an instant. A daemon killed within it leaves a group that not even
    SIGKILL can end (cgroup v1).
    """
    if not pause.intended:
        return
    from watchdog_app.machine.process_control.linux import find_freezer

    pids = {key.pid for key in (*pause.intended, *pause.stopped_before)}
    with suppress(OSError, WatchdogError):
        freezer = find_freezer(pause.intended[0].pid, pids)
        if freezer is not None:
            freezer.thaw()


def standing_notification(pause: Pause, unix_s: float, *, is_new: bool = False) -> Notification:
    """
    The notification about a pause that an earlier daemon left, or a person asks for elsewhere.

    Args:
        pause: the pause.
        unix_s: the current time.
        is_new: a person has just asked for it.
    """
    pid = pause.task.pid
    found = (
        "" if is_new else "The watchdog daemon paused it, ended, and has just been started again "
    )
    return Notification(
        id=f"paused-{pid}-{pause.task.start_time}-{unix_s:.0f}",
        incident="",
        stage="pause",
        urgency="critical" if is_new else "normal",
        title=f"{'Paused' if is_new else 'Still paused'}: {clean(pause.name)}",
        body=f"{found}({clean(pause.reason, 200)}). Its state stays in memory.\n"
        f"It stays paused. Once there is room: watchdog resume {pid}",
        task=pid,
        name=pause.name,
        unix_s=unix_s,
        actions=(Button(key="resume", label="Resume", command=f"watchdog resume {pid}"),),
        topic=Topic.PAUSED.value,
    )


# The file


@dataclass(frozen=True, slots=True)
class _Copy:
    """The content of one copy of the file."""

    version: int
    boot: str
    mono_ns: int  # time of writing
    pauses: tuple[Pause, ...]


def folders() -> tuple[str, str]:
    """The folders of both copies: of the socket, and of the state."""
    return paths.runtime_dir(), os.path.abspath(paths.state_dir())


def read(where: tuple[str, str], boot: str) -> tuple[Pause, ...] | None:
    """
    The recorded pauses, from the newer of both copies.

    Args:
        where: see `folders`.
        boot: id of this boot; a reboot ends all pauses.

    Returns:
        None if there is no copy of this boot.

    Raises:
        WatchdogError: copies exist, but none can be read or trusted.
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
        OSError: the copy cannot be written; the old one stays.
    """
    make_folders(folder, 0o700)
    write_atomic(os.path.join(folder, FILE), content, 0o600, durable=False)


def encode_file(boot: str, pauses: Iterable[Pause]) -> bytes:
    """
    The content of a copy that is newer than all before.

    Args:
        boot: id of this boot.
        pauses: all pauses in force.
    """
    value = codec.encode(_Copy(_VERSION, boot, time.monotonic_ns(), tuple(pauses)))
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _read_content(path: str) -> bytes:
    with open(path, "rb", opener=open_nonblocking) as file:
        found = os.fstat(file.fileno())
        # The file names the processes to signal: no other user may have written it.
        if not stat.S_ISREG(found.st_mode) or paths.is_foreign(found):
            raise ValueError("it is not a file of this user alone")
        return file.read(_MAX_BYTES)


@dataclass(eq=False)
class Pauses:
    """
    The pauses in force, and their file.

    Args:
        where: see `folders`.
        boot: id of this boot.
        faults: gets a fault if a copy cannot be written, or no copy can be read.
        state_of: one letter as in /proc; None: the process has ended.
        wake: ends the wait of the loop, as `collect` has something to do.
        log: the daemon's log.
    """

    where: tuple[str, str]
    boot: str
    faults: Faults = field(kw_only=True)
    state_of: StateOf = field(kw_only=True)
    wake: Callable[[], None] = field(kw_only=True)
    log: Log = field(kw_only=True)
    _pauses: dict[ProcessKey, Pause] = field(default_factory=dict, init=False)
    # Pauses of tasks that are being stopped.
    _intents: dict[ProcessKey, Pause] = field(default_factory=dict, init=False)
    # Tasks whose stop has not taken effect yet.
    _not_seen_stopped: set[ProcessKey] = field(default_factory=set, init=False)
    # Pauses of an earlier daemon, not yet reported.
    _recovered: list[Pause] = field(default_factory=list, init=False)
    # By folder: why its copy is older.
    _failures: dict[str, str] = field(default_factory=dict, init=False)
    _content: bytes = field(default=b"", init=False)

    def __post_init__(self) -> None:
        """Make the thread that writes the copy in the state folder."""
        self._runtime, self._state = self.where
        self._state_writer = Worker(self.wake)  # a state folder that hangs delays no pause

    def record_intent(
        self, task: Task, family: Iterable[tuple[ProcessKey, bool]], reason: str, timeout_s: float
    ) -> bool:
        """
        Record that a task is about to be stopped. Call `add` or `cancel` afterwards.

        Args:
            task: the task to pause.
            family: its processes, and whether others have stopped each already.
            reason: the reason.
            timeout_s: longest wait for the state folder if the runtime folder is not writable.

        Returns:
            False if no copy could be written in time.
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
        """Add a pause and return it. A second pause of a task is merged with the first."""
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
        """The pause of a task; None: watchdog has not paused it."""
        return self._pauses.get(task)

    def has(self, task: ProcessKey) -> bool:
        """Whether watchdog has paused a task."""
        return task in self._pauses

    def all(self) -> list[Pause]:
        """Every pause in force."""
        return list(self._pauses.values())

    def recover(self) -> None:
        """Restore the pauses of an earlier daemon."""
        try:
            stored = read(self.where, self.boot)
        except WatchdogError as error:
            self.faults.put(
                _UNREAD,
                f"{error} An earlier daemon may have left tasks paused.",
                "watchdog status shows stopped tasks. Resume one with: kill -CONT PID",
            )
            return
        for found in stored or ():
            thaw_unfinished(found)
            pause = still_paused(found, self.state_of)
            if pause is not None:
                self._pauses[pause.task] = pause
                self._not_seen_stopped.add(pause.task)
                self._recovered.append(pause)
                self.log.info("still paused since before", task=pause.name, pid=pause.task.pid)
        if stored:
            self._write()

    def take_unreported(self, paused: Container[ProcessKey]) -> list[Pause]:
        """
        Recovered pauses that neither the engine nor people know, each once.

        The engine resumes its own pauses when memory is free again. It does not know a pause that
        the end of the daemon interrupted. If its state was lost, it knows no pause.

        Args:
            paused: tasks that the engine has paused.
        """
        recovered, self._recovered = self._recovered, []
        return [
            pause
            for pause in recovered
            if pause.task not in paused
            and not (pause.reason.startswith(_BY_A_PERSON) and pause.paused.at_unix_s > 0)
        ]

    def remove_ended(self) -> list[Pause]:
        """Remove and return pauses that others have ended, or whose processes have ended."""
        found = []
        for pause in list(self._pauses.values()):
            states = {self.state_of(key) for key in pause.paused.keys}
            if states & {"T", "t"}:  # t: stopped by a debugger, which does not end the pause
                self._not_seen_stopped.discard(pause.task)
                continue
            # SIGSTOP takes effect when a system call returns: on a dead network disk, hours later.
            # A stopped process reports D, too, while its guard is frozen (cgroup v1).
            if "D" in states and (pause.task in self._not_seen_stopped or not states & {"R", "S"}):
                continue
            self.log.info("a paused task runs again or is gone", pid=pause.task.pid)
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
        """Finish writing the copies, within `timeout_s`."""
        self._state_writer.close(timeout_s)

    def _write(self) -> threading.Event:
        """Write the runtime copy now; return an event that is set after trying the state copy."""
        self._content = encode_file(self.boot, {**self._pauses, **self._intents}.values())
        self._write_copy(self._runtime, self._content)
        copied = threading.Event()

        def copy() -> None:
            # the newest: an older copy may have waited
            self._write_copy(self._state, self._content)
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
            self.faults.clear(_SOURCE)
            return
        self.faults.put(
            _SOURCE,
            f"What is paused cannot be written to {', and not to '.join(failures)}.",
            "Make room there. If the daemon ends before that, resume stopped processes with: "
            "kill -CONT PID",
        )
