"""Record the memory of a running task as a trace."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from watchdog_app.base.errors import UsageError
from watchdog_app.base.text.quantities import parse_pid
from watchdog_app.core.model.machine import ProcessKey, Snapshot, Task
from watchdog_app.core.model.readings import cgroup_contains, readings
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKind
from watchdog_app.core.model.tasks import find_task, group_processes

_DEAD = frozenset("ZX")  # states of an ended process

Row = tuple[float, int, int]


class Machine(Protocol):
    """The interface that reads the machine."""

    def sample(self, now_mono_s: float, now_unix_s: float) -> Snapshot:
        """
        Take one sample of the machine.

        Args:
            now_mono_s: monotonic time.
            now_unix_s: wall time.
        """


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
        self._folders = sorted(set(folders))
        self._of_group, self._of_host = of_group, of_host
        self._before = self._read()
        self.first_s: float | None = None  # time of the first kill, from the start of the recording
        self.known = True  # False: no counter is readable, so a kill may have been missed

    def update(self, now_s: float) -> bool:
        """Read the counters; return whether the kernel has killed since the start."""
        if self.first_s is None:
            pairs = zip(self._before, self._read(), strict=True)
            *groups, host = [
                None if old is None or new is None else new > old for old, new in pairs
            ]
            risen = groups if groups and None not in groups else [True in groups or host]
            self.known = None not in risen
            if True in risen:
                self.first_s = now_s
        return self.first_s is not None

    def _read(self) -> list[int | None]:
        return [*map(self._of_group, self._folders), self._of_host()]


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
    # A named worker ends alone; the root ends with any of its members.
    hit = [named] if named != task.key else [member.key for member in task.members]
    infos = (snapshot.infos.get(key) for key in hit)
    folders = {info.cgroup for info in infos if info is not None and info.cgroup}
    resource = _tightest(snapshot, tasks, task, named)
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
        self._ended = False

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
        while not count or not ends():
            now = self._clock()
            if for_s is not None and now - began > for_s:
                return
            snapshot = self._machine.sample(now, time.time())
            self._kills.update(now - began)
            row = self._row(snapshot, now - began)
            if row is None:
                return
            yield row
            # Do not catch up on a late sample: the next one keeps its own time.
            count = max(count + 1, int((self._clock() - began) * hz))
            sleep(max(0.0, began + count / hz - self._clock()))

    def outcome(self) -> str:
        """
        How the task ended: "oom", "ok", "running" or "unknown".

        A MemoryError is invisible from outside the task, so an end under a limit of the address
        space is "unknown".
        """
        if not self._ended:  # it may have ended since the last sample
            self._row(self._machine.sample(self._clock(), time.time()), 0.0)
        if self._kills.update(self._clock() - self._began):
            return "oom"
        if not self._ended:
            return "running"
        address_space = self._found.resource.key.kind is ResourceKind.RLIMIT_AS
        return "ok" if self._kills.known and not address_space else "unknown"

    def _row(self, snapshot: Snapshot, t: float) -> Row | None:
        tasks = group_processes(snapshot.processes, snapshot.infos)
        task = next((one for one in tasks if one.key == self._found.task.key), None)
        members = () if task is None else task.members
        running = [member.key for member in members if member.state not in _DEAD]
        self._ended = self._found.process not in running
        key = self._found.resource.key
        resource = next((one for one in readings(snapshot, tasks) if one.key == key), None)
        if self._ended or resource is None:
            return None
        return round(t, 3), int(resource.used), int(resource.limit)


def write_side(
    path: str, outcome: str, end_s: float, found: RecordingTarget, killed_s: float | None
) -> None:
    """
    Write how and when the task ended into NAME.json, next to the trace.

    Args:
        path: path of the trace.
        outcome: result of `Recorder.outcome`.
        end_s: end of the recording, in seconds from its start.
        found: the recorded task.
        killed_s: time at which the task was killed; None: it was not.
    """
    side = path.removesuffix(".gz").removesuffix(".csv") + ".json"
    with open(side, "w", encoding="utf-8") as file:
        json.dump(
            {
                "task": found.task.name,
                "resource": found.resource.label,
                "outcome": outcome,
                "end_time_s": round(end_s, 3),
                "oom_time_s": None if killed_s is None else round(killed_s, 3),
            },
            file,
            indent=1,
        )
        file.write("\n")


def _tightest(
    snapshot: Snapshot, tasks: tuple[Task, ...], task: Task, named: ProcessKey
) -> Reading:
    """The resource with the least room whose exhaustion ends the named process."""
    info = snapshot.infos.get(named, task.info)

    def hits(one: Reading) -> bool:
        # Another member may have an address space limit of its own, or be in another group.
        if one.key.kind is ResourceKind.RLIMIT_AS:
            return one.key.subject == str(named.pid)
        spec = SPECS[one.key.kind]
        above = not spec.of_group or cgroup_contains(one.key.subject, info.cgroup or "")
        return spec.of_ram and above and task.key in one.tasks

    hitting = [one for one in readings(snapshot, tasks) if one.fatal and hits(one)]
    if not hitting:
        raise UsageError("This machine shows no limit that the task could meet.")
    return min(hitting, key=lambda one: one.limit - one.used)
