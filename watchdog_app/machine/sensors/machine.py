"""The sampled machine: one consistent snapshot of everything that is watched, at each sample."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Protocol

from watchdog_app.base.errors import Gone, SensorError
from watchdog_app.base.linux.cgroups import Layout
from watchdog_app.base.linux.files import read_or_empty
from watchdog_app.core.model.machine import CgroupMemory, Fault, ProcessKey, ProcessSample, Snapshot
from watchdog_app.machine.sensors.devices import Disks, HardwareWatch
from watchdog_app.machine.sensors.groups import GroupSensor, UnwatchedMembers
from watchdog_app.machine.sensors.host import HostReader
from watchdog_app.machine.sensors.identity import Describer
from watchdog_app.machine.sensors.jupyter import JupyterServers
from watchdog_app.machine.sensors.processes import ProcessTable

# For callers that sample at fixed times: most processes answer within 0.5 ms.
PATIENCE_S = 0.005


class Machine(Protocol):
    """The interface of a machine on every operating system. Not thread-safe."""

    disks: Disks

    def sample(self, now_mono_s: float, now_unix_s: float) -> Snapshot:
        """
        Take one sample of everything.

        Args:
            now_mono_s: monotonic time of the sample.
            now_unix_s: the same time by the wall clock.

        Raises:
            SensorError: the machine's memory cannot be read, so nothing can be watched.
        """

    def read_process(self, key: ProcessKey) -> ProcessSample:
        """
        Read one process now, watched or not.

        Raises:
            Gone: it has ended, is a zombie, or its pid belongs to another process.
            Denied, Unsupported: it may not or cannot be read.
        """

    def close(self) -> None:
        """Close all descriptors and end the threads."""

    def alive(self, key: ProcessKey) -> bool:
        """Return whether exactly this process still runs; a zombie does not."""
        try:
            self.read_process(key)
        except Gone:
            return False
        except SensorError:
            return True  # it exists, but may not be read
        return True

    def watch_disks(self, paths: Collection[str]) -> None:
        """Watch the file systems of exactly these folders."""
        self.disks.watch(paths)

    def review(self, key: ProcessKey) -> None:
        """Read this process's limits and memory group again at the next sample."""

    def watch_gpus(self, closely: bool) -> None:
        """
        Read the GPUs each second, or at the normal slower rate.

        In containers and WSL the driver does not list the processes on a GPU. Then nothing else
        shows that a GPU is filling up.
        """


class LinuxMachine(Machine):
    """
    A Linux machine, read through /proc and the cgroup file systems.

    Snapshots hold the faults in force: one per source, until its cause is gone.
    """

    def __init__(
        self,
        proc: str = "/proc",
        cgroup_root: str = "/sys/fs/cgroup",
        shm: str = "/dev/shm",  # noqa: S108 - this very mount is watched
        own_uid: int | None = None,
        *,
        hardware: HardwareWatch | None = None,
        patience_s: float | None = None,
    ) -> None:
        """
        Args:
            proc: where the proc file system is mounted.
            cgroup_root: path to use as /sys/fs/cgroup.
            shm: the shared memory file system.
            own_uid: user whose processes are watched; 0: all users. None: the user of this process.
            hardware: GPUs, temperatures and power; closed by `close`. None: temperatures and power
                of /sys only.
            patience_s: how long a sample waits for a process whose memory map is locked; None:
                until the lock is free.
        """
        self._swap_in_use = False
        self._host = HostReader(proc, shm)
        self._servers = JupyterServers(lambda pid: os.path.exists(f"{proc}/{pid}"))
        layout = Layout.discover(read_or_empty(f"{proc}/self/mountinfo", 1 << 20), cgroup_root)
        self._processes = ProcessTable(
            proc,
            Describer(proc, layout, self._servers),
            os.getuid() if own_uid is None else own_uid,
            os.getpid(),
            patience_s,
        )
        self._groups = GroupSensor(layout)
        self._unwatched = UnwatchedMembers(proc)
        self.disks = Disks()
        self._hardware = HardwareWatch() if hardware is None else hardware

    def sample(self, now_mono_s: float, now_unix_s: float) -> Snapshot:
        """
        Take one sample, as `Machine.sample` describes; reads only watched processes, by two files
        each.

        Args:
            now_mono_s: monotonic time of the sample.
            now_unix_s: the same time by the wall clock.
        """
        host = self._host.read()
        self._swap_in_use = host.swap_free_bytes < host.swap_total_bytes
        processes = self._processes
        processes.update(now_mono_s, now_unix_s)
        if self._servers.poll(processes.kernels, now_mono_s):
            processes.rename_kernels()
        samples = processes.sample(now_mono_s, now_unix_s, swap_in_use=self._swap_in_use)
        infos = processes.infos
        groups: tuple[CgroupMemory, ...] = self._groups.read(
            {info.cgroup for info in infos.values() if info.cgroup is not None}, now_mono_s
        )
        watched = {sample.key.pid for sample in samples}
        groups = self._unwatched.add_unwatched(groups, watched, now_mono_s)
        hardware = self._hardware.read(now_mono_s)
        return Snapshot(
            mono_s=now_mono_s,
            unix_s=now_unix_s,
            host=host,
            processes=samples,
            cgroups=groups,
            gauges=self.disks.read(now_mono_s),
            faults=self._faults(),
            infos=infos,
            hardware=hardware,
        )

    def review(self, key: ProcessKey) -> None:
        """Read a process's limits and group again, as `Machine.review` describes."""
        self._processes.review(key)
        self._groups.review()

    def read_process(self, key: ProcessKey) -> ProcessSample:
        """Read one process, as `Machine.read_process` describes."""
        return self._processes.read(key, swap_in_use=self._swap_in_use)

    def watch_gpus(self, closely: bool) -> None:
        """Set how often the GPUs are read, as `Machine.watch_gpus` describes."""
        self._hardware.gpus_busy = closely

    def _faults(self) -> tuple[Fault, ...]:
        sources = (self._host, self._processes, self.disks, self._hardware)
        return tuple(fault for each in sources for fault in each.faults.values())

    def close(self) -> None:
        """Close the descriptors and end the helper threads."""
        self._servers.close()
        self.disks.close()
        self._hardware.close()
        self._processes.close()
        self._groups.close()
        self._host.close()
