"""Record the memory of a running task as a trace."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from watchdog_app.base.errors import Gone, UsageError
from watchdog_app.base.text.quantities import parse_pid
from watchdog_app.core.model.machine import ProcessKey, ProcessSample, Snapshot, Task
from watchdog_app.core.model.readings import cgroup_contains, readings
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKind
from watchdog_app.core.model.tasks import find_task, group_processes

COLUMNS = ("t", "used", "limit", "rss", "vmswap", "memavail", "nproc")  # columns of a row
_DEAD = frozenset("ZX")  # states of an ended process

_FULL, _NEARLY = 0.97, 0.90  # used share of an address space: MemoryError assumed, possible
_LAST_S = 2.0  # a program at its limit may free memory before it ends

Row = tuple[float, int, int, int, int | None, int, int]


class Machine(Protocol):
    """The interface that reads the machine."""

    def sample(self, now_mono_s: float, now_unix_s: float) -> Snapshot:
        """Take one sample of the machine."""

    def read_process(self, key: ProcessKey) -> ProcessSample:
        """Read one process."""


class KillCount:
    """
    The kernel's OOM kill counters since the creation of this object.

    The kernel counts a kill in the victim's cgroup. If that cgroup no longer exists or has no
    counter, the counter of the machine decides.

    Args:
        folders: cgroup folders whose kills count.
        of_group: reads the counter of a cgroup; None: no counter.
        of_host: reads the counter of the machine; None: no counter.

    Source: kernel, mm/oom_kill.c (__oom_kill_process).
    """

    def __init__(
        self,
        folders: Iterable[str],
        of_group: Callable[[str], int | None],
        of_host: Callable[[], int | None],
    ) -> None:
        self._of_group, self._of_host = of_group, of_host
        self._groups = {path: of_group(path) for path in set(folders)}
        self._host = of_host()
        self.first_s: float | None = None  # time of the first kill, from the start of the recording
        self.known = True  # False: no counter is readable, so a kill may have been missed

    def update(self, now_s: float) -> bool:
        """Read the counters; return whether the kernel has killed since the start."""
        if self.first_s is None and self._risen():
            self.first_s = now_s
        return self.first_s is not None

    def _risen(self) -> bool:
        risen = [_risen(self._groups[path], self._of_group(path)) for path in self._groups]
        if True in risen:
            return True
        if not risen or None in risen:
            risen = [_risen(self._host, self._of_host())]
        self.known = None not in risen
        return True in risen


def _risen(before: int | None, now: int | None) -> bool | None:
    return None if before is None or now is None else now > before


@dataclass(frozen=True, slots=True)
class RecordingTarget:
    """The task to record and the resource that it would exhaust first."""

    task: Task
    resource: Reading
    process: ProcessKey  # the recording ends with this process: root, or member with the named pid
    groups: tuple[str, ...] = ()  # cgroup folders in which the kernel would count a kill


def find_target(
    machine: Machine, wanted: str, now_mono_s: float, now_unix_s: float
) -> RecordingTarget:
    """
    Find the task to record.

    Args:
        machine: the machine to read.
        wanted: a pid, a name, or part of a name or path that matches only one task.
        now_mono_s: monotonic time.
        now_unix_s: wall time.

    Raises:
        TaskNotFound: no task or several tasks match.
    """
    snapshot = machine.sample(now_mono_s, now_unix_s)
    tasks = group_processes(snapshot.processes, snapshot.infos)
    task = find_task(wanted, tasks)
    named = next((m.key for m in task.members if m.key.pid == parse_pid(wanted)), task.key)
    info = snapshot.infos.get(named, task.info)
    resource = _tightest(snapshot, tasks, task, info.cgroup, named)
    whole = named == task.key
    every = [snapshot.infos.get(member.key) for member in task.members] if whole else [info]
    folders = {one.cgroup for one in every if one is not None and one.cgroup}
    return RecordingTarget(task, resource, named, tuple(sorted(folders)))


class Recorder:
    """
    Samples a task many times per second until it ends.

    Args:
        machine: the machine to read.
        found: result of `find_target`.
        kills: OOM kill counters since the start, read with every sample.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        machine: Machine,
        found: RecordingTarget,
        kills: KillCount,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._machine, self._found, self._kills, self._clock = machine, found, kills, clock
        self._began = clock()
        self._shares: deque[float] = deque()  # used share of the limit in the last samples

    def rows(
        self,
        hz: float,
        for_s: float | None,
        ends: Callable[[], bool] = bool,
        sleep: Callable[[float], object] = time.sleep,
    ) -> Iterator[Row]:
        """
        Yield one row per sample, until the task ends, its limit disappears, or `for_s` is over.

        Args:
            hz: samples per second.
            for_s: length of the recording; None: until the task ends.
            ends: returns whether the user asked to stop; at least one sample is taken.
            sleep: waits for this many seconds, or less after a request to stop.
        """
        began, count = self._clock(), 0
        self._began = began
        self._shares = deque(maxlen=max(1, int(_LAST_S * hz)))
        while not count or not ends():
            now = self._clock()
            if for_s is not None and now - began > for_s:
                return
            snapshot = self._machine.sample(now, time.time())
            self._kills.update(now - began)
            row = _row(snapshot, self._found, now - began)
            if row is None:
                return
            self._shares.append(row[1] / row[2] if row[2] else 0.0)
            yield row
            # Do not catch up on a late sample: the next one keeps its own time.
            count = max(count + 1, int((self._clock() - began) * hz))
            sleep(max(0.0, began + count / hz - self._clock()))

    def outcome(self) -> str:
        """
        How the task ended: "oom", "memory_error", "ok", "running" or "unknown".

        "memory_error" is only the most likely cause, because it is invisible from outside the task.
        Close to the limit, where a MemoryError is possible, the outcome is "unknown".
        """
        try:
            ended = self._machine.read_process(self._found.process).state in _DEAD
        except Gone:
            ended = True
        if self._kills.update(self._clock() - self._began):
            return "oom"
        if not ended:
            return "running"
        # An allocation only fails at the limit of the address space; elsewhere the kernel kills.
        if self._found.resource.key.kind is ResourceKind.RLIMIT_AS:
            highest = max(self._shares, default=0.0)
            if highest >= _NEARLY:
                return "memory_error" if highest >= _FULL else "unknown"
        return "ok" if self._kills.known else "unknown"


def write_side(
    path: str, outcome: str, end_s: float, found: RecordingTarget, killed_s: float | None = None
) -> str:
    """
    Write how and when the task ended into NAME.json, next to the trace.

    Args:
        path: path of the trace.
        outcome: result of `Recorder.outcome`.
        end_s: end of the recording, in seconds from its start.
        found: the recorded task.
        killed_s: time at which the task was killed or failed; None: neither.

    Returns:
        The path of the written file.
    """
    side = path.removesuffix(".gz").removesuffix(".csv") + ".json"
    with open(side, "w", encoding="utf-8") as file:
        json.dump(
            {
                "id": os.path.basename(path).removesuffix(".gz").removesuffix(".csv"),
                "task": found.task.name,
                "resource": found.resource.label,
                "outcome": outcome,
                "end_time_s": round(end_s, 3),
                "oom_time_s": None
                if killed_s is None
                else round(killed_s, 3),  # time of the failure
            },
            file,
            indent=1,
        )
        file.write("\n")
    return side


def _tightest(
    snapshot: Snapshot,
    tasks: tuple[Task, ...],
    task: Task,
    folder: str | None,
    named: ProcessKey,
) -> Reading:
    """The resource with the least room that limits the process in this cgroup folder."""
    hitting = [
        one
        for one in readings(snapshot, tasks)
        if one.fatal
        and task.key in one.tasks
        and (SPECS[one.key.kind].of_ram or one.key.kind is ResourceKind.RLIMIT_AS)
        # The address space limit of another member only ends that member.
        and (one.key.kind is not ResourceKind.RLIMIT_AS or one.key.subject == str(named.pid))
    ]
    # Another member may be in another cgroup, whose limit does not affect this process.
    own = [
        one
        for one in hitting
        if not SPECS[one.key.kind].of_group or cgroup_contains(one.key.subject, folder or "")
    ]
    hitting = own or hitting
    if not hitting:
        raise UsageError("This machine shows no limit that the task could meet.")
    return min(hitting, key=lambda one: one.limit - one.used)


def _row(snapshot: Snapshot, found: RecordingTarget, t: float) -> Row | None:
    tasks = group_processes(snapshot.processes, snapshot.infos)
    task = next((one for one in tasks if one.key == found.task.key), None)
    resource = next((r for r in readings(snapshot, tasks) if r.key == found.resource.key), None)
    if task is None or resource is None:
        return None
    if not any(m.key == found.process and m.state not in _DEAD for m in task.members):
        return None
    return (
        round(t, 3),
        int(resource.used),
        int(resource.limit),
        task.rss_bytes,
        task.swap_bytes,
        snapshot.host.available_bytes,
        len(task.members),
    )
