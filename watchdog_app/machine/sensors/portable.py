"""
A machine read through psutil alone: macOS, Windows and other Unixes.

The same face as `machine.Machine`, without what only Linux has: memory groups,
pressure, another process's limit of its address space.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

import psutil

from watchdog_app.base.errors import Gone, SensorError, Unsupported
from watchdog_app.core.model.machine import (
    Fault,
    HostMemory,
    ProcessInfo,
    ProcessKey,
    ProcessSample,
    Snapshot,
)
from watchdog_app.machine.sensors.command_line import kept
from watchdog_app.machine.sensors.disks import Disks
from watchdog_app.machine.sensors.hardware import HardwareWatch
from watchdog_app.machine.sensors.jupyter import JupyterServers
from watchdog_app.machine.sensors.notebooks import KernelFacts, named
from watchdog_app.machine.sensors.portable_hardware import PsutilReader
from watchdog_app.machine.sensors.portable_process import (
    describe,
    optional,
    parent_of,
    sample,
    translate,
)

_YOUNG_S = 5.0
_REVIEW_EVERY_S = 15.0


class _Known:
    """A process that was looked at in full."""

    __slots__ = ("asked_mono_s", "info", "kernel", "process", "since_mono_s")

    def __init__(self, process: psutil.Process, now_mono_s: float) -> None:
        self.process = process
        self.info: ProcessInfo | None = None  # None: not watched
        self.kernel: KernelFacts | None = None
        self.since_mono_s = now_mono_s
        self.asked_mono_s = now_mono_s


class PortableMachine:
    """
    Any machine that psutil knows. Not for several threads at once.

    `ProcessKey.start_time` is in microseconds of the epoch.
    """

    def __init__(
        self,
        own_uid: int | None = None,
        runtime_dirs: Sequence[str] | None = None,
        shm: str | None = None,
        *,
        hardware: HardwareWatch | None = None,
    ) -> None:
        """
        Args:
            own_uid: whose processes are watched; 0: everybody's. None: this process's user.
            runtime_dirs: Jupyter's runtime folders; None: the usual ones of this user.
            shm: a shared memory file system, where there is one.
            hardware: cards, heat and power; closed with this. None: heat and power by psutil.
        """
        self._own_uid = _own_uid() if own_uid is None else own_uid
        self._own_user = optional(psutil.Process().username)
        self._known: dict[int, _Known] = {}
        self._servers = JupyterServers(runtime_dirs=runtime_dirs, is_alive=psutil.pid_exists)
        self._disks = Disks()
        self._hardware = HardwareWatch(reader=PsutilReader()) if hardware is None else hardware
        self._shm = shm
        self._infos: Mapping[ProcessKey, ProcessInfo] = MappingProxyType({})

    def sample(self, now_mono_s: float, now_unix_s: float) -> Snapshot:
        """
        One look at the machine.

        Raises:
            SensorError: the machine's memory cannot be read: there is nothing to watch by.
        """
        host = self._host()
        self._discover(now_mono_s)
        if self._servers.look(
            [known.kernel for known in self._known.values() if known.kernel], now_mono_s
        ):
            for known in self._known.values():
                if known.info is not None and known.kernel is not None:
                    known.info = named(known.info, known.kernel, self._servers)
        samples = []
        infos = {}
        for pid, known in list(self._known.items()):
            if known.info is None:
                continue
            try:
                found = sample(known.process, known.info.key)
            except Gone:
                del self._known[pid]
                continue
            except SensorError:
                continue
            samples.append(found)
            infos[found.key] = self._placed(known.info, found)
        if infos != self._infos:
            self._infos = MappingProxyType(infos)
        disks = self._disks.read(now_mono_s)
        hardware = self._hardware.read(now_mono_s)
        faults: tuple[Fault, ...] = (
            *self._disks.faults.values(),
            *self._hardware.faults.values(),
        )
        return Snapshot(
            mono_s=now_mono_s,
            unix_s=now_unix_s,
            host=host,
            processes=tuple(samples),
            disks=disks,
            faults=faults,
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
            raise translate(error) from error
        return sample(process, key)

    def add_disk(self, path: str) -> None:
        """Watch the file system that holds a folder, whether the folder exists yet or not."""
        self._disks.add(path)

    def remove_disk(self, path: str) -> None:
        """Watch it no longer; nothing happens when it is not watched."""
        self._disks.remove(path)

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
        used, limit = _shm(self._shm)
        return HostMemory(
            total_bytes=memory.total,
            available_bytes=min(memory.available, memory.total),
            swap_total_bytes=swap.total,
            swap_free_bytes=min(swap.free, swap.total),
            swap_in_bytes=swap.sin,
            swap_out_bytes=swap.sout,
            shm_used_bytes=used,
            shm_limit_bytes=limit,
            pressure=None,
        )

    def _discover(self, now_mono_s: float) -> None:
        pids = set(psutil.pids())
        for pid in self._known.keys() - pids:
            del self._known[pid]
        for pid in sorted(pids - self._known.keys() - {0, os.getpid()}):
            with suppress(psutil.Error):
                self._known[pid] = _Known(psutil.Process(pid), now_mono_s)
                self._examine(self._known[pid])
        for pid, known in list(self._known.items()):
            age_s = now_mono_s - known.since_mono_s
            every_s = 0.5 if age_s < _YOUNG_S else _REVIEW_EVERY_S
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
        found = describe(known.process, self._own_uid, self._own_user)
        if found is None:
            known.info = known.kernel = None
            return
        known.info, known.kernel = found
        if known.kernel is not None:
            known.info = named(known.info, known.kernel, self._servers)

    def _placed(self, info: ProcessInfo, sample: ProcessSample) -> ProcessInfo:
        """The same with the nearest watched process above it."""
        ancestor = None
        pid = sample.ppid
        for _ in range(64):
            above = self._known.get(pid)
            if above is None or pid == info.key.pid:
                break
            if above.info is not None:
                ancestor = above.info.key if above.info.uid == info.uid else None
                break
            between = parent_of(above.process)
            if between is None or between == pid:
                break
            pid = between
        if ancestor == info.ancestor and sample.ppid == info.ppid:
            return info
        placed = replace(info, ancestor=ancestor, ppid=sample.ppid)
        self._known[info.key.pid].info = placed
        return placed


def _runs_another(process: psutil.Process, info: ProcessInfo) -> bool:
    """Whether a process has become another program by exec."""
    if (optional(process.exe) or None) != info.exe:
        return True
    # A title that was written over the command line is one argument, and no other program.
    argv = kept(optional(process.cmdline) or ())
    return len(argv) > 1 and argv != info.argv


def _own_uid() -> int:
    return os.getuid() if hasattr(os, "getuid") else -1


def _shm(path: str | None) -> tuple[int | None, int | None]:
    if path is not None and hasattr(os, "statvfs"):
        with suppress(OSError):
            found = os.statvfs(path)
            if found.f_blocks:
                used = (found.f_blocks - found.f_bfree) * found.f_frsize
                return used, found.f_blocks * found.f_frsize
    return None, None
