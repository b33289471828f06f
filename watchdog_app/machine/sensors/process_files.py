"""
Files of one Linux process: what it is, whether it lives, what it uses now.

The files of a tick, /proc/PID/stat and statm, stay open: a read of a kept one
fails once its process has ended, even when the pid is in use again.
"""

from __future__ import annotations

import os
from contextlib import suppress

from watchdog_app.base.errors import Gone, SensorError, Unsupported
from watchdog_app.base.linux import process
from watchdog_app.base.linux.files import KeptFile, read_bytes, read_link, read_record
from watchdog_app.core.model.machine import ProcessKey, ProcessSample
from watchdog_app.machine.sensors.command_line import is_interpreter, kept

TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
# Programs of the distribution that merely embed Python (gdb, file managers, office suites) are
# nobody's training; what a user froze or built stands elsewhere.
_SYSTEM_FOLDERS = ("/usr/bin/", "/usr/sbin/", "/usr/lib", "/bin/", "/sbin/", "/lib", "/snap/")
_MAPS_LIMIT = 1 << 20
# How far shared pages may move before it is asked again what they are: the file that says so
# costs 10 us, ten times as much as the one with their number.
_SHARED_STEP_BYTES = 4 << 20


def _stat_of(data: bytes, path: str) -> process.Stat:
    try:
        return process.Stat(data)
    except ValueError as error:
        raise Unsupported(f"{path} cannot be understood: {error}") from error


def read_stat(proc: str, pid: int) -> process.Stat:
    """
    /proc/PID/stat of any process.

    Raises:
        Gone, Denied, Unsupported: it cannot be read.
    """
    path = f"{proc}/{pid}/stat"
    return _stat_of(read_bytes(path, 2048), path)


def read_argv(proc: str, pid: int) -> tuple[str, ...]:
    """Arguments of any process, as `kept`; empty when it has none or they cannot be read."""
    return kept(process.read_argv(pid, proc))


def read_owner(proc: str, pid: int) -> int:
    """
    Effective uid of a process; that of root when it has hidden itself (prctl PR_SET_DUMPABLE).

    Raises:
        Gone: it has ended.
    """
    try:
        return os.stat(f"{proc}/{pid}").st_uid
    except OSError as error:
        raise Gone(f"process {pid} has ended") from error


def read_exe(proc: str, pid: int) -> str | None:
    """Executable of a process, also when its file was replaced since; None: none or denied."""
    with suppress(SensorError):
        return read_link(f"{proc}/{pid}/exe").removesuffix(" (deleted)")
    return None


def is_dead(stat: process.Stat) -> bool:
    """
    Whether nothing runs any more and only the parent has not taken note (a zombie).

    A process of which the first thread alone has ended shows the same letter, and lives.
    """
    return stat.has_ended and stat.threads <= 1


def says_python(proc: str, pid: int) -> bool:
    """
    Whether a process is an interpreter by its command line, which can lie.

    It has to do where the executable may not be seen: root without the right to trace, in some
    containers. It may have to wait for the process.
    """
    argv = read_argv(proc, pid)
    return bool(argv) and is_interpreter(argv[0])


def embeds_python(proc: str, pid: int, exe: str) -> bool:
    """
    Whether a program of the user's that is no interpreter holds one: frozen or embedded.

    Reads the memory map: dear for big programs, so ask once for each. It may have to wait for it.
    """
    if exe.startswith(_SYSTEM_FOLDERS):
        return False
    with suppress(SensorError):
        return b"/libpython" in read_bytes(f"{proc}/{pid}/maps", _MAPS_LIMIT)
    return False


class ProcessFiles:
    """What is read of one watched process each tick."""

    __slots__ = (
        "_data",
        "_last",
        "_proc",
        "_shared",
        "_shmem",
        "_stat",
        "_statm",
        "key",
        "stat",
    )

    def __init__(self, proc: str, key: ProcessKey, stat: process.Stat) -> None:
        self.key = key
        self.stat = stat  # as last read
        self._proc = proc
        self._stat = KeptFile(f"{proc}/{key.pid}/stat")
        self._statm = KeptFile(f"{proc}/{key.pid}/statm")
        self._last: ProcessSample | None = None
        self._data = (b"", False)  # what it was made of
        self._shmem: int | None = None
        self._shared = 0  # bytes, when that was read

    def sample(self, *, swap_in_use: bool) -> ProcessSample:
        """
        The process now; as it was last when it cannot be read for a moment.

        Args:
            swap_in_use: whether the machine has anything in swap; if not, no process has.

        Raises:
            Gone: it has ended, or its pid belongs to another process.
            Denied, Unsupported: it cannot be read, and never was.
        """
        try:
            # A process that does nothing at all shows the same line to the last digit: its
            # faults, pages and ticks stand in it, so nothing else of it has changed either.
            data = (self._stat.read(2048), swap_in_use)
            if data == self._data and self._last is not None:
                return self._last
            self._last = self._read(data[0], swap_in_use=swap_in_use)
            self._data = data
        except Gone:
            self.close()
            raise
        except SensorError:
            # Out of descriptors for a moment, or half a line: the process has not ended.
            if self._last is None:
                raise
        return self._last

    def read(self, *, swap_in_use: bool) -> ProcessSample:
        """
        The process now and nothing else: what an action may rest on.

        Raises:
            Gone, Denied, Unsupported: it has ended, or cannot be read.
        """
        return self._read(self._stat.read(2048), swap_in_use=swap_in_use)

    def _read(self, data: bytes, *, swap_in_use: bool) -> ProcessSample:
        stat = _stat_of(data, self._stat.path)
        if stat.start_ticks != self.key.start_time or is_dead(stat):
            raise Gone(f"process {self.key.pid} has ended")
        statm = self._sizes()
        self.stat = stat
        status = b""
        if swap_in_use or abs(statm.shared_bytes - self._shared) >= _SHARED_STEP_BYTES:
            status = self._status()
        if status:
            self._shmem = process.status_bytes(status, b"RssShmem")
            self._shared = statm.shared_bytes
        return ProcessSample(
            self.key,
            stat.ppid,
            stat.state,
            statm.resident_bytes,
            statm.shared_bytes,
            process.status_bytes(status, b"VmSwap") if swap_in_use else 0,
            stat.vsize_bytes,
            stat.cpu_ticks / TICKS_PER_S,
            shmem_bytes=self._shmem,
        )

    def _sizes(self) -> process.Statm:
        try:
            return process.Statm(self._statm.read(256))
        except ValueError as error:
            raise Unsupported(f"{self._statm.path} cannot be understood: {error}") from error

    def _status(self) -> bytes:
        with suppress(SensorError):
            return read_record(f"{self._proc}/{self.key.pid}/status")
        return b""

    def close(self) -> None:
        """Give the descriptors back; the next sample opens them again."""
        self._stat.close()
        self._statm.close()
