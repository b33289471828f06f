"""
What is known of a guard, in a file: for `status`, `limit` and the daemon.

A file and no message: a daemon that is stopped or slow can then hold no supervisor up, and a daemon
that starts later knows every guard at once. The folder is the user's own, most often in memory.

    RUNTIME/guard/PID.START/guard.json      what this module reads and writes
    RUNTIME/guard/PID.START/supervisor.sock   where the supervisor takes requests
"""

from __future__ import annotations

import json
import os
import stat
import sys
from contextlib import suppress

from watchdog_app.base import paths
from watchdog_app.base.linux.process import read_stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FILE = "guard.json"
_SOCKET = "supervisor.sock"
_LOCK = "supervisor.lock"
_MOST_BYTES = 64 * 1024
_MOST_GUARDS = 200
_MOST_EVENTS = 20
_ADOPTION_S = 5.0


class GuardRecord:
    """One guard. Bytes, and seconds since 1970."""

    pid: int  # of the program that was started in it
    start_time: int
    name: str
    how: str
    group: str | None  # folder in the memory hierarchy; None: limits on reservations alone
    limit_bytes: int
    reserve_bytes: int
    supervisor_pid: int = 0
    standby_pid: int = 0
    follows_machine: bool = False  # the limit is what the machine can give
    follows_state: bool = False  # the reserve grows with what there is to save
    swap_bytes: int = 0
    freezer: str | None = None  # folder in that hierarchy, where it is one of its own
    refuse: bool = True  # reservations that cannot fit are refused beforehand
    notebook: bool = False
    at_limit: str = "auto"
    hold_s: float | None = None
    stage: str = "calm"
    since_unix_s: float = 0.0
    used_bytes: int = 0
    because: str = ""
    agents: int = 0
    saved: int = 0
    trouble: str = ""  # why a training in it could not be saved
    saved_unix_s: float | None = None
    rescues: list[dict[str, Any]]  # pid, path, step
    events: list[dict[str, Any]]  # unix_s, kind, text; newest last
    ended_unix_s: float | None = None  # where it is over, see `past`

    def __init__(  # noqa: PLR0917 - as every guard begins
        self,
        pid: int,
        start_time: int,
        name: str,
        how: str,
        group: str | None,
        limit_bytes: int,
        reserve_bytes: int,
        **more: Any,
    ) -> None:
        """`more`: any of the others."""
        self.pid, self.start_time = pid, start_time
        self.name, self.how, self.group = name, how, group
        self.limit_bytes, self.reserve_bytes = limit_bytes, reserve_bytes
        self.rescues, self.events = [], []
        for key, value in more.items():
            if key not in FIELDS:
                raise TypeError(f"a guard has no {key}")
            setattr(self, key, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GuardRecord) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return {name: getattr(self, name) for name in FIELDS}

    @property
    def held(self) -> bool:
        """Everyone in it stands still."""
        return self.stage in ("held", "copying")

    @property
    def folder(self) -> str:
        """Where its file and socket are."""
        return folder_of(self.pid, self.start_time)

    @property
    def socket_path(self) -> str:
        """Where its supervisor takes requests."""
        return os.path.join(self.folder, _SOCKET)

    @property
    def pages(self) -> str:
        """Where the trainings in it publish themselves."""
        from watchdog_app.rescue.segment import segment_folder

        return os.path.join(segment_folder.folder(), os.path.basename(self.folder))

    def note(self, unix_s: float, kind: str, text: str) -> None:
        """Add an event."""
        self.events = [
            *self.events[1 - _MOST_EVENTS :],
            {"unix_s": unix_s, "kind": kind, "text": text},
        ]

    def write(self) -> None:
        """
        Replace the file.

        Raises:
            OSError: the folder cannot be written.
        """
        path = os.path.join(self.folder, _FILE)
        new = f"{path}.new"
        with open(new, "w", encoding="utf-8") as file:
            file.write(json.dumps(self.to_json()))
        os.rename(new, path)

    def remove(self) -> None:
        """Take the folder away; how it stood at last is kept for whoever asks later."""
        if self.supervisor_pid:
            from watchdog_app.guard import past

            past.keep(self)
        for name in (_FILE, f"{_FILE}.new", _SOCKET, _LOCK):
            with suppress(OSError):
                os.unlink(os.path.join(self.folder, name))
        with suppress(OSError):
            os.rmdir(self.folder)


FIELDS = tuple(GuardRecord.__annotations__)


def root() -> str:
    """Where the folders of all guards of this user are."""
    return os.path.join(os.path.abspath(paths.runtime_dir()), "guard")


def folder_of(pid: int, start_time: int) -> str:
    """The folder of one guard."""
    return os.path.join(root(), f"{pid}.{start_time}")


def every() -> list[GuardRecord]:
    """Every guard that has a file, by pid; what cannot be read is left out."""
    try:
        names = os.listdir(root())
    except OSError:
        return []
    found = [read(os.path.join(root(), name)) for name in sorted(names)[:_MOST_GUARDS]]
    return [record for record in found if record is not None and _is_there(record)]


def sweep() -> None:
    """
    Look after guards whose supervisor and standby were killed at one blow.

    They get another supervisor, which goes on where that one stood. Where none can be had the
    kernel's own ways hold in them again, so that nobody is held for ever. What is empty goes.
    """
    from watchdog_app.guard import cgroup, starting

    try:
        names = os.listdir(root())
    except OSError:
        return
    for name in names[:_MOST_GUARDS]:
        record = read(os.path.join(root(), name))
        if record is None or _is_kept(record):
            continue
        if not _is_there(record):
            record.remove()
            continue
        if starting.adopt(record.folder, _ADOPTION_S):
            continue
        with suppress(OSError):
            cgroup.release_orphan(record.group or "")
            record.remove()
    cgroup.remove_strays()


def claim(folder: str) -> bool:
    """This process keeps the guard from now on, as long as it lives; False: another one does."""
    if sys.platform == "win32":
        return False
    import fcntl

    path = os.path.join(folder, _LOCK)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of this process alone, not of its children
    except OSError:
        os.close(fd)
        return False
    return True


def _is_there(record: GuardRecord) -> bool:
    return record.group is None or os.path.isdir(record.group)


def _is_kept(record: GuardRecord) -> bool:
    """Whether a supervisor or its standby lives."""
    # Not of a zombie: where nobody collects those, they would keep a guard for ever.
    for pid in (record.supervisor_pid, record.standby_pid):
        stat = read_stat(pid or 0)
        if stat is not None and stat.comm.startswith(b"watchdog-") and not stat.has_ended:
            return True
    return False


def read(folder: str) -> GuardRecord | None:
    """The guard of a folder; None where there is none, or what is there is no record."""
    return read_file(os.path.join(folder, _FILE), folder)


def read_file(path: str, folder: str | None = None) -> GuardRecord | None:
    """The guard in a file that is called NAME.json, or as a folder is; None: it holds no record."""
    try:
        # Not to wait for the writer of a pipe that somebody put there.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if paths.foreign(found) or not stat.S_ISREG(found.st_mode):
                return None
            return parse(file.read(_MOST_BYTES), folder or path.removesuffix(".json"))
    except OSError:
        return None


def parse(text: bytes, folder: str) -> GuardRecord | None:
    """The guard of a folder, as `to_json` tells of it; None where that is no record of it."""
    try:
        return _checked(json.loads(text), os.path.basename(folder))
    except (ValueError, TypeError, RecursionError):
        return None


def _checked(found: Any, name: str) -> GuardRecord | None:
    if not isinstance(found, dict):
        return None
    known = {key: value for key, value in found.items() if key in FIELDS}
    record = GuardRecord(**known)
    kinds = GuardRecord.__annotations__
    for key in FIELDS:
        value, kind = getattr(record, key), kinds[key]
        right = (
            (
                kind == "int"
                and isinstance(value, int)
                and not isinstance(value, bool)
                and value >= 0
            )
            or (kind == "bool" and isinstance(value, bool))
            or (kind == "str" and isinstance(value, str))
            or (kind == "float" and isinstance(value, int | float))
            or (kind == "str | None" and isinstance(value, str | None))
            or (kind == "float | None" and isinstance(value, int | float | None))
            or (kind.startswith("list") and isinstance(value, list))
        )
        if not right:
            return None
    if not all(isinstance(each, dict) for each in (*record.rescues, *record.events)):
        return None
    return record if name == f"{record.pid}.{record.start_time}" else None


def prepare(pid: int, start_time: int) -> str:
    """
    Make the folder of a guard.

    Raises:
        OSError: it cannot be made, or is somebody else's.
    """
    os.makedirs(os.path.dirname(root()), mode=0o700, exist_ok=True)
    for each in (root(), folder_of(pid, start_time)):
        os.makedirs(each, mode=0o700, exist_ok=True)
        if paths.foreign(os.lstat(each)) or os.path.islink(each):
            raise PermissionError(f"{each} is somebody else's")
    if sys.platform != "win32":
        os.chmod(root(), 0o700)
    return folder_of(pid, start_time)
