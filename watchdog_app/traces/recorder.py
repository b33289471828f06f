"""A running task's memory, written down as a trace while it runs."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from watchdog_app.base.errors import Gone, TaskNotFound, UsageError
from watchdog_app.base.text.quantities import pid_in
from watchdog_app.core.model.machine import CgroupMemory, ProcessKey, Snapshot, Task
from watchdog_app.core.model.readings import readings
from watchdog_app.core.model.resource import Reading, ResourceKind
from watchdog_app.core.model.tasks import group
from watchdog_app.sensors.machine import MachineFace
from watchdog_app.traces.kills import KillCount

_HOST_COLUMNS = ("t", "used", "limit", "rss", "vmswap", "memavail", "nproc")
_GROUP_COLUMNS = (*_HOST_COLUMNS, "usage", "ws", "unrecl", "swap")

_DEAD = frozenset("ZX")  # states of a process that has ended

_KINDS = frozenset(
    {ResourceKind.RAM, ResourceKind.RAM_SWAP, ResourceKind.CGROUP, ResourceKind.RLIMIT_AS}
)
_LAST_S = 2.0  # a program that ran into its limit gives back memory before it has ended
_FULL = 0.97  # of the limit
_NEARLY = 0.9  # enough where the next piece, of the size of the last ones, would not have fitted

Row = tuple[float | int | None, ...]


@dataclass(slots=True)
class Level:
    """How near the recorded level came to its limit in the last seconds."""

    _seen: deque[tuple[float, float, float]] = field(default_factory=deque)

    def look(self, t: float, used: float, limit: float) -> None:
        """Take one sample."""
        self._seen.append((t, used, limit))
        while self._seen[0][0] < t - _LAST_S:
            self._seen.popleft()

    @property
    def full(self) -> bool:
        """Whether the next piece would not have fitted."""
        if not self._seen:
            return False
        used, limit = max((used, limit) for _, used, limit in self._seen)
        levels = [used for _, used, _ in self._seen]
        piece = max((b - a for a, b in pairwise(levels)), default=0.0)
        return used >= _FULL * limit or (used >= _NEARLY * limit and used + piece >= limit)


@dataclass(frozen=True, slots=True)
class Found:
    """The task that is recorded and the resource that it would meet first."""

    task: Task
    resource: Reading
    process: ProcessKey  # the recording ends with it: the root, or the member whose pid was named
    level: Level = field(default_factory=Level, compare=False)
    groups: tuple[str, ...] = ()  # folders of the memory groups in which a kill would be counted

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the rows."""
        return _GROUP_COLUMNS if self.resource.key.kind == "cgroup" else _HOST_COLUMNS


def find(machine: MachineFace, wanted: str, now_mono_s: float, now_unix_s: float) -> Found:
    """
    The task that is meant.

    Args:
        machine: what is looked at.
        wanted: a pid, a name, or part of a name or path that fits one task alone.
        now_mono_s: monotonic time.
        now_unix_s: wall time.

    Raises:
        TaskNotFound: none, or more than one, answers to that name.
    """
    snapshot = machine.sample(now_mono_s, now_unix_s)
    tasks = group(snapshot.processes, snapshot.infos)
    pid, folded = pid_in(wanted), wanted.casefold()
    for fits in (
        lambda task: pid in {member.key.pid for member in task.members},
        lambda task: pid is None and task.name.casefold() == folded,
        lambda task: (
            pid is None
            and bool(folded)
            and any(
                folded in (text or "").casefold()
                for text in (task.name, task.info.notebook, task.info.script)
            )
        ),
    ):
        chosen = [task for task in tasks if fits(task)]
        if len(chosen) == 1:
            return _found(snapshot, tasks, chosen[0], wanted)
        if chosen:
            break
    what = "No Python task" if not chosen else f"{len(chosen)} tasks"
    raise TaskNotFound(
        f"{what} of yours answers to {wanted!r}. Nothing is recorded. watchdog status lists them.",
        candidates=tuple({"pid": t.key.pid, "name": t.name} for t in chosen or tasks),
    )


def _found(snapshot: Snapshot, tasks: tuple[Task, ...], task: Task, wanted: str) -> Found:
    named = next((m.key for m in task.members if m.key.pid == pid_in(wanted)), task.key)
    info = snapshot.infos.get(named, task.info)
    resource = _tightest(snapshot, tasks, task, info.cgroup, named)
    every = [snapshot.infos.get(member.key) for member in task.members]
    if named != task.key:
        every = [info]
    folders = {one.cgroup for one in every if one is not None and one.cgroup}
    return Found(task, resource, named, groups=tuple(sorted(folders)))


def rows(
    machine: MachineFace,
    found: Found,
    hz: float,
    for_s: float | None,
    kills: KillCount | None = None,
    *,
    ends: Callable[[], bool] = bool,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[Row]:
    """
    One row a look, until the task ends, its limit is gone, or `for_s` is over.

    Args:
        machine: what is looked at.
        found: from `find`.
        hz: looks a second.
        for_s: None: as long as it lasts.
        kills: is asked at every look.
        ends: whether someone has asked for the end; there is one look before it is heeded.
        clock: monotonic seconds.
        sleep: waits that many seconds, or less when the end was asked for.
    """
    began, looks = clock(), 0
    while not looks or not ends():
        now = clock()
        if for_s is not None and now - began > for_s:
            return
        snapshot = machine.sample(now, time.time())
        if kills is not None:
            kills.look(now - began)
        row = _row(snapshot, found, now - began)
        if row is None:
            return
        found.level.look(now, float(row[1] or 0), float(row[2] or 0))
        yield row
        # A look that came late is not made up for: the next one is due in its own time.
        looks = max(looks + 1, int((clock() - began) * hz))
        sleep(max(0.0, began + looks / hz - clock()))


def ending(machine: MachineFace, found: Found, kills: KillCount, now_s: float) -> str:
    """
    How it ended, as the file beside a trace says it: "oom", "memory_error", "ok", "running" or
    "unknown". "memory_error" is what most likely was: nothing tells it from here.

    Args:
        machine: what is looked at.
        found: what was recorded.
        kills: counted since the beginning.
        now_s: seconds since then.
    """
    try:
        ended = machine.read_process(found.process).state in _DEAD
    except Gone:
        ended = True
    if kills.look(now_s):
        return "oom"
    if not ended:
        return "running"
    # Only in an address space an allocation fails; elsewhere the kernel kills.
    if found.resource.key.kind is ResourceKind.RLIMIT_AS and found.level.full:
        return "memory_error"
    return "ok" if kills.known else "unknown"


def write_side(
    path: str, outcome: str, end_s: float, found: Found, killed_s: float | None = None
) -> str:
    """Write the file beside the trace that says how it ended, and when it was killed; its path."""
    side = path.removesuffix(".gz").removesuffix(".csv") + ".json"
    with open(side, "w", encoding="utf-8") as file:
        json.dump(
            {
                "id": os.path.basename(path).removesuffix(".gz").removesuffix(".csv"),
                "task": found.task.name,
                "ceiling": found.resource.label,
                "outcome": outcome,
                "end_time_s": round(end_s, 3),
                "oom_time_s": None if killed_s is None else round(killed_s, 3),  # of the failure
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
    """Of the resources that can hit the process in this folder, the one with least room."""
    hitting = [
        one
        for one in readings(snapshot, tasks)
        if one.fatal
        and task.key in one.tasks
        and one.key.kind in _KINDS
        # The address space of another member ends that one.
        and (one.key.kind is not ResourceKind.RLIMIT_AS or one.key.subject == str(named.pid))
    ]
    # Another member may be in a group of its own, whose limit is nothing to this one.
    own = [one for one in hitting if one.key.kind != "cgroup" or _is_in(folder, one.key.subject)]
    hitting = own or hitting
    if not hitting:
        raise UsageError("This machine shows no limit that the task could meet.")
    return min(hitting, key=lambda one: one.limit - one.used)


def _is_in(folder: str | None, group: str) -> bool:
    return folder is not None and f"{folder}/".startswith(f"{group.rstrip('/')}/")


def _group(snapshot: Snapshot, path: str) -> CgroupMemory | None:
    return next((one for one in snapshot.cgroups if one.path == path), None)


def _row(snapshot: Snapshot, found: Found, t: float) -> Row | None:
    tasks = group(snapshot.processes, snapshot.infos)
    task = next((one for one in tasks if one.key == found.task.key), None)
    if task is None or not any(
        member.key == found.process and member.state not in _DEAD for member in task.members
    ):
        return None
    resource = next(
        (one for one in readings(snapshot, tasks) if one.key == found.resource.key), None
    )
    if resource is None:
        return None
    row: Row = (
        round(t, 3),
        int(resource.used),
        int(resource.limit),
        task.rss_bytes,
        task.swap_bytes,
        snapshot.host.available_bytes,
        len(task.members),
    )
    one = _group(snapshot, found.resource.key.subject)
    if found.columns is _HOST_COLUMNS:
        return row
    if one is None:
        return (*row, None, None, None, None)
    return (
        *row,
        one.usage_bytes,
        one.working_set_bytes,
        one.unreclaimable_bytes,
        one.swap_usage_bytes or 0,
    )
