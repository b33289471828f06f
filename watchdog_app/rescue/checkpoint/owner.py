"""
The identity of this process, and whether another one still lives.

A process is (pid, start time), because the kernel reuses pids. Processes in different containers or
machines may share a folder, but cannot see each other's pids. So an owner's name also contains a
mark of its pid namespace.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from watchdog_app.base import codec, paths
from watchdog_app.base.linux import files, process

_LINUX: bool = sys.platform == "linux"  # annotated: the type checker reads both branches
_LONGEST_TEXT = 200
_TEXT = re.compile(r"(\d+)\.(\d+)\.([0-9a-f]{8})")


@dataclass(frozen=True, slots=True)
class Owner:
    """
    The process that wrote a file.

    As text: `pid.start_time.namespace`, which identifies it. The other fields tell other machines
    and jobs where it runs; `parse` leaves them empty.
    """

    pid: int
    start_time: int
    namespace: str  # 8 hex digits, equal if pids have the same meaning
    host: str = field(default="", compare=False)
    machine: str = field(default="", compare=False)
    boot: str = field(default="", compare=False)
    job: str | None = field(default=None, compare=False)  # SLURM job id
    restart: int = field(default=0, compare=False)  # restart count of that job

    def __str__(self) -> str:
        return f"{self.pid}.{self.start_time}.{self.namespace}"

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """The owner that `str` wrote, or None."""
        found = _TEXT.fullmatch(text)
        return cls(int(found[1]), int(found[2]), found[3]) if found else None

    def to_json(self) -> dict[str, Any]:
        """The owner as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def read(cls, values: Any) -> Owner | None:
        """The owner that `to_json` wrote; None for anything else."""
        try:
            found = codec.decode(cls, values)
        except ValueError:
            return None
        texts = (found.namespace, found.host, found.machine, found.boot, found.job or "")
        return found if all(len(each) <= _LONGEST_TEXT for each in texts) else None

    @property
    def alive(self) -> bool | None:
        """Whether the process still runs; None if its pid has no meaning here."""
        if self.namespace != this_process().namespace or not _shows_own_processes():
            return None
        return start_time(self.pid) == self.start_time


def _shows_own_processes() -> bool:
    """Whether /proc is of this PID namespace: `unshare --pid` alone leaves the outer /proc."""
    if not _LINUX:
        return True
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def start_time(pid: int) -> int | None:
    """
    When `pid` began, for comparisons only; None if there is no such process.

    Clock ticks since boot on Linux, microseconds of the epoch elsewhere.

    Source: proc(5), field 22 of /proc/PID/stat.
    """
    if _LINUX:
        return process.start_time(pid)
    import psutil

    try:
        return int(psutil.Process(pid).create_time() * 1e6)
    except psutil.Error:
        return None


def this_process() -> Owner:
    """This process, or the one of `acting_for`."""
    return _acting_for or _identify(os.getpid())  # by pid: a forked child is another process


_acting_for: Owner | None = None


@contextmanager
def acting_for(owner: Owner) -> Iterator[None]:
    """
    Inside the block `this_process` returns `owner`, a frozen process; this one writes its rescues.

    It applies to the whole process, so do not use it in a process that has rescues of its own.
    """
    global _acting_for
    before, _acting_for = _acting_for, owner
    try:
        yield
    finally:
        _acting_for = before


@lru_cache(maxsize=2)
def _identify(pid: int) -> Owner:
    boot = files.read_or_empty("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()
    machine = files.read_or_empty("/etc/machine-id").decode("ascii", "replace").strip()
    restart = os.environ.get("SLURM_RESTART_COUNT", "0")
    host = os.uname().nodename
    return Owner(
        pid=pid,
        start_time=(process.start_time("self") if _LINUX else start_time(pid)) or 0,
        namespace=_namespace(boot, host),
        host=host[:_LONGEST_TEXT],
        machine=machine[:_LONGEST_TEXT],
        boot=boot,
        job=os.environ.get("SLURM_JOB_ID", "")[:_LONGEST_TEXT] or None,
        restart=int(restart) if restart.isdecimal() else 0,
    )


def _namespace(boot: str, host: str) -> str:
    try:
        where = f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        where = f"{boot} {host}".strip()
    return f"{zlib.crc32(where.encode()):08x}"


def is_trusted(found: os.stat_result, directory: str) -> bool:
    """
    Whether this user or root owns a file in `directory`, and others cannot write it.

    Some network disks show one owner and mode for all files. A new file of this user shows these
    values.
    """
    strange = paths.is_foreign(found)
    open_to_all = bool(found.st_mode & stat.S_IWOTH)
    if not strange and not open_to_all:
        return True
    try:
        owner, mode = _new_file_owner_and_mode(directory, os.stat(directory).st_dev)
    except OSError:
        return False
    return (not strange or found.st_uid == owner) and (not open_to_all or bool(mode & stat.S_IWOTH))


@functools.lru_cache(maxsize=8)
def _new_file_owner_and_mode(directory: str, _device: int) -> tuple[int, int]:
    """Owner and mode of a private file that this process makes in `directory`."""
    with tempfile.TemporaryFile(dir=directory) as file:
        found = os.fstat(file.fileno())
        return found.st_uid, found.st_mode
