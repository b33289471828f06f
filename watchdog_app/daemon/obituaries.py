"""
Who died, of what, and what is left: from the ends of processes to journal entries and notices.

A task that holds an agent is always asked after; of the others only those that
the kernel killed for memory, or that crashed or were killed near a limit: that
a script ends is no news.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from watchdog_app.core.deaths import (
    CARD_MAY_EXPLAIN,
    Cause,
    CauseKind,
    DeathFacts,
    address_space_full,
    device_full,
    diagnose,
    explained_late,
)
from watchdog_app.core.outlook import CeilingKind, CeilingReading
from watchdog_app.core.records import AgentView, HostMemory, ProcessInfo, ProcessKey, Task
from watchdog_app.daemon.agents import Agent
from watchdog_app.daemon.books import death_entry, worker_entry
from watchdog_app.daemon.journal import Entry
from watchdog_app.daemon.poller import READ, Poller
from watchdog_app.daemon.status import Look
from watchdog_app.sensors import process_end

_MOST_HANDLES = 500
# Tearing down a large process takes the kernel seconds under pressure: its kill was counted then.
_RECENT_S = 15.0
_UNWINDING_S = 10.0  # a large heap takes its time to be given back
_COUNT_S = 4.0
# A training dies of its card at once; the driver's reader finds the fault some seconds later.
_FAULT_LATE_S = 60.0


@dataclass(slots=True)
class _Watched:
    """The root of a task that lives, or did at the last tick."""

    task: Task
    handle: int | None


class _Counter:
    """A counter of the kernel's, and when it was last seen to rise."""

    def __init__(self, value: int | None) -> None:
        self.value = value
        self._lower = value  # before it rose
        self._rose_mono_s = float("-inf")

    def update(self, value: int | None) -> bool:
        """Take in the value of now; whether it is higher than before."""
        rose = value is not None and self.value is not None and value > self.value
        if rose:
            if not self.recent():
                self._lower = self.value
            self._rose_mono_s = time.monotonic()
        self.value = value
        return rose

    def recent(self) -> bool:
        """It rose a moment ago."""
        return time.monotonic() - self._rose_mono_s < _RECENT_S

    @property
    def before(self) -> int | None:
        """Its value before it rose a moment ago; else that of now."""
        return self._lower if self.recent() else self.value


@dataclass(frozen=True, slots=True)
class _Unexplained:
    """An end whose cause may still show: a card's fault is read later than it strikes."""

    task: Task
    agent: Agent | None
    cause: Cause
    mono_s: float


@dataclass(frozen=True, slots=True)
class Death:
    """One to be written down and, where the engine says so, told."""

    task: Task | None  # as last seen; None: it never was in a look
    cause: Cause
    view: AgentView | None
    text: str
    entry: Entry


class Obituaries:
    """
    Follows every task to its end.

    Args:
        told: called with each death, once.
        agent_of: the agent in a process, None where there is none.
        was_paused: whether we hold a task paused.
    """

    def __init__(
        self,
        poller: Poller,
        *,
        told: Callable[[Death], None],
        agent_of: Callable[[ProcessKey], Agent | None],
        was_paused: Callable[[ProcessKey], bool],
        proc: str = "/proc",
    ) -> None:
        self._poller = poller
        self._told = told
        self._agent_of = agent_of
        self._was_paused = was_paused
        self._proc = proc
        self._watched: dict[ProcessKey, _Watched] = {}
        self._limits: dict[ProcessKey, CeilingReading] = {}  # of memory groups, by task
        self._devices: dict[ProcessKey, str] = {}  # full cards and allocators, by task
        # Those that are used up or were a moment ago, by task: how full, and when that was seen.
        self._address_spaces: dict[ProcessKey, tuple[str, float]] = {}
        self._card_faults: Mapping[ProcessKey, str] = {}
        self._memory: HostMemory | None = None
        self._infos: Mapping[ProcessKey, ProcessInfo] = {}
        self._next_count_mono_s = 0.0
        self._done: deque[ProcessKey] = deque(maxlen=500)
        self._unexplained: dict[ProcessKey, _Unexplained] = {}
        self._host = _Counter(process_end.host_oom_kills(proc))
        self._group_counters: dict[str, _Counter] = {}

    def take(self, look: Look) -> None:
        """Follow the tasks of one more tick."""
        now = {task.key: task for task in look.tasks}
        # Reading the machine's counter costs as much as ten processes: seldom, as long as nobody
        # is missing. What counts is that it was read some seconds before a death.
        if look.snapshot.mono_s >= self._next_count_mono_s or now.keys() != self._watched.keys():
            self._next_count_mono_s = look.snapshot.mono_s + _COUNT_S
            self._count()
        self._learn(look)
        self._amend()
        for key, task in now.items():
            watched = self._watched.get(key)
            if watched is None:
                self._watched[key] = self._follow(task)
                continue
            if len(watched.task.members) > 1:
                self._look_for_workers(watched.task, task)
            watched.task = task
        for key in [key for key in self._watched if key not in now]:
            self._ended(key)
        self._infos = look.snapshot.infos

    def agent_ended(self, agent: Agent) -> None:
        """The process of an agent has ended without a good-bye."""
        watched = self._holder(agent.key)
        if watched is not None and watched.task.key == agent.key:
            self._ended(agent.key)
        else:  # a training in a worker process, or one that lived between two looks
            task = watched.task if watched is not None else None
            self._write(agent.key, task, agent.handle, agent)

    def close(self) -> None:
        """Give the handles back."""
        for watched in self._watched.values():
            self._release(watched)
        self._watched.clear()

    def _follow(self, task: Task) -> _Watched:
        handle = None
        if len(self._watched) < _MOST_HANDLES:
            handle = process_end.open_handle(task.key.pid)
        if handle is not None:
            # Opened by pid alone: if that is another process by now, its end finds no task.
            self._poller.add(handle, READ, lambda _: self._ended(task.key))
        return _Watched(task, handle)

    def _ended(self, key: ProcessKey) -> None:
        watched = self._watched.pop(key, None)
        if watched is None:
            return
        try:
            self._write(key, watched.task, watched.handle, self._agent_of(key))
        finally:
            self._release(watched)
            self._address_spaces.pop(key, None)

    def _write(
        self, key: ProcessKey, task: Task | None, handle: int | None, agent: Agent | None
    ) -> None:
        if key in self._done:
            return
        self._done.append(key)
        self._count()
        cause = diagnose(self._facts(key, task, handle, agent))
        if task is not None and cause.kind in CARD_MAY_EXPLAIN:
            now_mono_s = time.monotonic()
            self._unexplained[task.key] = _Unexplained(task, agent, cause, now_mono_s)
        cared_for = agent is not None and not agent.said_bye and cause.kind is not CauseKind.ENDED
        known = cause.memory or cause.kind in (CauseKind.GPU_LOST, CauseKind.ADDRESS_SPACE)
        if not (known or cared_for):
            return
        name = task.name if task is not None else None
        if name is None:
            name = (agent.notebook if agent is not None else None) or f"process {key.pid}"
        path = None if task is None else task.info.notebook or task.info.script
        view = agent.view if agent is not None else None
        rescue = view.rescue if view is not None else None
        paused = self._was_paused(key) and cause.kind is CauseKind.KILLED
        now = time.time()
        entry = death_entry(
            key,
            name,
            path,
            cause=cause,
            rescue=rescue,
            had_agent=agent is not None,
            was_paused=paused,
            unix_s=now,
        )
        self._told(Death(task, cause, view, str(entry.data["text"]), entry))

    def _amend(self) -> None:
        """Ends whose cause has shown since: the journal gets it. The card's own notice tells it."""
        now = time.monotonic()
        for key, end in list(self._unexplained.items()):
            fault = self._card_faults.get(key)
            if fault is not None or now - end.mono_s > _FAULT_LATE_S:
                del self._unexplained[key]
            if fault is None:
                continue
            cause = explained_late(end.cause, fault)
            view = None if end.agent is None else end.agent.view
            entry = death_entry(
                key,
                end.task.name,
                end.task.info.notebook or end.task.info.script,
                cause=cause,
                rescue=None if view is None else view.rescue,
                had_agent=end.agent is not None,
                was_paused=False,
                unix_s=time.time(),
            )
            self._told(Death(None, cause, view, str(entry.data["text"]), entry))

    def _facts(
        self, key: ProcessKey, task: Task | None, handle: int | None, agent: Agent | None
    ) -> DeathFacts:
        status = process_end.wait_status(key.pid, key.start_time, handle, self._proc)
        info = self._infos.get(key)
        group = info.cgroup if info is not None else task.info.cgroup if task is not None else None
        counter = self._group_counters.get(group or "", _Counter(None))
        limit = self._limits.get(task.key) if task is not None else None
        # The kernel counts a kill in the victim's own group: where that count stood still, the
        # machine's rose for somebody else.
        spared = counter.value is not None and counter.before == counter.value
        host = _Counter(None) if spared else self._host
        return DeathFacts(
            wait_status=status,
            said_bye=agent is not None and agent.said_bye,
            group_label=limit.label if limit is not None else None,
            group_limit_bytes=limit.limit if limit is not None else None,
            group_used_bytes=limit.used if limit is not None else None,
            group_kills_before=counter.before,
            group_kills_after=counter.value,
            host_total_bytes=self._memory.total_bytes if self._memory else None,
            host_available_bytes=self._memory.available_bytes if self._memory else None,
            host_kills_before=host.before,
            host_kills_after=host.value,
            card_fault=None if task is None else self._card_faults.get(task.key),
            device_full=None if task is None else self._devices.get(task.key),
            # What stands still asks for nothing: a paused task ended in another way.
            address_space_full=None if task is None or task.paused else self._space_of(task.key),
            device_ooms=_ooms(agent),
        )

    def _space_of(self, key: ProcessKey) -> str | None:
        """
        How full its address space was at its end.

        A MemoryError unwinds what held the memory: the last look may find half of it free again.
        """
        space, seen_mono_s = self._address_spaces.get(key, ("", float("-inf")))
        return space if time.monotonic() - seen_mono_s <= _UNWINDING_S else None

    def _look_for_workers(self, before: Task, now: Task) -> None:
        """A worker that the kernel killed, while its task lives on."""
        left = {member.key for member in now.members}
        gone = [m.key for m in before.members if m.key not in left and m.key not in self._done]
        if not gone:
            return
        self._count()
        for key in gone:
            info = self._infos.get(key)
            status = process_end.wait_status(key.pid, key.start_time, None, self._proc)
            # Workers end all the time: only with its own group hit just now is this one blamed.
            if info is None or status not in (None, 9) or not self._killed_in(info.cgroup):
                continue
            self._done.append(key)
            entry = worker_entry(now, key.pid, time.time())
            cause = Cause(CauseKind.GROUP_LIMIT, "a worker was killed by the kernel for memory")
            self._told(Death(None, cause, None, str(entry.data["text"]), entry))

    def _count(self) -> None:
        """Read the kernel's counters of kills: the machine's, and those of groups when it rose."""
        rose = self._host.update(process_end.host_oom_kills(self._proc))
        for group, counter in self._group_counters.items():
            if rose or self._host.value is None:
                counter.update(process_end.group_oom_kills(group))

    def _killed_in(self, group: str | None) -> bool:
        counter = self._group_counters.get(group) if group else None
        return counter is not None and counter.recent()

    def _learn(self, look: Look) -> None:
        self._memory = look.snapshot.host
        self._card_faults = look.result.card_faults
        self._limits = {}
        self._devices = {}
        groups = {info.cgroup for info in look.snapshot.infos.values() if info.cgroup}
        for gone in (
            self._group_counters.keys()
            - groups
            - {w.task.info.cgroup for w in self._watched.values()}
        ):
            if not self._group_counters[gone].recent():
                del self._group_counters[gone]
        for new in groups - self._group_counters.keys():
            self._group_counters[new] = _Counter(process_end.group_oom_kills(new))
        for reading in look.readings:
            if reading.key.kind is CeilingKind.CGROUP:
                for key in reading.tasks:
                    self._limits[key] = reading
            elif reading.key.kind is CeilingKind.RLIMIT_AS:
                space = address_space_full(reading)
                if space is not None:
                    now = look.snapshot.mono_s
                    self._address_spaces.update((key, (space, now)) for key in reading.tasks)
        if look.snapshot.hardware.gpus or any(view.allocators for view in look.agents.values()):
            for task in look.tasks:
                full = device_full(task, look.readings)
                if full is not None:
                    self._devices[task.key] = full

    def _holder(self, key: ProcessKey) -> _Watched | None:
        for watched in self._watched.values():
            if any(member.key == key for member in watched.task.members):
                return watched
        return None

    def _release(self, watched: _Watched) -> None:
        if watched.handle is not None:
            self._poller.remove(watched.handle)
            os.close(watched.handle)
            watched.handle = None


def _ooms(agent: Agent | None) -> int:
    """Out-of-memory errors that a training's framework has counted on all cards."""
    if agent is None:
        return 0
    return sum(memory.ooms or 0 for memory in agent.view.allocators)
