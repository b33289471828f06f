"""
Processes, tasks and machines as the sensors describe them; a test sets only what matters to it.
"""

from __future__ import annotations

from typing import Any

from watchdog_app.core.model.machine import (
    HostMemory,
    ProcessInfo,
    ProcessKey,
    ProcessSample,
    Task,
    TaskKind,
)

GIB = 1 << 30
UID = 1000
_UNKNOWN = ("swap_in_bytes", "swap_out_bytes", "shm_used_bytes", "shm_limit_bytes", "pressure")


def host(total: float = 64 * GIB, available: float = 50 * GIB, **more: Any) -> HostMemory:
    """A machine, without swap unless `more` says so; sizes in bytes."""
    known = {**dict.fromkeys(_UNKNOWN), "swap_total_bytes": 0, "swap_free_bytes": 0, **more}
    return HostMemory(int(total), int(available), **known)


def process(
    pid: int, ppid: int = 1, *, start_time: int = 1, state: str = "R", rss: float = GIB, **more: Any
) -> ProcessSample:
    """A process that shares nothing."""
    known = {"shared_bytes": 0, "swap_bytes": 0, "vsize_bytes": None, "cpu_s": 0.0, **more}
    return ProcessSample(ProcessKey(pid, start_time), ppid, state, int(rss), **known)


def info(sample: ProcessSample, kind: TaskKind = TaskKind.SCRIPT, **more: Any) -> ProcessInfo:
    """The info of a script that is named after its pid."""
    known = {
        **dict.fromkeys(("user", "exe", "cwd")),
        "ppid": sample.ppid,
        "uid": UID,
        "argv": (),
        "name": f"{sample.key.pid}.py",
        **more,
    }
    return ProcessInfo(key=sample.key, kind=kind, **known)


def task(*members: ProcessSample, **more: Any) -> Task:
    """A task of these processes, the root first; `more` goes into its info."""
    root, about = members[0], info(members[0], **more)
    return Task(
        root.key, about.name, about.kind, about.uid, members, root.rss_bytes, root.swap_bytes,
        root.cpu_s, about,
    )  # fmt: skip
