"""
Memory groups: those with a limit, what unwatched processes hold in them, who is in which.

A read of /proc/PID/cgroup waits for the cgroup_mutex. While memory is short, PID 1 may hold that
lock for minutes as it moves a process: so a thread reads it. Nothing tells that a process was
moved: so all are asked again and again.

A group grows by more than its programs: files in RAM, the kernel's own memory, pages that forked
workers stop sharing. Only who looks at all of its processes may say that one of them did it.

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

MEMBERSHIPS = "processes.groups"  # source of the fault that these cannot be read
# A limit that is set by hand is seen within 5 s: two samples are at most 2 s apart.
_LIMITS_EVERY_S = 3.0

_FULL_SHARE = 0.5  # of the limit: below it nobody asks who fills the group
_MEMBERS_EVERY_S = 2.0
_COST_FACTOR = 1000.0  # a look of 10 ms is repeated after 10 s: a thousandth of a core
_MAX_FOLDERS = 64
_MAX_PROCESSES = 1000

_MEMBERSHIPS_EVERY_S = 1.0
_STUCK_S = 1.0  # a read that takes longer is waiting for a lock
_MAX_ROUNDS = 4  # as many threads as `Background` has
_MEMBERSHIP_BYTES = 1 << 14


class _TrackedGroup(Group):
    """A group with its limits as they were last read."""

    def __init__(self, path: str, version: int) -> None:
        super().__init__(path, version)
        self.known = Limits()
        self.due_mono_s = 0.0

    def memory(self) -> CgroupMemory:
        """The group now. Raises Gone when it has been removed."""
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
            swap_high_bytes=self.known.swap_high_bytes,
        )
        if not memory.near_throttle:
            return memory
        # Share of the last ten seconds in which nobody in the group could work, in percent.
        pressure = parse_pressure(read_or_empty(f"{self.path}/memory.pressure", 256))
        return replace(memory, stalled_percent=None if pressure is None else pressure.full_avg10)


class GroupSensor:
    """Reads, once each, the limited groups above the watched processes."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._groups: dict[str, _TrackedGroup] = {}
        self._wanted: frozenset[str] = frozenset()

    def read(self, folders: Iterable[str], now_mono_s: float) -> tuple[CgroupMemory, ...]:
        """
        The limited groups among these and all above them, each once, outermost first.

        A group that ends while it is read is left out: its processes have ended too.

        Args:
            folders: of the groups in which watched processes are.
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
                # No memory files in this group: the controller is not enabled down to here.
                group.known = Limits()
        return tuple(found)

    def review(self) -> None:
        """The next `read` shows the limits as they are then, and not of some seconds ago."""
        for group in self._groups.values():
            group.due_mono_s = 0.0

    def close(self) -> None:
        """Give the descriptors back."""
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
    Completes groups that fill up by what processes hold there that are not watched.

    Args:
        proc: where the proc file system is mounted.
        clock: in seconds, to measure what a look costs.
    """

    def __init__(self, proc: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._proc = proc
        self._clock = clock
        self._known: dict[str, tuple[float, int | None]] = {}  # when it is due again, and what

    def add_unwatched(
        self, groups: Sequence[CgroupMemory], watched: Collection[int], now_mono_s: float
    ) -> tuple[CgroupMemory, ...]:
        """
        The groups, those that fill up with what the others in them hold.

        Args:
            groups: the limited ones.
            watched: pids of the processes that are watched.
            now_mono_s: time of this sample.
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
        """RAM of those in a group and below it that are not watched; None: not all can be seen."""
        held = seen = 0
        try:
            for pid in Group(path).pids(_MAX_FOLDERS):
                seen += 1
                # 0: a process of another pid namespace, of which nothing can be read.
                if seen > _MAX_PROCESSES or pid == 0:
                    return None
                statm = None if pid in watched else process.read_statm(pid, self._proc)
                held += 0 if statm is None else statm.resident_bytes  # None also: it has ended
        except SensorError:
            return None
        return held


def _is_filling(group: CgroupMemory) -> bool:
    limit = group.limit_bytes if group.limit_bytes is not None else group.high_bytes
    return limit is not None and group.unreclaimable_bytes >= _FULL_SHARE * limit


class _ReadRound:
    """One read of all that were asked for, in a thread; `found` fills up as it goes on."""

    def __init__(self, proc: str, pids: Iterable[int], now_mono_s: float) -> None:
        self.question = Question(0, "groups", self)
        self.found: dict[int, bytes] = {}
        self.at: int | None = None  # whose file is being read
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
    The contents of /proc/PID/cgroup, as they were last read.

    Args:
        proc: where the proc file system is mounted.
        patience_s: how long a read is waited for; None: until it is done.
    """

    def __init__(self, proc: str, patience_s: float | None = None) -> None:
        self._proc = proc
        # One thread that stays: to begin one each second would cost more than the reading.
        self._background = Background(patience_s, linger_s=None)
        self._rounds: list[_ReadRound] = []
        self._due_mono_s = float("-inf")
        self._known: set[int] = set()
        self.fault: Fault | None = None

    def read(self, pids: Iterable[int], now_mono_s: float) -> dict[int, bytes]:
        """
        What has been read since the last call, by pid; all pids are asked once a second.

        A pid that was never asked is asked at once. One whose read waits for a lock is left out
        until that read is over; the others are asked without it.

        Args:
            pids: of the watched processes.
            now_mono_s: monotonic time of the sample.
        """
        wanted = set(pids)
        self._known &= wanted
        found = self._collect()
        begun_s = (now_mono_s - each.begun_mono_s for each in self._rounds)
        stuck = sum(each >= _STUCK_S for each in begun_s)  # rounds, each at one process
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
        """End the thread, once it waits for no lock."""
        self._background.close()

    def review(self) -> None:
        """The next `read` asks all of them, however short the last one is ago."""
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
