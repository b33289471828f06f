"""
A memory group of our own with a limit, and a command started inside it.

Three ways, tried in this order: a folder below our own group in the cgroup v1
memory hierarchy, the same in cgroup v2 where the memory controller is
delegated to us, and a transient scope of the user's systemd. Reaching the
limit makes the kernel kill a process of the group, and nothing outside it.

Source: kernel, Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from watchdog_app.base.errors import ActionError
from watchdog_app.base.linux.cgroups import flat_value, memberships
from watchdog_app.base.linux.files import read_or_empty, write_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class MemoryGroup(Protocol):
        """A group that exists; `command` runs inside it."""

        path: str | None  # folder in the cgroup file system, None until a scope has started
        how: str  # "cgroup v1", "cgroup v2", "systemd scope"
        limit_bytes: int

        def command(self, argv: Sequence[str]) -> list[str]:
            """The same command, to be started so that it runs inside the group."""

        def oom_kills(self) -> int | None:
            """Processes of the group that the kernel has killed for memory; None: not known."""

        def usage_bytes(self) -> int | None:
            """Memory charged to the group, page cache included."""

        def set_limit(self, limit_bytes: int, swap_bytes: int) -> None:
            """Another limit, for what runs inside as well."""

        def close(self) -> None:
            """Kill whatever still runs in the group and remove it."""
else:
    MemoryGroup = object  # a supervisor is without typing, which is 1 MB


# The launcher enters the group and then becomes the command: same pid, nothing charged before.
_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


class _Folder:
    """A group that is a folder which we made ourselves."""

    how = ""
    _usage = ""
    _events = ""

    def __init__(self, path: str, limit_bytes: int) -> None:
        self.path: str | None = path
        self._dir = path
        self.limit_bytes = limit_bytes

    def command(self, argv: Sequence[str]) -> list[str]:
        return ["/bin/sh", "-c", _ENTER, self._dir, *argv]

    def oom_kills(self) -> int | None:
        return flat_value(self._read(self._events).encode(), b"oom_kill")

    def usage_bytes(self) -> int | None:
        text = self._read(self._usage)
        return int(text) if text else None

    def close(self) -> None:
        for _ in range(100):
            for pid in self._read("cgroup.procs").split():
                with suppress(OSError):
                    os.kill(int(pid), 9)
            try:
                os.rmdir(self._dir)
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.02)  # killed processes leave the group when they are reaped
            else:
                return

    def _read(self, name: str) -> str:
        return read_or_empty(f"{self._dir}/{name}").decode()

    def _write(self, name: str, value: int) -> None:
        write_bytes(f"{self._dir}/{name}", b"%d" % value)


class GroupV1(_Folder):
    """cgroup v1: memory.limit_in_bytes and memory.memsw.limit_in_bytes."""

    how = "cgroup v1"
    _usage = "memory.usage_in_bytes"
    _events = "memory.oom_control"

    def set_limit(self, limit_bytes: int, swap_bytes: int) -> None:
        """Limit memory, and memory and swap together where the kernel counts swap."""
        self.limit_bytes = limit_bytes
        both = f"{self._dir}/memory.memsw.limit_in_bytes"
        limits = [("memory.limit_in_bytes", limit_bytes)]
        if os.path.exists(both):
            limits.append(("memory.memsw.limit_in_bytes", limit_bytes + swap_bytes))
            # Never the first above the second, not even in between: that is refused (EINVAL).
            if limit_bytes > int(self._read("memory.memsw.limit_in_bytes") or 0):
                limits.reverse()
        for name, value in limits:
            self._write(name, value)
        self._write("memory.swappiness", 60 if swap_bytes else 0)


class GroupV2(_Folder):
    """cgroup v2: memory.max and memory.swap.max."""

    how = "cgroup v2"
    _usage = "memory.current"
    _events = "memory.events"

    def set_limit(self, limit_bytes: int, swap_bytes: int) -> None:
        """Limit memory and swap."""
        self.limit_bytes = limit_bytes
        self._write("memory.max", limit_bytes)
        if os.path.exists(f"{self._dir}/memory.swap.max"):
            self._write("memory.swap.max", swap_bytes)


class Scope:
    """A transient scope of the user's systemd: needs no root where cgroup v2 is delegated."""

    how = "systemd scope"

    def __init__(self, name: str, limit_bytes: int, swap_bytes: int) -> None:
        self.path: str | None = None
        self._unit = f"{name}.scope"
        self.limit_bytes = limit_bytes
        self._swap_bytes = swap_bytes

    def command(self, argv: Sequence[str]) -> list[str]:
        """Through systemd-run, which makes the scope and then becomes the command."""
        return [
            "systemd-run",
            *_systemd_user(),
            "--scope",
            "--quiet",
            f"--unit={self._unit}",
            f"--property=MemoryMax={self.limit_bytes}",
            f"--property=MemorySwapMax={self._swap_bytes}",
            "--",
            *argv,
        ]

    def oom_kills(self) -> int | None:
        """Not known."""
        return None  # the folder is gone as soon as its last process is

    def usage_bytes(self) -> int | None:
        """Not known."""
        return None

    def set_limit(self, limit_bytes: int, swap_bytes: int) -> None:
        """As `MemoryGroup.set_limit`."""
        import subprocess

        self.limit_bytes, self._swap_bytes = limit_bytes, swap_bytes
        subprocess.run(
            ["systemctl", *_systemd_user(), "set-property", "--runtime", self._unit,
             f"MemoryMax={limit_bytes}", f"MemorySwapMax={swap_bytes}"],
            check=False,
            capture_output=True,
        )  # fmt: skip

    def close(self) -> None:
        """Kill whatever still runs in the scope; systemd removes it."""
        import subprocess

        subprocess.run(
            ["systemctl", *_systemd_user(), "kill", "--signal=KILL", self._unit],
            check=False,
            capture_output=True,
        )


def _systemd_user() -> list[str]:
    return ["--user"] if os.getuid() else []


def _v1(root: str, name: str, limit_bytes: int, swap_bytes: int) -> GroupV1 | None:
    own = memberships().get("memory")
    if own is None or not os.path.isdir(f"{root}/memory"):
        return None
    for base in (f"{root}/memory{own.rstrip('/')}", f"{root}/memory"):
        group = GroupV1(f"{base}/{name}", limit_bytes)
        with suppress(OSError):
            os.mkdir(f"{base}/{name}")
            try:
                group.set_limit(limit_bytes, swap_bytes)
            except OSError:
                group.close()
                continue
            return group
    return None


def _v2(root: str, name: str, limit_bytes: int, swap_bytes: int) -> GroupV2 | None:
    own = memberships().get("")
    if own is None:
        return None
    for base in (f"{root}{own.rstrip('/')}", root):
        if b"memory" not in read_or_empty(f"{base}/cgroup.subtree_control").split():
            continue
        with suppress(OSError):
            group = GroupV2(f"{base}/{name}", limit_bytes)
            os.mkdir(f"{base}/{name}")
            try:
                group.set_limit(limit_bytes, swap_bytes)
            except OSError:
                group.close()
                continue
            return group
    return None


def _scope(name: str, limit_bytes: int, swap_bytes: int) -> Scope | None:
    import shutil
    import subprocess  # both are large, and who has a folder needs neither

    if not shutil.which("systemd-run") or not os.path.isdir("/run/systemd/system"):
        return None
    probe = Scope(f"{name}-probe", limit_bytes, swap_bytes)
    found = subprocess.run(
        probe.command(["true"]),
        check=False,
        capture_output=True,
        timeout=20,
        stdin=subprocess.DEVNULL,
    )
    return Scope(name, limit_bytes, swap_bytes) if found.returncode == 0 else None


def open_group(
    name: str, limit_bytes: int, swap_bytes: int = 0, root: str = "/sys/fs/cgroup"
) -> MemoryGroup:
    """
    A new memory group with a limit that kills.

    Args:
        name: folder or unit name; must be new.
        limit_bytes: RAM that the group may hold, page cache included.
        swap_bytes: swap that it may hold besides; 0: none.
        root: where the cgroup file systems are mounted.

    Raises:
        ActionError: none of the three ways is open to this user; nothing was left behind.
    """
    for attempt in (_v1, _v2):
        group = attempt(root, name, limit_bytes, swap_bytes)
        if group is not None:
            return group
    scope = _scope(name, limit_bytes, swap_bytes)
    if scope is not None:
        return scope
    raise ActionError(
        "No memory group of our own can be made here: the cgroup file system cannot be written "
        "and systemd gives this user no scope. Run as root, or log in through systemd."
    )
