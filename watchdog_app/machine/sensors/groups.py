"""
Memory groups: those with a limit, what unwatched processes use in them, each process's group.

A read of /proc/PID/cgroup waits for the cgroup_mutex. When memory is short, PID 1 may hold that
lock for minutes while it moves a process. So a thread does the read. The kernel does not announce a
move, so all processes are read again once a second.

A group also grows by memory other than its programs': files in RAM, the kernel's own memory, pages
that forked workers stop sharing. Only a reader of all its processes may say that one of them caused
the growth.

Source: kernel, Documentation/admin-guide/cgroup-v2.rst (cgroup.procs); kernel/cgroup/cgroup.c
(proc_cgroup_show, cgroup_procs_write).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from watchdog_app.base.errors import Gone, SensorError
from watchdog_app.base.linux import process
from watchdog_app.base.linux.cgroups import Group, Layout, Limits
from watchdog_app.base.linux.files import read_or_empty
from watchdog_app.base.threads import Background, Question
from watchdog_app.core.model.machine import CgroupMemory, Fault
from watchdog_app.machine.sensors.host import parse_pressure

MEMBERSHIPS = "processes.groups"  # source of the fault that memberships cannot be read
# A limit that the user sets by hand shows within 5 s: two samples are at most 2 s apart.
_LIMITS_EVERY_S = 3.0

_FULL_SHARE = 0.5  # of the limit: below it the group's unwatched processes are not measured
_MEMBERS_EVERY_S = 2.0
_COST_FACTOR = 1000.0  # a measurement of 10 ms is repeated after 10 s: a thousandth of a core
_MAX_FOLDERS = 64
_MAX_PROCESSES = 1000

_MEMBERSHIPS_EVERY_S = 1.0
_STUCK_S = 1.0  # a slower read is waiting for a lock
_MAX_ROUNDS = 4  # as many threads as `Background` has
_MEMBERSHIP_BYTES = 1 << 14


class _TrackedGroup(Group):
    """A group with its limits as last read."""

    def __init__(self, path: str, version: int) -> None:
        super().__init__(path, version)
        self.known = Limits()
        self.due_mono_s = 0.0

    def memory(self) -> CgroupMemory:
        """Read the group. Raises Gone if it has been removed."""
        usage = self.read()
        memory = CgroupMemory(
            path=self.path,
            version=self.version,
            usage_bytes=usage.used_bytes,
            inactive_file_bytes=usage.inactive_file_bytes,
            active_file_bytes=usage.active_file_bytes,
            limit_bytes=self.known.memory_bytes,
            high_bytes=self.known.high_bytes,
            swap_usage_bytes=usage.swap_bytes,
            swap_limit_bytes=self.known.swap_bytes,
            oom_kills=usage.oom_kills,
        )
        if not memory.near_throttle:
            return memory
        # Share of the last ten seconds in which all tasks of the group were stalled, in percent.
        pressure = parse_pressure(read_or_empty(f"{self.path}/memory.pressure", 256))
        return replace(memory, stalled_percent=None if pressure is None else pressure.full_avg10)


class GroupSensor:
    """Reads the limited groups above the watched processes, each once."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._groups: dict[str, _TrackedGroup] = {}
        self._wanted: frozenset[str] = frozenset()

    def read(self, folders: Iterable[str], now_mono_s: float) -> tuple[CgroupMemory, ...]:
        """
        Read the limited groups among these folders and their ancestors, each once, outermost first.

        A group that ends during the read is left out, since its processes have ended too.

        Args:
            folders: groups of the watched processes.
            now_mono_s: monotonic time of the sample.
        """
        wanted = frozenset(folders)
        if wanted != self._wanted:
            self._track(wanted)
        found = []
        for group in self._groups.values():
            if now_mono_s >= group.due_mono_s:
                group.known = group.limits()
                group.due_mono_s = now_mono_s + _LIMITS_EVERY_S
                if not group.known.any:
                    group.close()
            if not group.known.any:
                continue
            try:
                found.append(group.memory())
            except Gone:
                continue
            except SensorError:
                # The group has no memory files: the controller is not enabled down to this level.
                group.known = Limits()
        return tuple(found)

    def review(self) -> None:
        """Make the next `read` read all limits again."""
        for group in self._groups.values():
            group.due_mono_s = 0.0

    def close(self) -> None:
        """Close the file descriptors."""
        self._track(frozenset())

    def _track(self, wanted: frozenset[str]) -> None:
        chains = {step for leaf in wanted for step in self._layout.ancestors(leaf)}
        for path in self._groups.keys() - {path for path, _ in chains}:
            self._groups.pop(path).close()
        for path, version in chains:
            if path not in self._groups:
                self._groups[path] = _TrackedGroup(path, version)
        self._groups = dict(sorted(self._groups.items()))
        self._wanted = wanted


class UnwatchedMembers:
    """
    Sets `unwatched_bytes` of groups that fill up: the memory of their unwatched processes.

    Args:
        proc: where the proc file system is mounted.
        clock: in seconds; measures the cost of a measurement.
    """

    def __init__(self, proc: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._proc = proc
        self._clock = clock
        # by path: when it is due again, and the bytes
        self._known: dict[str, tuple[float, int | None]] = {}

    def add_unwatched(
        self, groups: Sequence[CgroupMemory], watched: Collection[int], now_mono_s: float
    ) -> tuple[CgroupMemory, ...]:
        """
        Return the groups, with `unwatched_bytes` set for groups that fill up.

        Args:
            groups: groups with a limit.
            watched: pids of the watched processes.
            now_mono_s: monotonic time of this sample.
        """
        full = {group.path for group in groups if _is_filling(group)}
        self._known = {path: known for path, known in self._known.items() if path in full}
        return tuple(
            replace(group, unwatched_bytes=self._read_unwatched(group.path, watched, now_mono_s))
            if group.path in full
            else group
            for group in groups
        )

    def _read_unwatched(self, path: str, watched: Collection[int], now_mono_s: float) -> int | None:
        due_s, held = self._known.get(path, (now_mono_s, None))
        if now_mono_s >= due_s:
            begun_s = self._clock()
            held = self._measure_unwatched(path, watched)
            every_s = max(_MEMBERS_EVERY_S, _COST_FACTOR * (self._clock() - begun_s))
            self._known[path] = (now_mono_s + every_s, held)
        return held

    def _measure_unwatched(self, path: str, watched: Collection[int]) -> int | None:
        """Sum the RAM of unwatched processes in a group and below it; None: some cannot be seen."""
        held = seen = 0
        try:
            for pid in Group(path).pids(_MAX_FOLDERS):
                seen += 1
                # Pid 0: a process of another pid namespace, which cannot be read.
                if seen > _MAX_PROCESSES or pid == 0:
                    return None
                statm = None if pid in watched else process.read_statm(pid, self._proc)
                held += 0 if statm is None else statm.resident_bytes  # None: it has ended
        except SensorError:
            return None
        return held


def _is_filling(group: CgroupMemory) -> bool:
    limit = group.limit_bytes if group.limit_bytes is not None else group.high_bytes
    return limit is not None and group.unreclaimable_bytes >= _FULL_SHARE * limit


class _ReadRound:
    """One read of all requested pids, in a thread; `found` fills up during the read."""

    def __init__(self, proc: str, pids: Iterable[int], now_mono_s: float) -> None:
        self.question = Question(0, "groups", self)
        self.found: dict[int, bytes] = {}
        self.at: int | None = None  # pid whose file is being read
        self.begun_mono_s = now_mono_s
        self._proc = proc
        self._pids = sorted(pids)

    def run(self) -> bool:
        for pid in self._pids:
            self.at = pid
            try:
                fd = os.open(f"{self._proc}/{pid}/cgroup", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    self.found[pid] = os.read(fd, _MEMBERSHIP_BYTES)
                finally:
                    os.close(fd)
            except OSError:  # it has ended, or may not be read
                self.found[pid] = b""
        self.at = None
        return True


class Memberships:
    """
    The contents of /proc/PID/cgroup, as last read.

    Args:
        proc: where the proc file system is mounted.
        patience_s: how long to wait for a read; None: until it is done.
    """

    def __init__(self, proc: str, patience_s: float | None = None) -> None:
        self._proc = proc
        # Keep one thread: starting one each second would cost more than the read.
        self._background = Background(patience_s, linger_s=None)
        self._rounds: list[_ReadRound] = []
        self._due_mono_s = float("-inf")
        self._known: set[int] = set()
        self.fault: Fault | None = None

    def read(self, pids: Iterable[int], now_mono_s: float) -> dict[int, bytes]:
        """
        Return what was read since the last call, by pid; all pids are read once a second.

        A new pid is read at once. A pid whose read waits for a lock is left out until that read
        ends; the others are read without it.

        Args:
            pids: of the watched processes.
            now_mono_s: monotonic time of the sample.
        """
        wanted = set(pids)
        self._known &= wanted
        found = self._collect()
        begun_s = (now_mono_s - each.begun_mono_s for each in self._rounds)
        # number of rounds, each blocked at one process
        stuck = sum(each >= _STUCK_S for each in begun_s)
        due = now_mono_s >= self._due_mono_s
        asked = wanted if due else wanted - self._known
        asked = asked - {each.at for each in self._rounds}
        if asked and stuck == len(self._rounds) < _MAX_ROUNDS:
            if due:
                self._due_mono_s = now_mono_s + _MEMBERSHIPS_EVERY_S
            self._known |= asked
            self._rounds.append(_ReadRound(self._proc, asked, now_mono_s))
            found.update(self._collect())
        self._background.end_sample()
        self.fault = _stuck_fault(stuck) if stuck else None
        return {pid: data for pid, data in found.items() if data and pid in wanted}

    def close(self) -> None:
        """End the thread as soon as it does not wait for a lock."""
        self._background.close()

    def review(self) -> None:
        """Make the next `read` read all pids, even if the last read was recent."""
        self._due_mono_s = float("-inf")

    def _collect(self) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for each in list(self._rounds):
            done = self._background.ask(each.question, each.run)
            for pid in list(each.found):
                found[pid] = each.found.pop(pid)
            if done:
                self._rounds.remove(each)
        return found


def _stuck_fault(count: int) -> Fault:
    return Fault(
        MEMBERSHIPS,
        f"The memory groups of {'a process' if count == 1 else 'some processes'} cannot be read: "
        "the kernel keeps them locked. A move to another group is not seen until it answers.",
        "Nothing to do: this happens while memory is short, and ends with it.",
    )
