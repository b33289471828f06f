"""
Choose the kind of memory group for a program: cgroup v1, a scope of systemd, or cgroup v2.

    group = create(guard_group_name(pid, start_time), limit_bytes)
    group.enter(pid)
    group.enforce_limit()
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

from watchdog_app.base.errors import ActionError
from watchdog_app.base.linux.process import start_time
from watchdog_app.guard.cgroup import PREFIX, Cgroup, enclosing_path
from watchdog_app.guard.cgroup_v1 import CgroupV1
from watchdog_app.guard.cgroup_v2 import CgroupV2, Scope

ROOT = "/sys/fs/cgroup"
_MIN_AGE_S = 60.0


def create(name: str, limit_bytes: int, swap_bytes: int = 0, root: str = ROOT) -> Cgroup:
    """
    Make a new, empty group; at its limit the kernel still kills.

    Args:
        name: folder or unit name; must be new.
        limit_bytes: RAM that the group may use, page cache included.
        swap_bytes: additional swap that it may use; 0: none.
        root: where the cgroup file systems are mounted.

    Raises:
        ActionError: this user can make no kind of group; nothing was left behind.
    """
    kinds: list[type[CgroupV1 | CgroupV2]] = []
    if sys.platform == "linux":
        # If systemd manages the v2 tree, systemd must make the group.
        scopes = [Scope] if os.path.isdir("/run/systemd/system") else []
        kinds = [CgroupV1, *scopes, CgroupV2]
    for kind in kinds:
        group = kind.create(root, name, limit_bytes, swap_bytes)
        if group is not None:
            return group
    raise ActionError(
        "no memory group of its own can be made here: the control groups cannot be written, and "
        "systemd gives this user none. Run as root, or log in through systemd"
    )


def open_existing(
    path: str, limit_bytes: int = 0, swap_bytes: int = 0, freezer: str | None = None
) -> Cgroup:
    """Return the existing group of a guard, by its folders."""
    if os.path.exists(f"{path}/memory.oom_control"):
        return CgroupV1(path, limit_bytes, swap_bytes, freezer)
    return CgroupV2(path, limit_bytes, swap_bytes)


def release_orphan(path: str) -> None:
    """
    Resume all processes in a group that has no supervisor; remove the group if it is empty.

    Args:
        path: of a guard's group; other groups are left alone.

    Raises:
        OSError: the group's files cannot be written.
    """
    if PREFIX not in path:
        return
    name = os.path.basename(path)
    places = (f"{ROOT}/freezer{base.rstrip('/')}/{name}" for base in (enclosing_path("freezer"), "")
              if base is not None)  # fmt: skip
    freezer = next((each for each in places if os.path.isdir(each)), None)
    group = open_existing(path, freezer=freezer)
    group.lift_limit()
    group.resume(everyone=True)
    group.remove()


def remove_empty_groups() -> None:
    """Remove empty groups whose programs and supervisors have ended."""
    for name in ("memory", "freezer", ""):
        own = enclosing_path(name)
        for base in () if own is None else dict.fromkeys((own.rstrip("/"), "")):
            folder = f"{ROOT}/{name}{base}"
            with suppress(OSError):
                for each in [one for one in os.listdir(folder) if _is_orphaned(folder, one)]:
                    with suppress(OSError):  # a group with a process stays
                        os.rmdir(f"{folder}/{each}")


def _is_orphaned(folder: str, name: str) -> bool:
    pid, _, began = name.removeprefix(PREFIX).removesuffix(".scope").partition("-")
    if not (name.startswith(PREFIX) and pid.isdecimal() and began.isdecimal()):
        return False
    # A new group may belong to another PID namespace, and its program may not have entered it yet.
    new = time.time() - os.stat(f"{folder}/{name}").st_mtime < _MIN_AGE_S
    return not new and start_time(int(pid)) != int(began)
