"""
A memory group in cgroup v1: `memory.oom_control` 1 makes processes wait, the freezer freezes.

With that setting, a process that reaches the limit in a page fault sleeps until the limit rises or
memory is freed. A system call that needs memory fails with ENOMEM.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

from watchdog_app.base.linux.cgroups import Group
from watchdog_app.base.linux.files import write_bytes
from watchdog_app.guard.cgroup import Cgroup, all_halted, enclosing_path

_FREEZE_DEADLINE_S = 2.0
_POLL_S = 0.002
_FULL_SHARE = 0.995  # of the limit: the kernel charges memory in batches of 64 pages per processor


class CgroupV1(Cgroup):
    """A folder in the memory hierarchy, and one of the same name in the freezer hierarchy."""

    kind = "cgroup v1"
    version = 1

    def __init__(
        self, path: str, limit_bytes: int, swap_bytes: int = 0, freezer: str | None = None
    ) -> None:
        super().__init__(path, limit_bytes, swap_bytes)
        self.freezer = freezer  # None: SIGSTOP replaces the freezer

    @classmethod
    def create(cls, root: str, name: str, limit_bytes: int, swap_bytes: int) -> CgroupV1 | None:
        """Create a group below our own group, or below the top; None if the kernel refuses."""
        own = enclosing_path("memory")
        if own is None or not os.path.isdir(f"{root}/memory"):
            return None
        for base in dict.fromkeys((f"{root}/memory{own.rstrip('/')}", f"{root}/memory")):
            group = cls(f"{base}/{name}", limit_bytes, swap_bytes)
            with suppress(OSError):
                os.mkdir(group.path)
                with suppress(OSError):
                    group.set_limit(limit_bytes)
                    group.freezer = _create_freezer(root, name)
                    return group
                os.rmdir(group.path)
        return None

    def enter(self, pid: int) -> None:
        """See `Cgroup.enter`."""
        if self.freezer is not None:
            write_bytes(f"{self.freezer}/cgroup.procs", b"%d" % pid)
        super().enter(pid)

    def set_limit(self, limit_bytes: int) -> None:
        """See `Cgroup.set_limit`; limits memory plus swap if the kernel counts swap."""
        both = "memory.memsw.limit_in_bytes"
        limits = [("memory.limit_in_bytes", limit_bytes)]
        if os.path.exists(f"{self.path}/{both}"):
            limits.append((both, limit_bytes + self.swap_bytes))
            # The kernel refuses a memory limit above the limit of memory plus swap (EINVAL), even
            # in between.
            if limit_bytes > int(self._read(both) or 0):
                limits.reverse()
        for name, value in limits:
            self._write(name, value)
        self._write("memory.swappiness", 60 if self.swap_bytes else 0)
        self.limit_bytes = limit_bytes

    def enforce_limit(self) -> None:
        """See `Cgroup.enforce_limit`."""
        self._write("memory.oom_control", 1)

    def lift_limit(self) -> None:
        """See `Cgroup.lift_limit`."""
        with suppress(OSError):
            self._write("memory.oom_control", 0)

    def open_event(self) -> tuple[int, int]:
        """See `Cgroup.open_event`."""
        if sys.platform != "linux":
            raise OSError("no events")
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        target = os.open(f"{self.path}/memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._write("cgroup.event_control", f"{self._event} {target}")
        finally:
            os.close(target)
        return self._event, select.POLLIN

    def clear_event(self) -> None:
        """See `Cgroup.clear_event`."""
        with suppress(BlockingIOError):
            os.read(self._event or -1, 8)

    def at_limit(self) -> bool:
        """See `Cgroup.at_limit`."""
        if "under_oom 1" not in self._read("memory.oom_control"):
            return False
        # An enclosing group at its own limit also sets this flag; that limit is not ours.
        return self.usage().used_bytes >= self.limit_bytes * _FULL_SHARE

    def _freeze(self) -> bool:
        if self.freezer is not None:
            group = Group(self.freezer, 1)
            return group.freeze(_FREEZE_DEADLINE_S, lambda: all_halted(self.pids()))
        self._stopped = True
        end_mono_s = time.monotonic() + _FREEZE_DEADLINE_S
        while True:
            self._signal(signal.SIGSTOP)
            if all_halted(self.pids()):
                return True
            if time.monotonic() > end_mono_s:
                return False
            time.sleep(_POLL_S)

    def _unfreeze(self) -> None:
        if self.freezer is not None:
            Group(self.freezer, 1).thaw()


def _create_freezer(root: str, name: str) -> str | None:
    own = enclosing_path("freezer")
    for path in () if own is None else dict.fromkeys((own.rstrip("/"), "")):
        folder = f"{root}/freezer{path}/{name}"
        with suppress(OSError):
            os.mkdir(folder)
            if os.path.exists(f"{folder}/freezer.state"):
                return folder
            os.rmdir(folder)
    return None
