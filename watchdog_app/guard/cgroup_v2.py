"""
A guard in cgroup v2: `memory.high` slows down at the limit, `cgroup.freeze` stops everyone.

There is no way to switch killing off, so the limit is `memory.high`, and `memory.max` lies above it
by as much as is never filled before the freeze: above `memory.high` a process is put to sleep on
its way out of each page fault that took memory. A `memory.max` below what is used kills at once,
whoever is frozen too, so it is never set there.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress

from watchdog_app.base.linux.cgroups import Group, Usage, read_usage
from watchdog_app.base.linux.files import write_bytes
from watchdog_app.guard.cgroup import enclosing
from watchdog_app.guard.memory_group import GroupV2

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

_FREEZE_DEADLINE_S = 5.0  # a throttled task sleeps up to 2 s before it can be frozen
_FULL_SHARE = 0.98
_LEAST_GUARD_BYTES = 64 << 20
_GUARD_SHARE = 16  # of the limit: what may be taken between the event and the freeze


class CgroupV2(GroupV2):
    """A folder of the one hierarchy that we may write."""

    version = 2
    tells_near = False

    def __init__(self, path: str, limit_bytes: int, swap_bytes: int) -> None:
        super().__init__(path, limit_bytes)
        self.swap_bytes = swap_bytes
        self._event: int | None = None
        self._high = ""  # what memory.high says since we last wrote it

    @classmethod
    def make(cls, root: str, name: str, limit_bytes: int, swap_bytes: int) -> Self | None:
        """A new one below the nearest group above us that hands memory out; None: none does."""
        own = enclosing("")
        if own is None:
            return None
        path = own.rstrip("/")
        while True:
            guard = cls._below(f"{root}{path}", name, limit_bytes, swap_bytes)
            if guard is not None or not path:
                return guard
            path = os.path.dirname(path).rstrip("/")

    @classmethod
    def _below(cls, base: str, name: str, limit_bytes: int, swap_bytes: int) -> Self | None:
        guard = cls(f"{base}/{name}", limit_bytes, swap_bytes)
        try:
            with open(f"{base}/cgroup.subtree_control") as file:
                if "memory" not in file.read().split():
                    return None
            os.mkdir(guard._dir)
        except OSError:
            return None
        with suppress(OSError):
            guard.allow(limit_bytes)
            if os.access(f"{guard._dir}/cgroup.freeze", os.W_OK):  # from Linux 5.2 on
                return guard
        with suppress(OSError):
            os.rmdir(guard._dir)
        return None

    def enter(self, pid: int) -> None:
        """As `Cgroup.enter`."""
        self._put("cgroup.procs", str(pid))

    def leave_to(self, pid: int) -> None:
        """Move a process to where the guard itself lies, as far as a group may hold processes."""
        with suppress(OSError):
            write_bytes(f"{os.path.dirname(self._dir)}/cgroup.procs", b"%d" % pid)

    def lies_at(self, path: str) -> None:
        """As `Cgroup.lies_at`."""
        self.path = self._dir = path

    def arm(self, near_bytes: int) -> list[tuple[int, int]]:
        """As `Cgroup.arm`; cgroup v2 tells of the limit alone."""
        del near_bytes
        if self._event is None:
            self._event = os.open(f"{self._dir}/memory.events", os.O_RDONLY | os.O_CLOEXEC)
        self.heard(self._event)
        return [(self._event, select.POLLPRI)]

    def heard(self, fd: int) -> None:
        """As `Cgroup.heard`: reading is what arms it."""
        with suppress(OSError):
            os.pread(fd, 4096, 0)

    def hold_at_limit(self) -> None:
        """As `Cgroup.hold_at_limit`."""
        self.allow(self.limit_bytes)

    def hold_fast(self) -> None:
        """As `Cgroup.hold_fast`: a systemd that is reloaded writes its own, which are none."""
        if self._high and self._read("memory.high") not in ("", self._high):
            with suppress(OSError):
                self.allow(self.limit_bytes)

    def release(self) -> None:
        """As `Cgroup.release`: what lies beyond the limit kills again, nothing slows down."""
        self._high = ""
        with suppress(OSError):
            self._put("memory.high", "max")
        self.thaw()

    def usage(self) -> Usage:
        """As `Cgroup.usage`."""
        return read_usage(self._dir, 2)

    def at_limit(self) -> bool:
        """As `Cgroup.at_limit`."""
        # The event comes for page cache as well, which the kernel then gives back by itself.
        return self.usage().held_bytes >= self.limit_bytes * _FULL_SHARE

    def allow(self, bytes_: int) -> None:
        """As `Cgroup.allow`."""
        self.limit_bytes = bytes_
        # The reserve that is taken back may have been used; a user may want less than there is.
        filled = max(bytes_, self.usage_bytes() or 0)
        most = filled + max(_LEAST_GUARD_BYTES, filled // _GUARD_SHARE)
        # Raised from above, lowered from below: the one that kills is never the lower one.
        now = self._read("memory.max").strip()
        rising = now != "max" and int(now or 0) < most
        steps = [("memory.high", str(bytes_)), ("memory.max", str(most))]
        for name, value in reversed(steps) if rising else steps:
            self._put(name, value)
        if os.path.exists(f"{self._dir}/memory.swap.max"):
            self._put("memory.swap.max", str(self.swap_bytes))
        self._high = self._read("memory.high")

    def pids(self) -> list[int]:
        """As `Cgroup.pids`."""
        return list(self._group.pids(strict=False))

    def freeze(self) -> bool:
        """As `Cgroup.freeze`."""
        return self._group.freeze(_FREEZE_DEADLINE_S)

    def thaw(self) -> None:
        """As `Cgroup.thaw`."""
        self._group.thaw()

    def close(self) -> bool:  # type: ignore[override]
        """As `Cgroup.close`."""
        if self._event is not None:
            os.close(self._event)
            self._event = None
        try:
            os.rmdir(self._dir)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _put(self, name: str, value: str) -> None:
        write_bytes(f"{self._dir}/{name}", value.encode())

    @property
    def _group(self) -> Group:
        return Group(self._dir, 2)
