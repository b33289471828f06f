"""
The state of a guard in a file: for `status`, `limit`, `history` and the daemon.

It is a file, not a message. So a stopped or slow daemon cannot block a supervisor, and a daemon
that starts later knows every guard at once. The folder belongs to the user.

    RUNTIME/guard/PID.START/guard.json        what this module reads and writes
    RUNTIME/guard/PID.START/supervisor.sock   where the supervisor takes requests
    RUNTIME/guard/PID.START/segments.sock     where trainings hand over their segments
    STATE/guards/PID.START.json               the last fifty guards that have ended
"""

from __future__ import annotations

import json
import os
import stat
import time
from contextlib import suppress
from dataclasses import field
from typing import Any

from watchdog_app.base import codec, paths
from watchdog_app.base.records import dataclass
from watchdog_app.guard.cgroup import PREFIX

# Why a guard ends its program, apart from its limit.
ASKED_BY_PERSON = "somebody asked for that"
TIME_IS_OVER = "its --time is over"
_FILE = "guard.json"
_SOCKET = "supervisor.sock"
_MOST_BYTES = 64 * 1024
_MOST_GUARDS = 200
_MOST_EVENTS = 20
_MOST_PAST = 50
_JUST_S = 30.0


@dataclass(frozen=True, slots=True)
class CopiedRescue:
    """A rescue of a process in a guard: copied from outside, or saved by its agent."""

    pid: int
    path: str
    step: int
    bytes: int = 0  # 0: unknown
    saved_unix_s: float = 0.0  # 0: unknown
    missing: tuple[str, ...] = ()  # what a resume will not restore, as far as known


@dataclass(frozen=True, slots=True)
class GuardEvent:
    """An event in the life of a guard."""

    unix_s: float
    kind: str
    text: str


@dataclass(kw_only=True, slots=True)
class GuardRecord:
    """One guard. Sizes in bytes, times in seconds since 1970."""

    pid: int  # of the program that was started in it
    start_time: int
    name: str
    kind: str  # of its group, for messages
    group: str | None  # folder in the memory hierarchy; None: only reservations are limited
    limit_bytes: int  # without any reserve
    reserve_bytes: int
    supervisor_pid: int = 0
    standby_pid: int = 0
    follows_machine: bool = False  # whether the limit follows the free memory of the machine
    follows_state: bool = False  # whether the reserve grows with the state to save
    swap_bytes: int = 0
    freezer: str | None = None  # folder in the freezer hierarchy, if it has its own
    refuse: bool = True  # whether reservations that cannot fit are refused beforehand
    notebook: bool = False
    command: str = ""  # to paste into a shell, without secrets; empty: too long
    directory: str = ""  # where it was started; empty: an older version wrote this
    at_limit: str = "auto"
    hold_s: float | None = None
    ends_unix_s: float | None = None  # when --time is over
    state: str = "running"  # value of `policy.State`
    since_unix_s: float = 0.0
    refused_unix_s: float = 0.0  # when it last ended to refuse everything further; 0: never
    used_bytes: int = 0
    because: str = ""
    agents: int = 0
    seen: bool = False  # whether a training that can be saved was ever seen in it
    saved: int = 0
    trouble: str = ""  # why a training in it could not be saved
    saved_unix_s: float | None = None
    rescues: list[CopiedRescue] = field(default_factory=list)
    events: list[GuardEvent] = field(default_factory=list)  # newest last
    ended_unix_s: float | None = None  # set once the guard has ended

    def to_json(self) -> dict[str, Any]:
        """All fields, by name."""
        found: dict[str, Any] = codec.encode(self)
        return found

    @property
    def stopped(self) -> bool:
        """Whether all processes in it are frozen or stopped."""
        return self.state in ("stopped", "copying")

    @property
    def was_just_refused(self) -> bool:
        """
        Whether everything further is refused, or was recently.

        After a MemoryError a program frees memory, so its guard is in state running again.
        """
        return self.state == "refusing" or self.refused_unix_s > time.time() - _JUST_S

    @property
    def folder(self) -> str:
        """Folder of its file and socket."""
        return folder_of(self.pid, self.start_time)

    @property
    def socket_path(self) -> str:
        """Where its supervisor takes requests."""
        return os.path.join(self.folder, _SOCKET)

    @property
    def segments_socket(self) -> str:
        """Where its trainings hand over their segments."""
        from watchdog_app.rescue.segment import exchange

        return os.path.join(self.folder, exchange.SOCKET)

    def note(self, kind: str, text: str) -> None:
        """Add an event."""
        self.events = [*self.events[1 - _MOST_EVENTS :], GuardEvent(time.time(), kind, text)]

    def write(self) -> None:
        """
        Replace the file.

        Raises:
            OSError: the folder cannot be written.
        """
        path = os.path.join(self.folder, _FILE)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write(json.dumps(self.to_json()))
        os.rename(f"{path}.new", path)

    def remove(self) -> None:
        """Remove the folder; save the last record among those of ended guards."""
        if self.supervisor_pid:
            with suppress(OSError):  # on a full disk only the record is lost
                self._save_past()
        with suppress(OSError):
            for name in sorted(os.listdir(self.folder)):  # the record first, the lock last
                os.unlink(os.path.join(self.folder, name))
            os.rmdir(self.folder)

    def _save_past(self) -> None:
        from watchdog_app.base import durable

        where = past_folder()
        durable.make_folders(where, 0o700)
        if paths.is_foreign(os.lstat(where)) or os.path.islink(where):
            return
        text = json.dumps({**self.to_json(), "ended_unix_s": time.time()})
        path = os.path.join(where, f"{self.pid}.{self.start_time}.json")
        durable.write_atomic(path, text.encode("utf-8"), 0o600)
        found = [os.path.join(where, name) for name in os.listdir(where)]
        for old in sorted(found, key=os.path.getmtime)[:-_MOST_PAST]:
            os.unlink(old)


def guards_folder() -> str:
    """The folder that holds the folders of this user's guards."""
    return os.path.join(os.path.abspath(paths.runtime_dir()), "guard")


def past_folder() -> str:
    """The folder with the records of guards that have ended."""
    return os.path.join(os.path.abspath(paths.state_dir()), "guards")


def folder_of(pid: int, start_time: int) -> str:
    """The folder of one guard."""
    return os.path.join(guards_folder(), f"{pid}.{start_time}")


def folders() -> list[str]:
    """The folders of this user's guards, with any contents."""
    where = guards_folder()
    try:
        names = sorted(os.listdir(where))[:_MOST_GUARDS]
    except OSError:
        return []
    return [os.path.join(where, name) for name in names]


def read_all() -> list[GuardRecord]:
    """Every guard that has a file, by pid; unreadable ones are omitted."""
    found = [read(folder) for folder in folders()]
    return [record for record in found if record is not None and group_exists(record)]


def read_past() -> list[GuardRecord]:
    """The guards that have ended, the newest first."""
    try:
        names = [name for name in os.listdir(past_folder()) if name.endswith(".json")]
    except OSError:
        return []
    found = [read_file(os.path.join(past_folder(), name)) for name in names[: 4 * _MOST_PAST]]
    known = [each for each in found if each is not None and each.ended_unix_s is not None]
    return sorted(known, key=lambda guard: -(guard.ended_unix_s or 0.0))


def find(pid: int, start_time: int, group: str | None = None) -> GuardRecord | None:
    """
    Find the guard of a process that has just ended, or None.

    Args:
        pid, start_time: of the process.
        group: folder of its memory group; its name identifies the guard for a process started in it
            later.
    """
    name = f"{pid}.{start_time}"
    base = os.path.basename((group or "").rstrip("/")).removesuffix(".scope")
    if base.startswith(PREFIX):
        name = base.removeprefix(PREFIX).replace("-", ".", 1)
    found = read(os.path.join(guards_folder(), name))
    return found or read_file(os.path.join(past_folder(), f"{name}.json"))


def group_exists(record: GuardRecord) -> bool:
    """Whether its group still exists."""
    return record.group is None or os.path.isdir(record.group)


def read(folder: str) -> GuardRecord | None:
    """The guard of a folder; None without a valid record."""
    return read_file(os.path.join(folder, _FILE), folder)


def read_file(path: str, folder: str | None = None) -> GuardRecord | None:
    """The guard in a file NAME.json, or in a folder's file; None if it is not a record."""
    try:
        # O_NONBLOCK: do not wait for the writer if the path is a pipe.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if paths.is_foreign(found) or not stat.S_ISREG(found.st_mode):
                return None
            return parse(file.read(_MOST_BYTES), folder or path.removesuffix(".json"))
    except OSError:
        return None


def parse(text: bytes, folder: str) -> GuardRecord | None:
    """The guard record in a text from `to_json`; None if it is not a record of this folder."""
    try:
        record: GuardRecord = codec.decode(GuardRecord, json.loads(text))
    except (ValueError, RecursionError):
        return None
    return record if os.path.basename(folder) == f"{record.pid}.{record.start_time}" else None


def make_folder(pid: int, start_time: int) -> None:
    """
    Make the folder of a guard.

    Raises:
        OSError: it cannot be made, or belongs to another user.
    """
    os.makedirs(os.path.dirname(guards_folder()), mode=0o700, exist_ok=True)
    for each in (guards_folder(), folder_of(pid, start_time)):
        os.makedirs(each, mode=0o700, exist_ok=True)
        if paths.is_foreign(os.lstat(each)) or os.path.islink(each):
            raise PermissionError(f"{each} is somebody else's")
    os.chmod(guards_folder(), 0o700)
