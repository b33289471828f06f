"""
The guard: a memory group of one task's own, in which the limit holds instead of killing.

    guard = create("watchdog-guard-4711-99", limit_bytes, swap_bytes)
    guard.enter(pid)

Three kinds, tried in this order: cgroup v1 (`cgroup_v1`), a transient scope of systemd
(`cgroup_scope`), a folder in cgroup v2 (`cgroup_v2`). Where none can be had the caller is left
with limits on address space alone (`reservation`), which hold nothing but refuse.

Sources: kernel, Documentation/admin-guide/cgroup-v1/memory.rst (10. OOM control),
cgroup-v1/freezer-subsystem.rst, cgroup-v2.rst (memory interface files, cgroup.freeze).
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

from watchdog_app.base.errors import ActionError
from watchdog_app.base.linux.cgroups import memberships
from watchdog_app.base.linux.process import start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Protocol

    from watchdog_app.base.linux.cgroups import Usage
    from watchdog_app.guard.record import GuardRecord

    class Cgroup(Protocol):
        """A group that exists. Every method may raise OSError where the kernel refuses."""

        how: str  # "cgroup v1", "cgroup v2", "systemd scope"
        version: int
        path: str | None  # folder in the memory hierarchy
        limit_bytes: int
        swap_bytes: int
        tells_near: bool  # `near_bytes` of `arm` is told of: nobody has to look often

        def enter(self, pid: int) -> None:
            """Move a process into the group; what it starts from now on is in it as well."""

        def lies_at(self, path: str) -> None:
            """The folder, as the process knows that has entered it (a scope's is made then)."""

        def leave_to(self, pid: int) -> None:
            """Move a process to where the guard itself lies."""

        def arm(self, near_bytes: int) -> list[tuple[int, int]]:
            """(descriptor, poll mask) of what tells that the limit, or `near_bytes`, was met."""

        def heard(self, fd: int) -> None:
            """Take an event away, so that the next one is heard."""

        def hold_at_limit(self) -> None:
            """From now on the limit holds; until then, and after `release`, it kills."""

        def hold_fast(self) -> None:
            """Its limits again, where somebody else has written others."""

        def release(self) -> None:
            """The kernel's own ways again: nobody in the group is held by its limit for ever."""

        def usage(self) -> Usage:
            """What the group holds now."""

        def at_limit(self) -> bool:
            """Somebody waits for memory, and nothing is left that could be given back."""

        def allow(self, bytes_: int) -> None:
            """Another limit, at once."""

        def pids(self) -> list[int]:
            """Everyone in the group and below it."""

        def freeze(self) -> bool:
            """Stop everyone, those who wait for memory included; False: somebody still runs."""

        def thaw(self) -> None:
            """Let everyone run."""

        def close(self) -> bool:
            """Remove the group once it is empty; False: somebody is in it."""


PREFIX: Final = "watchdog-guard-"
_NEW_S: Final = 60.0
LEAST_LIMIT_BYTES: Final = 32 << 20  # below this a Python does not even start


def name_of(pid: int, start_time: int) -> str:
    """The folder's name of the guard of a process."""
    return f"{PREFIX}{pid}-{start_time}"


def guard_of(pid: int, proc: str = "/proc") -> str | None:
    """The name of the guard that a process is in; None: it is in none. It can wait for a lock."""
    return next(filter(None, map(guard_in, memberships(pid, proc).values())), None)


def guard_in(path: str) -> str | None:
    """The name of the guard in the path of a group; None: it leads through none."""
    for part in path.split("/"):
        if part.startswith(PREFIX):
            return part.removesuffix(".scope")
    return None


def create(
    name: str, limit_bytes: int, swap_bytes: int = 0, root: str = "/sys/fs/cgroup"
) -> Cgroup:
    """
    A new guard; nobody is in it, and its limit does not hold yet.

    Args:
        name: as `name_of` gives it; must be new.
        limit_bytes: RAM that the group may hold, page cache included.
        swap_bytes: swap that it may hold besides; 0: none.
        root: where the cgroup file systems are mounted.

    Raises:
        ActionError: no kind is open to this user, and why; nothing was left behind.
    """
    if sys.platform != "linux":
        raise ActionError("This system has no memory groups.")
    from watchdog_app.guard.cgroup_v1 import CgroupV1
    from watchdog_app.guard.cgroup_v2 import CgroupV2

    found: Cgroup | None = CgroupV1.make(root, name, limit_bytes, swap_bytes)
    # Where systemd writes the tree of v2, a group of ours is made by it and not beside it.
    if found is None and os.path.isdir("/run/systemd/system"):
        from watchdog_app.guard.cgroup_scope import make

        found = make(root, name, limit_bytes, swap_bytes)
    if found is None:
        found = CgroupV2.make(root, name, limit_bytes, swap_bytes)
    if found is not None:
        return found
    raise ActionError(
        "no memory group of its own can be made here: the control groups cannot be written, and "
        "systemd gives this user none"
    )


def existing(record: GuardRecord) -> Cgroup:
    """The guard that a record tells of, which is entered."""
    path = record.group or ""
    if os.path.exists(f"{path}/memory.oom_control"):
        from watchdog_app.guard.cgroup_v1 import CgroupV1

        return CgroupV1(path, record.limit_bytes, record.swap_bytes, record.freezer)
    from watchdog_app.guard.cgroup_v2 import CgroupV2

    guard = CgroupV2(path, record.limit_bytes, record.swap_bytes)
    guard.how = record.how
    return guard


def release_orphan(path: str, limit_bytes: int | None = None) -> None:
    """
    A guard at `path` that nobody keeps: nobody in it is held any longer, and an empty one goes.

    Args:
        path: of its group.
        limit_bytes: at which the kernel kills from now on; None: where it was.

    Raises:
        OSError: it cannot be written.
    """
    from watchdog_app.guard.cgroup_v1 import CgroupV1
    from watchdog_app.guard.cgroup_v2 import CgroupV2

    if PREFIX not in path:
        return
    guard: Cgroup
    if os.path.exists(f"{path}/memory.oom_control"):
        own = enclosing("freezer") or ""
        name = os.path.basename(path)
        places = (f"/sys/fs/cgroup/freezer{base.rstrip('/')}/{name}" for base in (own, ""))
        freezer = next((each for each in places if os.path.isdir(each)), None)
        guard = CgroupV1(path, 0, 0, freezer)
    else:
        guard = CgroupV2(path, 0, 0)
    if limit_bytes is not None:
        guard.allow(limit_bytes)
    guard.release()
    guard.close()


def remove_strays() -> None:
    """Empty groups go whose programs have ended, and whose supervisors could not do it any more."""
    for name in ("memory", "freezer", ""):
        own = enclosing(name)
        if own is None:
            continue
        for base in dict.fromkeys((own.rstrip("/"), "")):
            folder = f"/sys/fs/cgroup/{name}{base}"
            with suppress(OSError):
                strays = [each for each in os.listdir(folder) if _is_stray(folder, each)]
                for each in strays:
                    with suppress(OSError):  # somebody is in it, and it stays
                        os.rmdir(f"{folder}/{each}")


def _is_stray(folder: str, name: str) -> bool:
    pid, _, began = name.removeprefix(PREFIX).removesuffix(".scope").partition("-")
    if not (name.startswith(PREFIX) and pid.isdecimal() and began.isdecimal()):
        return False
    # A new one may be of another PID namespace, whose program has not entered it yet.
    new = time.time() - os.stat(f"{folder}/{name}").st_mtime < _NEW_S
    return not new and start_time(int(pid)) != int(began)


def enclosing(name: str, proc: str = "/proc") -> str | None:
    """Path of this process's own group in one hierarchy (`memory`, `freezer`, '' for v2)."""
    path = memberships(proc=proc).get(name)
    return None if path is None else outside(path)


def outside(path: str) -> str:
    """The group in which a guard lies, for a path in or below one; others as they are."""
    parts = path.split("/")
    for at, part in enumerate(parts):
        if part.startswith(PREFIX):
            return "/".join(parts[:at]) or "/"
    return path
