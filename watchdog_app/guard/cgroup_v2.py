"""
A memory group in cgroup v2: `memory.high` slows down at the limit, `cgroup.freeze` freezes.

Version 2 cannot switch killing off, so the enforced limit is `memory.high`. Above `memory.high` the
kernel puts a process to sleep at the end of each page fault that took memory. `memory.max` is
higher by a margin that is never filled before the freeze. A `memory.max` below the usage kills at
once, even frozen processes, so it is never set there.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress

from watchdog_app.base.linux.cgroups import Group, memberships
from watchdog_app.guard.cgroup import Cgroup, enclosing_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from typing import Self

_FREEZE_DEADLINE_S = 5.0  # a throttled task sleeps up to 2 s before it can be frozen
_FULL_SHARE = 0.98
_LEAST_MARGIN_BYTES = 64 << 20
_MARGIN_SHARE = 16  # of the limit: memory that may be taken between the event and the freeze
_MANAGER = (
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
)
_SYSTEMD_TIMEOUT_S = 10.0
_POLL_S = 0.01


class CgroupV2(Cgroup):
    """A writable folder in the unified hierarchy."""

    kind = "cgroup v2"
    version = 2

    def __init__(self, path: str, limit_bytes: int, swap_bytes: int = 0) -> None:
        super().__init__(path, limit_bytes, swap_bytes)
        self._high = ""  # memory.high as last written; empty: the kernel kills at the limit

    @classmethod
    def create(cls, root: str, name: str, limit_bytes: int, swap_bytes: int) -> Self | None:
        """Create a group below the nearest parent that delegates memory; None if there is none."""
        path = enclosing_path("")
        while path is not None:
            path = path.rstrip("/")
            group = cls(f"{root}{path}/{name}", limit_bytes, swap_bytes)
            if group._try_create():
                return group
            path = os.path.dirname(path) if path else None
        return None

    def _try_create(self) -> bool:
        above = os.path.dirname(self.path)
        with suppress(OSError):
            with open(f"{above}/cgroup.subtree_control") as file:
                if "memory" not in file.read().split():
                    return False
            os.mkdir(self.path)
            with suppress(OSError):
                self.set_limit(self.limit_bytes)
                if Group(self.path, 2).can_freeze():  # from Linux 5.2 on
                    return True
            os.rmdir(self.path)
        return False

    def set_limit(self, limit_bytes: int) -> None:
        """See `Cgroup.set_limit`."""
        self.limit_bytes = limit_bytes
        if self._high:
            self.enforce_limit()
        else:
            self._write("memory.max", limit_bytes)
            self._limit_swap()

    def enforce_limit(self) -> None:
        """See `Cgroup.enforce_limit`."""
        # A reserve that is taken back may be in use; a user may choose a limit below the usage.
        filled = max(self.limit_bytes, int(self._read("memory.current") or 0))
        most = filled + max(_LEAST_MARGIN_BYTES, filled // _MARGIN_SHARE)
        # Choose the order in which memory.max, which kills, is never below memory.high.
        now = self._read("memory.max").strip()
        steps = [("memory.high", self.limit_bytes), ("memory.max", most)]
        if now != "max" and int(now or 0) < most:
            steps.reverse()
        for name, value in steps:
            self._write(name, value)
        self._limit_swap()
        self._high = self._read("memory.high")

    def rewrite_limit(self) -> None:
        """See `Cgroup.rewrite_limit`: systemd removes the limits when it is reloaded."""
        if self._high and self._read("memory.high") not in ("", self._high):
            with suppress(OSError):
                self.enforce_limit()

    def lift_limit(self) -> None:
        """See `Cgroup.lift_limit`: `memory.max` kills again, and nothing slows down."""
        self._high = ""
        with suppress(OSError):
            self._write("memory.high", "max")

    def open_event(self) -> tuple[int, int]:
        """See `Cgroup.open_event`."""
        self._event = os.open(f"{self.path}/memory.events", os.O_RDONLY | os.O_CLOEXEC)
        self.clear_event()
        return self._event, select.POLLPRI

    def clear_event(self) -> None:
        """See `Cgroup.clear_event`: a read re-arms the event."""
        with suppress(OSError):
            os.pread(self._event or -1, 4096, 0)

    def at_limit(self) -> bool:
        """See `Cgroup.at_limit`."""
        # Page cache also causes the event; the kernel reclaims it without our help.
        return self.usage().held_bytes >= self.limit_bytes * _FULL_SHARE

    def _freeze(self) -> bool:
        return Group(self.path, 2).freeze(_FREEZE_DEADLINE_S)

    def _unfreeze(self) -> None:
        Group(self.path, 2).thaw()

    def _limit_swap(self) -> None:
        if os.path.exists(f"{self.path}/memory.swap.max"):
            self._write("memory.swap.max", self.swap_bytes)


class Scope(CgroupV2):
    """
    A transient scope of the user's systemd, which does not exist before the first process enters.

    systemd moves that process into the scope. So the program that the process becomes keeps its pid
    and terminal. systemd also delegates the folder (Delegate=yes), so limits are written as files.

    Source: systemd, org.freedesktop.systemd1(5), StartTransientUnit; CGROUP_DELEGATION.md.
    """

    kind = "systemd scope"

    def __init__(self, root: str, name: str, limit_bytes: int, swap_bytes: int) -> None:
        super().__init__("", limit_bytes, swap_bytes)
        self._root = root
        self._unit = f"{name}.scope"

    @classmethod
    def create(cls, root: str, name: str, limit_bytes: int, swap_bytes: int) -> Self | None:
        """Return a scope to be started, if this user's systemd answers; else None."""
        with suppress(OSError):
            if _busctl("get-property", *_MANAGER, "Version").returncode == 0:
                return cls(root, name, limit_bytes, swap_bytes)
        return None

    def enter(self, pid: int) -> None:
        """See `Cgroup.enter`; the first process must be one that may ask systemd for a scope."""
        if self.path:
            super().enter(pid)
            return
        done = _busctl(
            "call",
            *_MANAGER,
            "StartTransientUnit",
            "ssa(sv)a(sa(sv))",
            self._unit,
            "fail",
            *("3", "PIDs", "au", "1", str(pid)),
            *("Delegate", "b", "true"),
            *("CollectMode", "s", "inactive-or-failed"),
            "0",
        )
        if done.returncode:
            raise OSError(done.stderr.strip() or "systemd refused a scope")
        end_mono_s = time.monotonic() + _SYSTEMD_TIMEOUT_S
        while time.monotonic() < end_mono_s:
            path = memberships(pid).get("", "")
            if path.endswith(f"/{self._unit}"):  # before that it may be in another guard's scope
                if not os.path.exists(f"{self._root}{path}/memory.high"):
                    raise OSError("systemd hands this user groups without limits on memory")
                self.path = f"{self._root}{path}"
                self.set_limit(self.limit_bytes)
                return
            time.sleep(_POLL_S)
        raise OSError("systemd made no scope in time")

    def command(self, argv: Sequence[str]) -> list[str]:
        """See `Cgroup.command`: systemd-run makes the scope and then becomes the command."""
        return [
            *("systemd-run", *_user_option(), "--scope", "--quiet", f"--unit={self._unit}"),
            f"--property=MemoryMax={self.limit_bytes}",
            f"--property=MemorySwapMax={self.swap_bytes}",
            *("--", *argv),
        ]

    def oom_kills(self) -> int | None:
        """Unknown: the folder disappears with its last process."""
        return None

    def close(self) -> None:
        """See `Cgroup.close`; systemd removes the scope."""
        with suppress(OSError):
            _run_command(["systemctl", *_user_option(), "kill", "--signal=KILL", self._unit])


def _user_option() -> list[str]:
    return ["--user"] if os.getuid() else []


def _busctl(*words: str) -> subprocess.CompletedProcess[str]:
    return _run_command(["busctl", *_user_option(), *words])


def _run_command(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """
    Run a command for this user's systemd; for root it is the system instance.

    Raises:
        OSError: there is no systemd, or it does not answer.
    """
    import subprocess  # slow to import, and only needed for systemd

    env, uid = dict(os.environ), os.getuid()
    # Below a service (JupyterHub), cron or su the variable is missing or another user's.
    if uid and os.path.exists(f"/run/user/{uid}/bus"):
        env["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path=/run/user/{uid}/bus"
    try:
        return subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SYSTEMD_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env=env,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError("systemd did not answer") from error
