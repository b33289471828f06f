"""
A training's lock: `run-ID.lock` next to its rescues, held while it lives and is unfinished.

    {"host": "gpu3", "machine": "...", "boot": "...", "pid": 4711, "start_time": 815,
     "namespace": "1a2b3c4d", "job": "77", "restart": 0, "inode": 5023}

The training process holds it with flock(2). The kernel releases it however the process ends. Any
process on this kernel can test it, in any PID namespace and container. The file is never renamed,
and only unlinked while locked. After locking, a process checks that the name still refers to the
file that it locked. The holder updates the modification time every 30 s, for other machines.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from watchdog_app.base import paths
from watchdog_app.rescue.checkpoint.owner import Owner, is_trusted, this_process

ID = re.compile(r"[0-9a-f]{12}")
_NAME = re.compile(r"run-([0-9a-f]{12})\.lock")
_HEARTBEAT_S = 30.0
SILENT_S = 15 * 60.0  # a machine that has not touched the file for so long has left the training
_ACQUIRE_TIMEOUT_S = 0.5  # a mere test holds the lock for microseconds
_POLL_S = 0.02
_MOST_BYTES = 4096
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EIO)

Life = Literal["alive", "dead", "left"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    Whether the process that trains a run still lives.

    `life`: "alive"; "dead"; "left": another machine has been silent for long. `is_lock_foreign`: it
    counts as alive only because its lock is not a file of this user.
    """

    life: Life
    owner: Owner | None
    silent_s: float | None = None  # since the last sign of another machine
    is_lock_foreign: bool = False

    @property
    def owner_label(self) -> str:
        """The owner for messages: `process 4711`, or the place where it runs."""
        owner = self.owner
        if owner is None:
            return "another process"
        own = this_process()
        if owner.namespace == own.namespace:
            return f"process {owner.pid}"
        if owner.boot == own.boot:
            return "a process in another container on this machine"
        return f"a process on host {owner.host}"


class RunLock:
    """A run's lock, held by this process."""

    def __init__(
        self, path: str, fd: int | None, place: tuple[int, int], *, locked: bool = False
    ) -> None:
        self.path = path
        self.locked = locked  # False: the file system does not support locks
        self._fd = fd  # None: the file cannot be opened here, and no other process can lock it
        self._place = place
        self._pid = os.getpid()
        if fd is not None:
            with _held_guard:
                _held.add(self)

    @property
    def held(self) -> bool:
        """Whether this process holds it, not its parent."""
        return self._fd is not None and self._pid == os.getpid()

    def heartbeat(self) -> None:
        """Touch the file, for other machines; lock a new file if it was replaced."""
        if self._fd is None:
            return
        with suppress(OSError):
            os.utime(self._fd)
        if _is_same_file(self.path, self._place) or not self.held:
            return
        with suppress(OSError):
            fd = _open_lock_file(self.path, os.O_RDWR | os.O_CREAT)
            found = os.fstat(fd)
            if not _try_lock(fd, exclusive=True):
                os.close(fd)  # another process has begun to train there
                return
            _write_owner(fd)
            os.dup2(fd, self._fd, inheritable=False)  # this closes the file that was removed
            os.close(fd)
            self._place = found.st_dev, found.st_ino

    def release(self, *, remove: bool) -> None:
        """
        Release the lock. May be called twice.

        Args:
            remove: also delete the file, because the training has ended or has saved nothing.
        """
        with _held_guard:
            _held.discard(self)
            fd, self._fd = self._fd, None
        if fd is None or self._pid != os.getpid() or not self._is_our_file(fd):
            return
        if remove and _is_same_file(self.path, self._place):
            with suppress(OSError):
                os.unlink(self.path)
        with suppress(OSError):
            os.close(fd)

    def close_in_child(self) -> None:
        """Close the descriptor in a forked child, so that the lock ends with the parent."""
        fd, self._fd = self._fd, None
        if fd is not None and self._is_our_file(fd):
            with suppress(OSError):
                os.close(fd)

    def _is_our_file(self, fd: int) -> bool:
        # A program may close all files (a daemon does), and others may get the same numbers.
        try:
            found = os.fstat(fd)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._place


class Busy(OSError):
    """Another process holds the lock."""


_held: set[RunLock] = set()
# Runs whose lock this interpreter tried to acquire. exec may restart an interpreter in its process.
_acquired: set[str] = set()
_held_guard = threading.Lock()
_next_heartbeat_mono_s = 0.0


def lock_path(directory: str, run: str) -> str:
    """Path of a run's lock."""
    return os.path.join(directory, f"run-{run}.lock")


def acquire(directory: str, run: str, *, new: bool = False) -> RunLock:
    """
    Acquire the lock of a run.

    If the file system has no locks or is read-only, the result holds no lock.

    Args:
        directory: of its rescues.
        run: its id.
        new: the file must not exist.

    Raises:
        Busy: another process, or another training of this one, holds it.
        OSError: the file does not belong to this user.
    """
    path = lock_path(directory, run)
    _acquired.add(run)
    end_mono_s = time.monotonic() + _ACQUIRE_TIMEOUT_S
    while True:
        try:
            fd = _open_lock_file(path, os.O_RDWR | os.O_CREAT | (os.O_EXCL if new else 0))
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            try:
                fd = _open_lock_file(path, os.O_RDONLY)  # the folder is not writable
            except FileNotFoundError:
                return RunLock(path, None, (0, 0), locked=True)  # a read-only copy of old rescues
        try:
            found = os.fstat(fd)
            place = found.st_dev, found.st_ino
            locked = True
            try:
                got = _try_lock(fd, exclusive=True)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                got, locked = True, False  # judged only by process and heartbeat
            if got and _is_same_file(path, place):
                _write_owner(fd)
                return RunLock(path, fd, place, locked=locked)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        if time.monotonic() > end_mono_s:
            raise Busy(errno.EWOULDBLOCK, "another process holds it", path)
        time.sleep(_POLL_S)


def check_owner(
    directory: str, run: str, named: Owner | None, newest_unix_s: float | None
) -> Verdict:
    """
    Check whether the owner of a run still runs. Never raises.

    Args:
        directory: of its rescues.
        run: its id.
        named: owner in its newest rescue; the owner in the lock takes precedence.
        newest_unix_s: when its newest rescue was written.
    """
    heartbeat = newest_unix_s
    owner = named
    locks = False
    try:
        fd = _open_lock_file(lock_path(directory, run), os.O_RDONLY)
    except FileNotFoundError:
        pass  # a user removed the lock, or copied the rescues without it
    except OSError:
        ended = owner is not None and owner.alive is False
        # the lock cannot be tested: assume that the owner lives
        return Verdict("alive", owner, is_lock_foreign=ended)
    else:
        try:
            found = os.fstat(fd)
            heartbeat = max(found.st_mtime, newest_unix_s or 0.0)
            in_lock, is_copy = _read_owner(fd)
            owner = in_lock or named
            try:
                if not _try_lock(fd, exclusive=False):
                    return Verdict("alive", owner)
                locks = not is_copy  # the owner holds the original
            except OSError:
                pass
        finally:
            os.close(fd)  # also releases the lock
    return _decide(owner, heartbeat, directory, locks=locks)


def is_held_by_this_process(directory: str, run: str) -> bool:
    """Whether a training of this process holds the lock of a run."""
    path = lock_path(directory, run)
    with _held_guard:
        return any(each.path == path and each.held for each in _held)


def was_acquired_by_this_process(run: str) -> bool:
    """Whether this interpreter has ever tried to acquire the lock of a run."""
    return run in _acquired


def heartbeat() -> None:
    """Touch the locks that this process holds, every 30 s; runs in a thread of the agent."""
    global _next_heartbeat_mono_s
    now = time.monotonic()
    if now >= _next_heartbeat_mono_s:
        _next_heartbeat_mono_s = now + _HEARTBEAT_S
        with _held_guard:
            held = list(_held)
        for each in held:
            each.heartbeat()


def remove_unused(directory: str, used: set[str]) -> None:
    """Remove locks of ended trainings that have no rescue. Never raises."""
    files: list[str] = []
    with suppress(OSError):
        files = os.listdir(directory)
    for run in (found[1] for each in files if (found := _NAME.fullmatch(each))):
        if run in used or is_held_by_this_process(directory, run):
            continue
        verdict = check_owner(directory, run, None, None)
        # A file without an owner is just being made, or another program made it.
        if verdict.owner is None or verdict.life == "alive":
            continue
        with suppress(OSError):
            acquire(directory, run).release(remove=True)


def _decide(
    owner: Owner | None, heartbeat_unix_s: float | None, directory: str, *, locks: bool
) -> Verdict:
    own = this_process()
    if owner is not None:
        if owner.namespace == own.namespace:
            # A lock file may be removed, replaced or copied: check the process, too.
            alive = False if owner == own else owner.alive
            if alive is not None:
                return Verdict("alive" if alive else "dead", owner)
        if locks and owner.boot and owner.boot == own.boot:
            return Verdict("dead", owner)
        earlier_boot = owner.boot != own.boot and owner.boot and own.boot
        same_machine = bool(owner.machine) and owner.machine == own.machine
        if earlier_boot and same_machine and owner.host == own.host:
            return Verdict("dead", owner)
        if owner.job is not None and owner.job == own.job and owner.restart < own.restart:
            return Verdict("dead", owner)
    silent_s = (
        None
        if heartbeat_unix_s is None
        else max(0.0, _file_server_now_unix_s(directory) - heartbeat_unix_s)
    )
    if silent_s is not None and silent_s > SILENT_S:
        return Verdict("left", owner, silent_s)
    return Verdict("alive", owner, silent_s)


def _file_server_now_unix_s(directory: str) -> float:
    """Time by the clock of the file server, which may differ from this machine's."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"x")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def _open_lock_file(path: str, flags: int) -> int:
    """
    Open a lock file of this user.

    Raises:
        OSError: it does not exist, or is a link, a pipe, or another user's file.
    """
    # O_NONBLOCK: opening a pipe of that name would wait.
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        found = os.fstat(fd)
        regular = stat.S_ISREG(found.st_mode)
        # The mode does not matter (`chmod -R 777`): the kernel holds the lock, not the file's text.
        ours = regular and (not paths.is_foreign(found) or is_trusted(found, os.path.dirname(path)))
    except BaseException:
        os.close(fd)
        raise
    if not ours:
        os.close(fd)
        raise FileExistsError(errno.EEXIST, "it is no lock file of this user", path)
    return fd


def _try_lock(fd: int, *, exclusive: bool) -> bool:
    """
    Try to lock a file; return whether it succeeded.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_owner(fd: int) -> None:
    """Write this process into the lock file, unless it has a second hard link (a backup)."""
    with suppress(OSError):
        if os.fstat(fd).st_nlink > 1:
            return
        os.fchmod(fd, 0o600)
        inode = os.fstat(fd).st_ino
        text = json.dumps({**this_process().to_json(), "inode": inode}).encode("ascii")
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)
        os.utime(fd)


def _read_owner(fd: int) -> tuple[Owner | None, bool]:
    """Read the owner in a lock file, and whether the file is a copy of the one that it wrote."""
    try:
        values = json.loads(os.pread(fd, _MOST_BYTES, 0))
        found = os.fstat(fd)
    except (OSError, ValueError, RecursionError):
        return None, False
    inode = values.pop("inode", None) if isinstance(values, dict) else None
    return Owner.read(values), inode is not None and inode != found.st_ino


def _is_same_file(path: str, place: tuple[int, int]) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == place


def _close_parents_locks() -> None:
    global _held_guard
    _held_guard = threading.Lock()  # another thread may have held it at the fork
    for each in list(_held):
        each.close_in_child()
    _held.clear()


os.register_at_fork(after_in_child=_close_parents_locks)
