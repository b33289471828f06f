"""
A machine read through psutil alone: macOS, Windows and other Unixes.

The same face as `machine.Machine`, without what only Linux has: memory groups,
pressure, another process's limit of its address space.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import psutil

from watchdog_app.base.errors import Denied, Gone, SensorError, Unsupported
from watchdog_app.base.text.plain import clean
from watchdog_app.core.model.hardware import Battery, Fan, Hardware, Temperature
from watchdog_app.core.model.machine import (
    HostMemory,
    ProcessInfo,
    ProcessKey,
    ProcessSample,
    Snapshot,
)
from watchdog_app.machine.sensors.command_line import identify, is_interpreter, kept, kernel_id
from watchdog_app.machine.sensors.devices import Disks, HardwareWatch
from watchdog_app.machine.sensors.jupyter import JupyterServers
from watchdog_app.machine.sensors.notebooks import (
    ENVIRON,
    KernelFacts,
    absolute,
    forked,
    kernel_facts,
    named,
)

_YOUNG_S = 5.0
_YOUNG_EVERY_S = 0.5
_REVIEW_EVERY_S = 15.0
_MOST_SHELLS = 64  # between a process and the watched one above it
_PROCESSORS = ("coretemp", "k10temp", "cpu", "cpu_thermal")
_STATES = {  # as in /proc; any other sleeps
    psutil.STATUS_RUNNING: "R", psutil.STATUS_DISK_SLEEP: "D", psutil.STATUS_STOPPED: "T",
    psutil.STATUS_TRACING_STOP: "t", psutil.STATUS_IDLE: "I",
}  # fmt: skip
T = TypeVar("T")


@dataclass(slots=True)
class _Known:
    """A process that was looked at in full."""

    process: psutil.Process
    since_mono_s: float
    asked_mono_s: float
    info: ProcessInfo | None = None  # None: not watched
    kernel: KernelFacts | None = None


class PortableMachine:
    """
    Any machine that psutil knows. Not for several threads at once.

    `ProcessKey.start_time` is in microseconds of the epoch.
    """

    def __init__(
        self,
        own_uid: int | None = None,
        runtime_dirs: Sequence[str] | None = None,
        *,
        hardware: HardwareWatch | None = None,
    ) -> None:
        """
        Args:
            own_uid: whose processes are watched; 0: everybody's. None: this process's user.
            runtime_dirs: Jupyter's runtime folders; None: the usual ones of this user.
            hardware: cards, heat and power; closed with this. None: heat and power by psutil.
        """
        our_uid = os.getuid() if hasattr(os, "getuid") else -1
        self._own_uid = our_uid if own_uid is None else own_uid
        self._own_user = _optional(psutil.Process().username)
        self._known: dict[int, _Known] = {}
        self._servers = JupyterServers(runtime_dirs=runtime_dirs, is_alive=psutil.pid_exists)
        self._disks = Disks()
        self._hardware = HardwareWatch(reader=PsutilReader()) if hardware is None else hardware
        self._infos: Mapping[ProcessKey, ProcessInfo] = MappingProxyType({})

    def sample(self, now_mono_s: float, now_unix_s: float) -> Snapshot:
        """
        One look at the machine.

        Args:
            now_mono_s: monotonic time of the sample.
            now_unix_s: the same by the clock.

        Raises:
            SensorError: the machine's memory cannot be read: there is nothing to watch by.
        """
        host = self._host()
        self._discover(now_mono_s)
        if self._servers.look(
            [known.kernel for known in self._known.values() if known.kernel], now_mono_s
        ):
            for known in self._known.values():
                self._name(known)
        samples = []
        infos = {}
        for pid, known in list(self._known.items()):
            if known.info is None:
                continue
            try:
                found = _sample(known.process, known.info.key)
            except Gone:
                del self._known[pid]
                continue
            except SensorError:
                continue
            samples.append(found)
            infos[found.key] = self._placed(known.info, found)
        if infos != self._infos:
            self._infos = MappingProxyType(infos)
        hardware = self._hardware.read(now_mono_s)
        return Snapshot(
            mono_s=now_mono_s,
            unix_s=now_unix_s,
            host=host,
            processes=tuple(samples),
            gauges=self._disks.read(now_mono_s),
            faults=(*self._disks.faults.values(), *self._hardware.faults.values()),
            infos=self._infos,
            hardware=hardware,
        )

    def review(self, key: ProcessKey) -> None:
        """Every sample asks for everything."""

    def alive(self, key: ProcessKey) -> bool:
        """Whether that very process still runs; a zombie does not."""
        try:
            self.read_process(key)
        except Gone:
            return False
        except SensorError:
            return True
        return True

    def read_process(self, key: ProcessKey) -> ProcessSample:
        """
        One process now, watched or not.

        Raises:
            Gone: it has ended, is a zombie, or its pid belongs to another process.
        """
        try:
            process = psutil.Process(key.pid)
        except psutil.Error as error:
            raise _translate(error) from error
        return _sample(process, key)

    def watch_disks(self, paths: Collection[str]) -> None:
        """Watch the file systems that hold these folders, and no others."""
        self._disks.watch(paths)

    def follow_cards(self, closely: bool) -> None:
        """Read the cards each second, whoever is on them; or as seldom as usual."""
        self._hardware.cards_busy = closely

    def close(self) -> None:
        """Give back the helper threads."""
        self._servers.close()
        self._disks.close()
        self._hardware.close()

    def _host(self) -> HostMemory:
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

    def _discover(self, now_mono_s: float) -> None:
        pids = set(psutil.pids())
        for pid in self._known.keys() - pids:
            del self._known[pid]
        for pid in sorted(pids - self._known.keys() - {0, os.getpid()}):
            with suppress(psutil.Error):
                self._known[pid] = _Known(psutil.Process(pid), now_mono_s, now_mono_s)
                self._examine(self._known[pid])
        for pid, known in list(self._known.items()):
            age_s = now_mono_s - known.since_mono_s
            every_s = _YOUNG_EVERY_S if age_s < _YOUNG_S else _REVIEW_EVERY_S
            if now_mono_s - known.asked_mono_s < every_s:
                continue
            known.asked_mono_s = now_mono_s
            if not known.process.is_running():
                del self._known[pid]  # the next look finds whoever has the pid now
                continue
            with suppress(psutil.Error):  # a zombie: its next sample says so
                # A process object remembers its executable for ever: a new one asks again.
                known.process = psutil.Process(pid)
                if known.info is None or _runs_another(known.process, known.info):
                    self._examine(known)

    def _examine(self, known: _Known) -> None:
        """Read a process in full; it stays unwatched when it is no Python of ours."""
        found = _describe(known.process, self._own_uid, self._own_user)
        known.info, known.kernel = found or (None, None)
        self._name(known)

    def _name(self, known: _Known) -> None:
        """Give a kernel the name that it has now."""
        if known.info is not None and known.kernel is not None:
            known.info = named(known.info, known.kernel, self._servers)

    def _placed(self, info: ProcessInfo, sample: ProcessSample) -> ProcessInfo:
        """The same with the nearest watched process above it."""
        ancestor = None
        pid = sample.ppid
        for _ in range(_MOST_SHELLS):
            above = self._known.get(pid)
            if above is None or pid == info.key.pid:
                break
            if above.info is not None:
                ancestor = above.info.key if above.info.uid == info.uid else None
                break
            pid = _of(pid, psutil.Process.ppid, pid)
        if ancestor == info.ancestor and sample.ppid == info.ppid:
            return info
        placed = replace(info, ancestor=ancestor, ppid=sample.ppid)
        self._known[info.key.pid].info = placed
        return placed


def _runs_another(process: psutil.Process, info: ProcessInfo) -> bool:
    """Whether a process has become another program by exec."""
    if (_optional(process.exe) or None) != info.exe:
        return True
    # A title that was written over the command line is one argument, and no other program.
    argv = kept(_optional(process.cmdline) or ())
    return len(argv) > 1 and argv != info.argv


def _translate(error: psutil.Error | OSError) -> SensorError:
    """The same failure as an error of ours."""
    if isinstance(error, psutil.NoSuchProcess):  # a zombie too
        return Gone(f"process {error.pid} has ended")
    if isinstance(error, (psutil.AccessDenied, PermissionError)):
        return Denied("the process may not be read by this user")
    return Unsupported(f"the process cannot be read here: {error}")


def _optional(read: Callable[[], T]) -> T | None:
    """What may not be read, or is not there on this system, is None."""
    try:
        return read()
    except psutil.NoSuchProcess:
        raise
    # The last two are psutil's words for a figure that this system does not have.
    except (psutil.Error, OSError, AttributeError, NotImplementedError):
        return None


def _describe(
    process: psutil.Process, own_uid: int, own_user: str | None
) -> tuple[ProcessInfo, KernelFacts | None] | None:
    """
    All about one process, and what tells its name when it is a kernel.

    Args:
        process: any.
        own_uid: whose processes are watched; 0: everybody's.
        own_user: the same by name, where the system has no uids.

    Returns:
        None when it is not to be watched: no Python, another user's, watchdog itself, ended.
    """
    try:
        # The owner first: on macOS nothing else of a foreign process may be read.
        user = _optional(process.username)
        uid = _uid(process, own_uid)
        if own_uid != 0 and (uid != own_uid or user != own_user):
            return None
        argv = kept(_optional(process.cmdline) or ())
        exe = _optional(process.exe) or None
        if not is_interpreter(exe or (argv[0] if argv else "")):
            return None
        ppid = process.ppid()
        program = forked(identify(argv, exe), argv, ppid, _argv_of)
        if program.own:
            return None
        cwd = _optional(process.cwd) or None
        variables = _environ(process)
        kernel = kernel_facts(
            program,
            argv,
            ppid,
            cwd,
            environ=lambda: variables,
            environ_of=lambda pid: _of(pid, _environ, {}),
            argv_of=_argv_of,
            cwd_of=lambda pid: _of(pid, psutil.Process.cwd, None),
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
            leads_session=_leads_session(process.pid) and _optional(process.terminal) is None,
            runtime_dir=variables.get("WATCHDOG_RUNTIME_DIR") or None,
        )
    except psutil.Error:
        return None
    return info, kernel


def _sample(process: psutil.Process, key: ProcessKey) -> ProcessSample:
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
        raise _translate(error) from error
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


def _of(pid: int, read: Callable[[psutil.Process], T], otherwise: T) -> T:
    """What is read of another process; `otherwise` where it cannot be."""
    with suppress(psutil.Error, OSError):
        return read(psutil.Process(pid))
    return otherwise


def _argv_of(pid: int) -> Sequence[str]:
    return _of(pid, lambda process: kept(process.cmdline()), ())


def _uid(process: psutil.Process, own_uid: int) -> int:
    # Windows has no uids: there the user's name decides, and every process bears our number.
    return process.uids().effective if hasattr(process, "uids") else own_uid


def _leads_session(pid: int) -> bool:
    with suppress(OSError):
        return hasattr(os, "getsid") and os.getsid(pid) == pid
    return False


def _environ(process: psutil.Process) -> Mapping[str, str]:
    found = _optional(process.environ) or {}
    return {name: found[name] for name in ENVIRON if name in found}


def _rlimit_as(process: psutil.Process) -> int | None:
    if not hasattr(process, "rlimit"):
        return None
    found = _optional(lambda: process.rlimit(psutil.RLIMIT_AS)[0])
    return found if found is not None and 0 <= found < 1 << 63 else None


class PsutilReader:
    """What psutil offers on this system; a question that it does not know has no answer."""

    def present(self) -> bool:
        """Whether psutil knows any of the questions here."""
        return any(
            hasattr(psutil, name)
            for name in ("sensors_temperatures", "sensors_fans", "sensors_battery")
        )

    def read(self, _: float) -> Hardware:
        """What psutil knows now."""
        batteries, on_mains = battery(_psutil("sensors_battery"))
        return Hardware(
            temperatures=temperatures(_psutil("sensors_temperatures") or {}),
            fans=fans(_psutil("sensors_fans") or {}),
            batteries=batteries,
            on_mains=on_mains,
        )


def temperatures(found: dict[str, list[Any]]) -> tuple[Temperature, ...]:
    """
    The hottest sensor of each processor chip, of psutil's `sensors_temperatures`.

    The limits of a processor ("critical") are where it begins to slow itself down.
    """
    result = []
    for name, entries in found.items():
        known = [each for each in entries if _is_heat(each.current)]
        if known and name.lower() in _PROCESSORS:
            hottest = max(known, key=lambda each: float(each.current))
            limit = hottest.critical
            slowdown_c = float(limit) if _is_heat(limit) and limit >= 40 else None
            degrees = float(hottest.current)
            result.append(Temperature(clean(name), "CPU", degrees, slowdown_c, is_cpu=True))
    return tuple(result)


def fans(found: dict[str, list[Any]]) -> tuple[Fan, ...]:
    """The fans of psutil's `sensors_fans`."""
    return tuple(
        Fan(clean(each.label or f"{name} fan {index}"), int(each.current))
        for name, entries in found.items()
        for index, each in enumerate(entries, 1)
        if each.current is not None and 0 <= each.current <= 30_000
    )


def battery(found: Any) -> tuple[tuple[Battery, ...], bool | None]:
    """The batteries of psutil's `sensors_battery`, all as one; none where it answers None."""
    if found is None or found.percent is None or not 0 <= found.percent <= 100:
        return (), None
    plugged = found.power_plugged
    return (Battery("battery", float(found.percent), plugged is False),), plugged


def _is_heat(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and 0.0 < value <= 126.0


def _psutil(question: str) -> Any:
    """psutil's answer; None where it has no such question here, or fails at it."""
    with suppress(Exception):  # OSError, RuntimeError and others, by system and driver
        return getattr(psutil, question)()
    return None
