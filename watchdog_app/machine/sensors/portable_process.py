"""
One process read through psutil: its figures, its info, its errors in our own words.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import psutil

from watchdog_app.base.errors import Denied, Gone, SensorError, Unsupported
from watchdog_app.core.model.machine import ProcessInfo, ProcessKey, ProcessSample
from watchdog_app.machine.sensors.command_line import identify, is_interpreter, kept, kernel_id
from watchdog_app.machine.sensors.notebooks import (
    ENVIRON,
    KernelFacts,
    absolute,
    forked,
    kernel_facts,
)

_STATES = {
    psutil.STATUS_RUNNING: "R",
    psutil.STATUS_SLEEPING: "S",
    psutil.STATUS_DISK_SLEEP: "D",
    psutil.STATUS_STOPPED: "T",
    psutil.STATUS_TRACING_STOP: "t",
    psutil.STATUS_ZOMBIE: "Z",
    psutil.STATUS_DEAD: "X",
    psutil.STATUS_IDLE: "I",
}
_T = TypeVar("_T")


def translate(error: psutil.Error | OSError) -> SensorError:
    """The same failure as an error of ours."""
    if isinstance(error, psutil.NoSuchProcess):  # a zombie too
        return Gone(f"process {error.pid} has ended")
    if isinstance(error, (psutil.AccessDenied, PermissionError)):
        return Denied("the process may not be read by this user")
    return Unsupported(f"the process cannot be read here: {error}")


def optional(read: Callable[[], _T]) -> _T | None:
    """What may not be read, or is not there on this system, is None."""
    try:
        return read()
    except psutil.NoSuchProcess:
        raise
    # The last two are psutil's words for a figure that this system does not have.
    except (psutil.Error, OSError, AttributeError, NotImplementedError):
        return None


def describe(
    process: psutil.Process, own_uid: int, own_user: str | None
) -> tuple[ProcessInfo, KernelFacts | None] | None:
    """
    All about one process, and the witnesses of its name when it is a kernel.

    Args:
        process: any.
        own_uid: whose processes are watched; 0: everybody's.
        own_user: the same by name, where the system has no uids.

    Returns:
        None when it is not to be watched: no Python, another user's, watchdog itself, ended.
    """
    try:
        # The owner first: on macOS nothing else of a foreign process may be read.
        user = optional(process.username)
        uid = _uid(process, own_uid)
        if own_uid != 0 and (uid != own_uid or user != own_user):
            return None
        argv = kept(optional(process.cmdline) or ())
        exe = optional(process.exe) or None
        if not is_interpreter(exe or (argv[0] if argv else "")):
            return None
        ppid = process.ppid()
        program = forked(identify(argv, exe), argv, ppid, _argv_of)
        if program.own:
            return None
        cwd = optional(process.cwd) or None
        variables = _environ(process)
        kernel = kernel_facts(
            program,
            argv,
            ppid,
            cwd,
            environ=lambda: variables,
            environ_of=_environ_of,
            argv_of=_argv_of,
            cwd_of=_cwd_of,
        )
        started_unix_s = process.create_time()
        info = ProcessInfo(
            key=ProcessKey(process.pid, int(started_unix_s * 1e6)),
            ppid=ppid,
            uid=uid,
            user=user,
            exe=exe,
            argv=argv,
            cwd=cwd,
            kind=program.kind,
            name=program.name,
            notebook=absolute(program.notebook, cwd),
            script=absolute(program.script, cwd),
            kernel_id=kernel_id(program.connection_file) if program.connection_file else None,
            started_unix_s=started_unix_s,
            rlimit_as_bytes=_rlimit_as(process),
            leads_session=_leads_session(process.pid) and optional(process.terminal) is None,
            runtime_dir=variables.get("WATCHDOG_RUNTIME_DIR") or None,
        )
    except psutil.Error:
        return None
    return info, kernel


def sample(process: psutil.Process, key: ProcessKey) -> ProcessSample:
    """
    The process now.

    Raises:
        Gone: it has ended, is a zombie, or its pid belongs to another process.
        Denied, Unsupported: it may not or cannot be read.
    """
    try:
        if int(process.create_time() * 1e6) != key.start_time:
            raise Gone(f"process {key.pid} has ended; its pid belongs to another one")
        with process.oneshot():
            status = process.status()
            if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                raise Gone(f"process {key.pid} has ended")
            memory, cpu = process.memory_info(), process.cpu_times()
            ppid = process.ppid()
    except (psutil.Error, OSError) as error:
        raise translate(error) from error
    return ProcessSample(
        key=key,
        ppid=ppid,
        state=_STATES.get(status, "S"),
        rss_bytes=memory.rss,
        shared_bytes=getattr(memory, "shared", None),
        swap_bytes=None,  # psutil has it only through a walk of every page table
        vsize_bytes=memory.vms,
        cpu_s=cpu.user + cpu.system,
    )


def parent_of(process: psutil.Process) -> int | None:
    """Pid of the parent; None when it cannot be read."""
    with suppress(psutil.Error, OSError):
        return process.ppid()
    return None


def _uid(process: psutil.Process, own_uid: int) -> int:
    # Windows has no uids: there the user's name decides, and every process bears our number.
    return process.uids().effective if hasattr(process, "uids") else own_uid


def _leads_session(pid: int) -> bool:
    with suppress(OSError):
        return hasattr(os, "getsid") and os.getsid(pid) == pid
    return False


def _environ(process: psutil.Process) -> dict[str, str]:
    found = optional(process.environ) or {}
    return {name: found[name] for name in ENVIRON if name in found}


def _environ_of(pid: int) -> dict[str, str]:
    with suppress(psutil.Error, OSError):
        return _environ(psutil.Process(pid))
    return {}


def _cwd_of(pid: int) -> str | None:
    with suppress(psutil.Error, OSError):
        return psutil.Process(pid).cwd() or None
    return None


def _argv_of(pid: int) -> Sequence[str]:
    with suppress(psutil.Error, OSError):
        return kept(psutil.Process(pid).cmdline())
    return ()


def _rlimit_as(process: psutil.Process) -> int | None:
    if not hasattr(process, "rlimit"):
        return None
    found = optional(lambda: process.rlimit(psutil.RLIMIT_AS)[0])
    return found if found is not None and 0 <= found < 1 << 63 else None
