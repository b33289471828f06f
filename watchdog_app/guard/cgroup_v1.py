"""
A guard in cgroup v1: `memory.oom_control` set to 1 holds, the freezer hierarchy stops everyone.

With it set, a process that meets the limit in a page fault sleeps until the limit is raised or
memory is given back; a system call that needs memory fails with ENOMEM.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

from watchdog_app.base.linux.cgroups import Group, Usage, read_usage
from watchdog_app.base.linux.files import write_bytes
from watchdog_app.base.linux.process import all_halted
from watchdog_app.guard.cgroup import enclosing
from watchdog_app.guard.memory_group import GroupV1

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

_FREEZE_DEADLINE_S = 2.0
_POLL_S = 0.002
_FULL_SHARE = 0.995  # of the limit: charges come in batches of 64 pages a processor


class CgroupV1(GroupV1):
    """A folder in the memory hierarchy, and one of the same name in the freezer's."""

    version = 1

    def __init__(self, path: str, limit_bytes: int, swap_bytes: int, freezer: str | None) -> None:
        super().__init__(path, limit_bytes)
        self.swap_bytes = swap_bytes
        self.freezer = freezer  # None: signals have to do
        self.tells_near = False
        self._armed: list[int] = []

    @classmethod
    def make(cls, root: str, name: str, limit_bytes: int, swap_bytes: int) -> Self | None:
        """A new one below our own group, or below the top; None where that is refused."""
        own = enclosing("memory")
        if own is None or not os.path.isdir(f"{root}/memory"):
            return None
        for base in dict.fromkeys((f"{root}/memory{own.rstrip('/')}", f"{root}/memory")):
            guard = cls(f"{base}/{name}", limit_bytes, swap_bytes, None)
            try:
                os.mkdir(guard._dir)
            except OSError:
                continue
            with suppress(OSError):
                guard.set_limit(limit_bytes, swap_bytes)
                if os.access(f"{guard._dir}/cgroup.event_control", os.W_OK):
                    guard.freezer = _freezer(root, name)
                    return guard
            with suppress(OSError):
                os.rmdir(guard._dir)
        return None

    def enter(self, pid: int) -> None:
        """As `Cgroup.enter`."""
        if self.freezer is not None:
            _put(f"{self.freezer}/cgroup.procs", pid)
        _put(f"{self._dir}/cgroup.procs", pid)

    def leave_to(self, pid: int) -> None:
        """Move a process to where the guard itself lies: out of every guard."""
        for folder in (self._dir, self.freezer):
            if folder is not None:
                _put(f"{os.path.dirname(folder)}/cgroup.procs", pid)

    def lies_at(self, path: str) -> None:
        """As `Cgroup.lies_at`."""
        self.path = self._dir = path

    def arm(self, near_bytes: int) -> list[tuple[int, int]]:
        """As `Cgroup.arm`; what was armed before is let go."""
        self._disarm()
        self._listen("memory.oom_control", "")
        try:
            self._listen("memory.usage_in_bytes", str(near_bytes))
            self.tells_near = True
        except OSError:
            self.tells_near = False
        return [(fd, select.POLLIN) for fd in self._armed]

    def heard(self, fd: int) -> None:
        """As `Cgroup.heard`."""
        with suppress(BlockingIOError):
            os.read(fd, 8)

    def hold_at_limit(self) -> None:
        """As `Cgroup.hold_at_limit`."""
        _put(f"{self._dir}/memory.oom_control", 1)

    def hold_fast(self) -> None:
        """As `Cgroup.hold_fast`: in a hierarchy of version 1 nobody writes to groups of others."""

    def release(self) -> None:
        """As `Cgroup.release`."""
        with suppress(OSError):
            _put(f"{self._dir}/memory.oom_control", 0)
        self.thaw()

    def usage(self) -> Usage:
        """As `Cgroup.usage`."""
        return read_usage(self._dir, 1)

    def at_limit(self) -> bool:
        """As `Cgroup.at_limit`."""
        if "under_oom 1" not in self._read("memory.oom_control"):
            return False
        # An enclosing group that has met its own limit makes this true as well: not our business.
        return self.usage().used_bytes >= self.limit_bytes * _FULL_SHARE

    def allow(self, bytes_: int) -> None:
        """As `Cgroup.allow`."""
        self.set_limit(bytes_, self.swap_bytes)

    def pids(self) -> list[int]:
        """As `Cgroup.pids`."""
        return list(Group(self._dir, 1).pids(strict=False))

    def freeze(self) -> bool:
        """As `Cgroup.freeze`."""
        if self.freezer is not None:
            halted = lambda: all_halted(self.pids())  # noqa: E731
            return Group(self.freezer, 1).freeze(_FREEZE_DEADLINE_S, halted)
        end = time.monotonic() + _FREEZE_DEADLINE_S
        while True:
            self._signal(signal.SIGSTOP)
            if all_halted(self.pids()):
                return True
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_S)

    def thaw(self) -> None:
        """As `Cgroup.thaw`."""
        if self.freezer is None:
            self._signal(signal.SIGCONT)
        else:
            Group(self.freezer, 1).thaw()

    def close(self) -> bool:  # type: ignore[override]
        """As `Cgroup.close`."""
        self._disarm()
        if self.freezer is not None:
            with suppress(OSError):
                os.rmdir(self.freezer)
        try:
            os.rmdir(self._dir)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _signal(self, number: int) -> None:
        for pid in self.pids():
            with suppress(OSError):
                os.kill(pid, number)

    def _listen(self, name: str, argument: str) -> None:
        if sys.platform != "linux":
            raise OSError("no events")
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            target = os.open(f"{self._dir}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                _put(f"{self._dir}/cgroup.event_control", f"{event} {target} {argument}".rstrip())
            finally:
                os.close(target)
        except OSError:
            os.close(event)
            raise
        self._armed.append(event)

    def _disarm(self) -> None:
        for fd in self._armed:
            os.close(fd)
        self._armed.clear()


def _freezer(root: str, name: str) -> str | None:
    own = enclosing("freezer")
    for path in () if own is None else dict.fromkeys((own.rstrip("/"), "")):
        folder = f"{root}/freezer{path}/{name}"
        try:
            os.mkdir(folder)
        except OSError:
            continue
        if os.path.exists(f"{folder}/freezer.state"):
            return folder
        with suppress(OSError):
            os.rmdir(folder)
    return None


def _put(path: str, value: int | str) -> None:
    write_bytes(path, str(value).encode())
