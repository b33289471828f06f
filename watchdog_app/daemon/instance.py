"""The lock that allows one daemon per user, and the messages to systemd (sd_notify(3))."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from contextlib import suppress

from watchdog_app.base import paths
from watchdog_app.base.errors import AlreadyRunning, WatchdogError
from watchdog_app.base.runtime_dir import private_folder

# factor on the unit's interval under memory pressure: 30 s become ten minutes
_PRESSURE_FACTOR = 20
_CALM_S = 60.0


class InstanceLock:
    """
    Lock held from construction until the process ends, in whatever way.

    Raises:
        AlreadyRunning: another process holds it; the message names its pid if known.
        WatchdogError: the file cannot be created.
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
        # The lock's content is overwritten, which would destroy a file that has a second name here.
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
        with suppress(OSError):  # full disk: the lock holds anyway, only the pid is missing
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        return handle

    def reacquire(self) -> bool:
        """Take the lock again if its file was removed; False: another daemon holds it now."""
        with suppress(OSError):
            current, ours = os.stat(self.path), os.fstat(self._handle)
            if (current.st_dev, current.st_ino) == (ours.st_dev, ours.st_ino):
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
        """Let another daemon start. The file stays: removing it would race with that start."""
        os.close(self._handle)


def holder_pid(path: str) -> int | None:
    """
    Pid of the process that holds the lock at `path`; None: the lock is free.

    0: a process holds it but could not write its pid, for example on a full disk.
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
        pid: the process.
        path: the file of the lock.
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
    """An id that differs after each boot, when start times of processes begin again."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read(8)
    import psutil  # systems other than Linux

    return str(int(psutil.boot_time()))


class ServiceManager:
    """The datagram socket of systemd, or nothing."""

    def __init__(self) -> None:
        # Remove it from the environment: our children must not send messages in our name.
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        limit_us = os.environ.pop("WATCHDOG_USEC", "")
        pid = os.environ.pop("WATCHDOG_PID", "")
        wanted = limit_us.isdigit() and (not pid or pid == str(os.getpid()))
        self.heartbeat_s: float | None = int(limit_us) / 2e6 if wanted and int(limit_us) else None
        self._limit_us = int(limit_us) if self.heartbeat_s is not None else 0
        # last time under pressure; None: the interval is the unit's
        self._pressed_mono_s: float | None = None

    def ready(self) -> None:
        """Tell systemd that the daemon answers requests."""
        self._send("READY=1")

    def heartbeat(self, now_mono_s: float, *, pressed: bool = False) -> None:
        """
        Send WATCHDOG=1; call this every `heartbeat_s` seconds.

        Under memory pressure a turn of the loop can take minutes. So WATCHDOG_USEC= is raised until
        memory has been free for a minute. (EXTEND_TIMEOUT_USEC= applies only to start and stop.)

        Args:
            now_mono_s: the current time.
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
        """Tell systemd that the daemon is stopping."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        name = self._address
        where = "\0" + name[1:] if name.startswith("@") else name
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            channel.sendto(text.encode(), where)
