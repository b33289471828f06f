"""One daemon a user: its lock in the runtime folder, and what it tells systemd (sd_notify(3))."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from contextlib import suppress

from watchdog_app.base import paths
from watchdog_app.base.errors import AlreadyRunning, WatchdogError
from watchdog_app.base.runtime_dir import private_folder

_PRESSURE_FACTOR = 20  # times the interval of the unit, under pressure: ten minutes for 30 s
_CALM_S = 60.0


class InstanceLock:
    """
    Held from construction to the end of the process, however that comes.

    Raises:
        AlreadyRunning: another process holds it; `pid` of it where known.
        WatchdogError: the file cannot be made.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._handle = self._acquire()

    def _acquire(self) -> int:
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
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or paths.is_foreign(found):
            os.close(handle)
            raise WatchdogError(
                f"{self.path} is no lock of ours: it is a link, another user's, or not a file. "
                "Remove it."
            )
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            pid = holder_pid(self.path)
            who = f" (pid {pid})" if pid else ""
            raise AlreadyRunning(
                f"Your watchdog daemon is already running{who}. "
                "See it: watchdog status. Restart it: watchdog stop; watchdog start"
            ) from error
        with suppress(OSError):  # a full disk: it is held all the same, and by whom is asked less
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        return handle

    def reacquire(self) -> bool:
        """
        Take the lock again if somebody cleaned the folder; False: another daemon has it now.
        """
        with suppress(OSError):
            there, ours = os.stat(self.path), os.fstat(self._handle)
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return True
        try:
            private_folder(os.path.dirname(self.path))
            handle = self._acquire()
        except AlreadyRunning:
            return False
        os.close(self._handle)
        self._handle = handle
        return True

    def release(self) -> None:
        """Let the next one start; the file stays, since removing it would race with its start."""
        os.close(self._handle)


def holder_pid(path: str) -> int | None:
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


def is_held_by(pid: int, path: str) -> bool:
    """
    Whether a process has the lock's file open, according to the kernel.

    False for a file of another user, who could have written any pid into it.

    Args:
        pid: of the process.
        path: of the lock.
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


class ServiceManager:
    """The datagram socket that systemd named, or nothing."""

    def __init__(self) -> None:
        # Taken out: children of ours must not speak in our name.
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        limit_us = os.environ.pop("WATCHDOG_USEC", "")
        pid = os.environ.pop("WATCHDOG_PID", "")
        wanted = limit_us.isdigit() and (not pid or pid == str(os.getpid()))
        self.heartbeat_s: float | None = int(limit_us) / 2e6 if wanted and int(limit_us) else None
        self._limit_us = int(limit_us) if self.heartbeat_s is not None else 0
        self._pressed_mono_s: float | None = None  # when last, while the interval is lengthened

    def ready(self) -> None:
        """The daemon answers."""
        self._send("READY=1")

    def heartbeat(self, now_mono_s: float, *, pressed: bool = False) -> None:
        """
        Send WATCHDOG=1; to be called every `heartbeat_s` seconds.

        Under memory pressure a turn can take minutes. Then WATCHDOG_USEC= is raised, until memory
        has been free for a minute. (EXTEND_TIMEOUT_USEC= is for start and stop.)

        Args:
            now_mono_s: now.
            pressed: memory is short.
        """
        longer = self._pressed_mono_s is not None
        if pressed:
            self._pressed_mono_s = now_mono_s
        elif longer and now_mono_s - (self._pressed_mono_s or 0.0) >= _CALM_S:
            self._pressed_mono_s = None
        message = "WATCHDOG=1"
        if longer is not (self._pressed_mono_s is not None):
            factor = 1 if longer else _PRESSURE_FACTOR
            message = f"WATCHDOG_USEC={factor * self._limit_us}\n{message}"
        self._send(message)

    def stopping(self) -> None:
        """The end has begun."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        name = self._address
        where = "\0" + name[1:] if name.startswith("@") else name
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            channel.sendto(text.encode(), where)
