"""The lock in the runtime folder: one daemon a user."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress

from watchdog_app.base import paths
from watchdog_app.base.errors import AlreadyRunning, WatchdogError
from watchdog_app.base.runtime_dir import private_folder


class InstanceLock:
    """
    Held from construction to the end of the process, however that comes.

    Raises:
        AlreadyRunning: another process holds it; `pid` of it where known.
        WatchdogError: the file cannot be made.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._handle = self._take()

    def _take(self) -> int:
        try:
            handle = os.open(
                self.path,
                os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK,
                0o600,
            )
        except OSError as error:
            raise WatchdogError(
                f"The daemon cannot make its lock {self.path}: {error.strerror}."
            ) from error
        found = os.fstat(handle)
        # Its content is written over: a second name of a file that matters would be its end.
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or paths.foreign(found):
            os.close(handle)
            raise WatchdogError(
                f"{self.path} is no lock of ours: a link, another user's, or no file. Remove it."
            )
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            pid = holder(self.path)
            who = f" (pid {pid})" if pid else ""
            raise AlreadyRunning(
                f"A watchdog daemon of yours is running already{who}. "
                "See it: watchdog status. Restart it: watchdog stop; watchdog start"
            ) from error
        with suppress(OSError):  # a full disk: it is held all the same, and by whom is asked less
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        return handle

    def keep(self) -> bool:
        """
        Take the lock again if somebody cleaned the folder; False: another daemon has it now.
        """
        with suppress(OSError):
            there, ours = os.stat(self.path), os.fstat(self._handle)
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return True
        try:
            private_folder(os.path.dirname(self.path))
            handle = self._take()
        except AlreadyRunning:
            return False
        os.close(self._handle)
        self._handle = handle
        return True

    def release(self) -> None:
        """Let the next one start; the file stays, since removing it would race with its start."""
        os.close(self._handle)


def holder(path: str) -> int | None:
    """
    Pid of the process that holds the lock at `path`, None when nobody does.

    0 where it could not write its pid down, as on a full disk.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(handle, 32, 0).strip()
            return int(text) if text.isdigit() else 0
        return None
    finally:
        os.close(handle)


def holds(pid: int, path: str) -> bool:
    """
    Whether a process has the lock's file open, as the kernel says and not as the file does.

    A lock of another user's is held by nobody: who made it could name anybody.
    """
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        lock = os.lstat(path)
        if lock.st_uid != os.geteuid() or lock.st_nlink > 1:
            return False
        for name in os.listdir(folder):
            with suppress(OSError):
                if os.path.samestat(os.stat(f"{folder}/{name}"), lock):
                    return True
    return False


def boot_id() -> str:
    """Differs after each start of the machine: start times of processes begin anew then."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read(8)
    import psutil  # not Linux

    return str(int(psutil.boot_time()))
