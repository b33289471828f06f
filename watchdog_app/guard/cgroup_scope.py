"""
A guard as a transient scope of the user's systemd: where the control groups are systemd's to give.

systemd moves this very process into the scope, so that the program that it becomes keeps its pid
and its terminal, and hands the folder over (Delegate=yes): limits are then written as files.

Source: systemd, org.freedesktop.systemd1(5), StartTransientUnit; systemd's CGROUP_DELEGATION.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import suppress

from watchdog_app.base.linux.cgroups import memberships
from watchdog_app.guard.cgroup_v2 import CgroupV2

_MANAGER = (
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
)
_PATIENCE_S = 10.0
_POLL_S = 0.01


class CgroupScope(CgroupV2):
    """A scope that does not exist before the first process enters it."""

    how = "systemd scope"

    def __init__(self, root: str, name: str, limit_bytes: int, swap_bytes: int) -> None:
        super().__init__("", limit_bytes, swap_bytes)
        self._root = root
        self._name = name

    def enter(self, pid: int) -> None:
        """As `Cgroup.enter`; the first to enter must be a process that may ask systemd for it."""
        if self._dir:
            super().enter(pid)
            return
        try:
            done = _busctl(
                "call",
                *_MANAGER,
                "StartTransientUnit",
                "ssa(sv)a(sa(sv))",
                f"{self._name}.scope",
                "fail",
                *("3", "PIDs", "au", "1", str(pid)),
                *("Delegate", "b", "true"),
                *("CollectMode", "s", "inactive-or-failed"),
                "0",
            )
        except subprocess.TimeoutExpired as error:
            raise OSError("systemd did not answer") from error
        if done.returncode:
            raise OSError(done.stderr.strip() or "systemd refused a scope")
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            folder = self._folder(pid)
            if folder is not None:
                if not os.path.exists(f"{folder}/memory.high"):
                    raise OSError("systemd hands this user groups without limits on memory")
                self.path = self._dir = folder
                self.allow(self.limit_bytes)
                return
            time.sleep(_POLL_S)
        raise OSError("systemd made no scope in time")

    def _folder(self, pid: int) -> str | None:
        path = memberships(pid).get("", "")
        # By its whole name: until it is moved it may be in another guard's.
        return f"{self._root}{path}" if path.endswith(f"/{self._name}.scope") else None


def make(root: str, name: str, limit_bytes: int, swap_bytes: int) -> CgroupScope | None:
    """A scope to be, where a manager of this user's answers; None: none does."""
    if not shutil.which("busctl"):
        return None
    with suppress(OSError, subprocess.TimeoutExpired):
        if _busctl("get-property", *_MANAGER, "Version").returncode == 0:
            return CgroupScope(root, name, limit_bytes, swap_bytes)
    return None


def _busctl(*words: str) -> subprocess.CompletedProcess[str]:
    """
    Ask this user's systemd, root's being the machine's.

    Raises:
        subprocess.TimeoutExpired: it does not answer.
    """
    env, uid = dict(os.environ), os.getuid()
    # Below a service (JupyterHub), cron or su nobody has said where it is, or said another user's.
    if uid and os.path.exists(f"/run/user/{uid}/bus"):
        env["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path=/run/user/{uid}/bus"
    return subprocess.run(
        ["busctl", *(["--user"] if uid else []), *words],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_PATIENCE_S,
        stdin=subprocess.DEVNULL,
        env=env,
    )
