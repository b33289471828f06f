"""
A machine read through psutil alone: macOS and other Unixes.

It has the interface of `machine.LinuxMachine`. It lacks what only Linux has: memory groups,
pressure, GPUs, temperatures, another process's limit of its address space.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import psutil

from watchdog_app.base.errors import Denied, Gone, SensorError, Unsupported
from watchdog_app.core.model.hardware import Hardware
from watchdog_app.core.model.machine import (
    HostMemory,
    ProcessInfo,
    ProcessKey,
    ProcessSample,
    Snapshot,
)
from watchdog_app.core.model.status import Battery
from watchdog_app.machine.sensors.command_line import is_interpreter, truncate_argv
from watchdog_app.machine.sensors.devices import Disks
from watchdog_app.machine.sensors.jupyter import JupyterServers
from watchdog_app.machine.sensors.machine import Machine
from watchdog_app.machine.sensors.notebooks import (
    ENVIRON,
    KernelFacts,
    ProcessReaders,
    describe_process,
)

_DESCRIBE_EVERY_S = 5.0  # a shell can become Python, a kernel's notebook can be renamed
_MAX_SHELLS = 64  # shells between a process and its nearest watched ancestor
_STATES = {  # as in /proc; any other state counts as sleeping
    psutil.STATUS_RUNNING: "R", psutil.STATUS_DISK_SLEEP: "D", psutil.STATUS_STOPPED: "T",
    psutil.STATUS_TRACING_STOP: "t", psutil.STATUS_IDLE: "I",
}  # fmt: skip
T = TypeVar("T")


@dataclass(slots=True)
class _Known:
    """A process as it was last described."""

    described_mono_s: float
    ppid: int = 0
    info: ProcessInfo | None = None  # None: not watched
    kernel: KernelFacts | None = None


class PortableMachine(Machine):
    """
    Any machine that psutil supports.

    `ProcessKey.start_time` is in microseconds since the epoch.
    """

    def __init__(self, own_uid: int | None = None) -> None:
        """
        Args:
            own_uid: user whose processes are watched; 0: all users. None: the user of this process.
        """
        self._own_uid = os.getuid() if own_uid is None else own_uid
        self._known: dict[int, _Known] = {}  # by pid
        self._servers = JupyterServers(psutil.pid_exists)
        self.disks = Disks()

    def sample(self, now_mono_s: float, now_unix_s: float) -> Snapshot:
        """
        Take one sample, as `Machine.sample` describes.

        Args:
            now_mono_s: monotonic time of the sample.
            now_unix_s: the same time by the wall clock.
        """
        host = _host()
        self._describe_all(now_mono_s)
        kernels = [known.kernel for known in self._known.values() if known.kernel is not None]
        self._servers.poll(kernels, now_mono_s)
        samples: dict[ProcessKey, ProcessSample] = {}
        infos: dict[ProcessKey, ProcessInfo] = {}
        for pid, known in list(self._known.items()):
            if known.info is None:
                continue
            with suppress(SensorError):
                key = known.info.key
                found = samples[key] = self.read_process(key)
                known.ppid = found.ppid
                infos[key] = replace(known.info, ppid=found.ppid, ancestor=self._ancestor(pid))
        return Snapshot(
            mono_s=now_mono_s,
            unix_s=now_unix_s,
            host=host,
            processes=tuple(samples.values()),
            gauges=self.disks.read(now_mono_s),
            faults=tuple(self.disks.faults.values()),
            infos=infos,
            hardware=hardware(),
        )

    def read_process(self, key: ProcessKey) -> ProcessSample:
        """Read one process, as `Machine.read_process` describes."""
        try:
            process = psutil.Process(key.pid)
            with process.oneshot():
                status = process.status()
                if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) or _key(process) != key:
                    raise Gone(f"process {key.pid} has ended")
                memory, cpu, ppid = process.memory_info(), process.cpu_times(), process.ppid()
        except psutil.NoSuchProcess as error:  # also raised for a zombie
            raise Gone(f"process {key.pid} has ended") from error
        except (psutil.AccessDenied, PermissionError) as error:
            raise Denied("the process may not be read by this user") from error
        except (psutil.Error, OSError) as error:
            raise Unsupported(f"the process cannot be read here: {error}") from error
        return ProcessSample(
            key=key,
            ppid=ppid,
            state=_STATES.get(status, "S"),
            rss_bytes=memory.rss,
            shared_bytes=getattr(memory, "shared", None),
            swap_bytes=None,  # psutil gets it only through a walk of every page table
            vsize_bytes=memory.vms,
            cpu_s=cpu.user + cpu.system,
        )

    def review(self, key: ProcessKey) -> None:
        """Do nothing: every sample reads everything."""

    def watch_gpus(self, closely: bool) -> None:
        """Do nothing: GPUs are not read on these systems."""

    def close(self) -> None:
        """End the helper threads."""
        self._servers.close()
        self.disks.close()

    def _describe_all(self, now_mono_s: float) -> None:
        """Describe new processes, and each known one again after some seconds."""
        before, self._known = self._known, {}
        for pid in psutil.pids():
            known = before.get(pid)
            if known is None or now_mono_s - known.described_mono_s >= _DESCRIBE_EVERY_S:
                known = _Known(now_mono_s)
                with suppress(psutil.Error):  # it has ended, or this user may not read it
                    self._describe(psutil.Process(pid), known)
            self._known[pid] = known

    def _describe(self, process: psutil.Process, known: _Known) -> None:
        """
        Fill in what a process is; `info` stays None if it is not watched.

        Raises:
            psutil.Error: it has ended, or may not be read.
        """
        known.ppid = process.ppid()
        # Read the owner first: on macOS nothing else of another user's process may be read.
        uids = process.uids()
        if process.pid in (0, os.getpid()) or self._own_uid not in (0, uids.real):
            return
        exe = _optional(process.exe) or None
        if not is_interpreter(exe or "".join((_optional(process.cmdline) or [])[:1])):
            return
        found = describe_process(
            _key(process),
            known.ppid,
            uids.effective,
            _optional(process.username),
            exe,
            reads=_READS,
        )
        if not found.own:
            info = replace(
                found.info,
                started_unix_s=process.create_time(),
                leads_session=_leads_session(process),
            )
            known.info = self._servers.with_current_name(info, found.kernel)
            known.kernel = found.kernel

    def _ancestor(self, pid: int) -> ProcessKey | None:
        """Find the nearest watched ancestor of the same user; None: there is not one."""
        below = self._known[pid]
        above = self._known.get(below.ppid)
        for _ in range(_MAX_SHELLS):
            if above is None or above is below:
                return None
            if above.info is not None and below.info is not None:
                return above.info.key if above.info.uid == below.info.uid else None
            above = self._known.get(above.ppid)
        return None


def _host() -> HostMemory:
    try:
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    except (psutil.Error, OSError, RuntimeError) as error:
        raise Unsupported(f"psutil cannot read this machine's memory: {error}") from error
    return HostMemory(
        total_bytes=memory.total,
        available_bytes=min(memory.available, memory.total),
        swap_total_bytes=swap.total,
        swap_free_bytes=min(swap.free, swap.total),
        swap_in_bytes=swap.sin,
        swap_out_bytes=swap.sout,
        shm_used_bytes=None,
        shm_limit_bytes=None,
        pressure=None,
    )


def hardware() -> Hardware:
    """Read the battery and the power supply, as far as psutil knows them on this system."""
    found: Any = None
    # OSError, RuntimeError or AttributeError, depending on system and driver
    with suppress(Exception):
        found = psutil.sensors_battery()
    if found is None or found.percent is None or not 0 <= found.percent <= 100:
        return Hardware()
    plugged = found.power_plugged
    battery = Battery(name="battery", percent=float(found.percent), discharging=plugged is False)
    return Hardware(batteries=(battery,), on_mains=plugged)


def _key(process: psutil.Process) -> ProcessKey:
    return ProcessKey(process.pid, int(process.create_time() * 1e6))


def _optional(read: Callable[[], T]) -> T | None:
    """Call `read`; return None if the value may not be read or does not exist on this system."""
    try:
        return read()
    except psutil.NoSuchProcess:
        raise
    # psutil raises the last two for a value that this system does not have.
    except (psutil.Error, OSError, AttributeError, NotImplementedError):
        return None


def _of(pid: int, read: Callable[[psutil.Process], T], otherwise: T) -> T:
    """Read something of another process; return `otherwise` if it cannot be read."""
    with suppress(psutil.Error, OSError):
        return read(psutil.Process(pid))
    return otherwise


def _environ(process: psutil.Process) -> Mapping[str, str]:
    found = _optional(process.environ) or {}
    return {name: found[name] for name in ENVIRON if name in found}


_READS = ProcessReaders(
    argv=lambda pid: _of(pid, lambda each: truncate_argv(each.cmdline()), ()),
    environ=lambda pid: _of(pid, _environ, {}),
    cwd=lambda pid: _of(pid, psutil.Process.cwd, None),
)


def _leads_session(process: psutil.Process) -> bool:
    with suppress(OSError, AttributeError):
        return os.getsid(process.pid) == process.pid and _optional(process.terminal) is None
    return False
