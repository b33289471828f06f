"""
Who died, of what, and what is left: from the ends of processes to journal entries and notices.

Every end is asked after. What somebody may want to hear of is a death: a kill, a
crash, an end of a training that was not over. That a script ends is no news: of
those that ran for a while it is noted how, for whoever asks.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from watchdog_app.base.linux import process
from watchdog_app.base.linux.files import handle_share
from watchdog_app.core.diagnosis.causes import diagnose, explained_late
from watchdog_app.core.diagnosis.evidence import evidence_of
from watchdog_app.core.diagnosis.exits import crashed, journal_level, signal_of
from watchdog_app.core.explain.memory import about_growth
from watchdog_app.core.model.agent import AgentState, MemoryGrowth
from watchdog_app.core.model.exits import Cause, CauseKind, Certainty, ExitFacts, UnitEnd
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.daemon import guard_exits
from watchdog_app.daemon.agents import Agent
from watchdog_app.daemon.exit_evidence import KERNELS, ExitEvidence, surroundings
from watchdog_app.daemon.last_seen import LastSeen
from watchdog_app.daemon.oom_counters import OomCounters
from watchdog_app.daemon.poller import READ, Poller
from watchdog_app.daemon.status import Look
from watchdog_app.daemon.unit_exits import UnitExits
from watchdog_app.history.entries import about_task, death_entry, worker_entry
from watchdog_app.history.journal import Entry

_MOST_HANDLES = 500
# How it ended shows when its memory is gone; one that a driver holds in its end is not waited for.
_ENDING_S = 60.0
_COUNT_S = 4.0
_LAUNCHER_S = 120.0  # a launcher waits some time for its other workers before it ends
_ASKED_S = 60.0  # of what ran for less and left no word systemd is not asked
# A training dies of its card at once; the driver's reader finds the fault some seconds later.
_FAULT_LATE_S = 60.0


@dataclass(slots=True)
class _Watched:
    """The root of a task that lives, or did at the last tick."""

    task: Task
    handle: int | None
    cpu_limit_s: float | None
    alive_mono_s: float  # when it was last seen alive
    ending_mono_s: float | None = None  # since when it is on its way out


@dataclass(frozen=True, slots=True)
class _Unexplained:
    """An end whose cause may still show: a card's fault is read later than it strikes."""

    task: Task
    agent: Agent | None
    cause: Cause
    mono_s: float


@dataclass(frozen=True, slots=True)
class _End:
    """An end with all that is known of it but what systemd says."""

    key: ProcessKey
    task: Task | None
    agent: Agent | None
    view: AgentState | None  # of that agent, or of the worker that trained
    facts: ExitFacts
    unix_s: float
    about: dict[str, Any]
    tasks: tuple[Task, ...]
    growth: Mapping[ProcessKey, float | None]


@dataclass(frozen=True, slots=True)
class _Lost:
    """A worker with an agent that has ended: its rescue is its task's."""

    view: AgentState
    mono_s: float


@dataclass(frozen=True, slots=True)
class Death:
    """One to be written down and, where the engine says so, told."""

    task: Task | None  # as last seen; None: it never was in a look
    cause: Cause
    view: AgentState | None
    text: str
    entry: Entry


class ExitMonitor:
    """
    Follows every task to its end.

    Args:
        told: called with each death, once.
        agent_of: the agent in a process, None where there is none.
        was_paused: whether we hold a task paused.
        units: asks systemd.
        folder: of the state, where last words lie.
    """

    def __init__(
        self,
        poller: Poller,
        *,
        told: Callable[[Death], None],
        agent_of: Callable[[ProcessKey], Agent | None],
        was_paused: Callable[[ProcessKey], bool],
        units: UnitExits,
        folder: str | None = None,
        proc: str = "/proc",
    ) -> None:
        self._poller = poller
        self._told = told
        self._agent_of = agent_of
        self._was_paused = was_paused
        self._units = units
        self._proc = proc
        self._watched: dict[ProcessKey, _Watched] = {}
        self._seen = LastSeen()
        self._looked_mono_s = time.monotonic()
        self._lost: dict[ProcessKey, _Lost] = {}  # by task
        self._next_count_mono_s = 0.0
        self._done: deque[ProcessKey] = deque(maxlen=500)
        self._unexplained: dict[ProcessKey, _Unexplained] = {}
        self._counts = OomCounters(proc)
        self._exit_evidence = ExitEvidence(folder, proc)

    def take(self, look: Look) -> None:
        """Follow the tasks of one more tick."""
        now = {task.key: task for task in look.tasks}
        # Reading the machine's counter costs as much as ten processes: seldom, as long as nobody
        # is missing. What counts is that it was read some seconds before a death.
        if look.snapshot.mono_s >= self._next_count_mono_s or now.keys() != self._watched.keys():
            self._next_count_mono_s = look.snapshot.mono_s + _COUNT_S
            self._counts.count()
        # Who is missing in this look is asked after next: what was last seen of it still counts.
        self._seen.learn(look, self._watched.keys() - now.keys())
        groups = {info.cgroup for info in look.snapshot.infos.values() if info.cgroup}
        self._counts.follow(groups, [w.task.info.cgroup for w in self._watched.values()])
        self._amend()
        for key, task in now.items():
            watched = self._watched.get(key)
            if watched is None:
                self._watched[key] = self._follow(task, look.snapshot.mono_s)
                continue
            if len(watched.task.members) > 1:
                self._look_for_workers(watched.task, task, watched.alive_mono_s)
            watched.task, watched.ending_mono_s = task, None
            watched.alive_mono_s = look.snapshot.mono_s
        members = {member.key for task in look.tasks for member in task.members}
        for key in [key for key in self._watched if key not in now]:
            if key in members:  # it lives: its parent has ended, and another task has inherited it
                self._release(self._watched.pop(key))
            elif not self._is_ending(self._watched[key], look.snapshot.mono_s):
                self._ended(key)
        self._seen.infos = look.snapshot.infos
        self._looked_mono_s = look.snapshot.mono_s

    def grew(self, task: ProcessKey, growth: MemoryGrowth) -> None:
        """An agent has told what grows in its task, which may die before the next look."""
        if task in self._watched:
            self._seen.grew[task] = growth

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
        self._exit_evidence.close()

    def _follow(self, task: Task, alive_mono_s: float) -> _Watched:
        handle = None
        if len(self._watched) < handle_share(_MOST_HANDLES):
            handle = process.open_pidfd(task.key.pid)
        if handle is not None:
            # Opened by pid alone: if that is another process by now, its end finds no task.
            self._poller.add(handle, READ, lambda _: self._ended(task.key))
        limit_s = process.cpu_limit_s(task.key.pid)
        return _Watched(task, handle, limit_s, alive_mono_s)

    def _is_ending(self, watched: _Watched, now_mono_s: float) -> bool:
        """It is no task any more, and the kernel does not say yet how it ended."""
        key = watched.task.key
        if watched.ending_mono_s is None:
            watched.ending_mono_s = now_mono_s
        return now_mono_s - watched.ending_mono_s < _ENDING_S and process.is_ending(
            key.pid, key.start_time, self._proc
        )

    def _ended(self, key: ProcessKey) -> None:
        watched = self._watched.pop(key, None)
        if watched is None:
            return
        try:
            self._write(
                key,
                watched.task,
                watched.handle,
                self._agent_of(key),
                cpu_limit_s=watched.cpu_limit_s,
                alive_mono_s=watched.alive_mono_s,
            )
        finally:
            self._release(watched)
            self._seen.forget(key)
            self._lost.pop(key, None)

    def _write(
        self,
        key: ProcessKey,
        task: Task | None,
        handle: int | None,
        agent: Agent | None,
        *,
        cpu_limit_s: float | None = None,
        alive_mono_s: float | None = None,
    ) -> None:
        if key in self._done:
            return
        self._done.append(key)
        self._counts.count()
        if alive_mono_s is None:
            alive_mono_s = self._looked_mono_s
        facts = self._facts(
            key, task, handle, agent, cpu_limit_s=cpu_limit_s, alive_mono_s=alive_mono_s
        )
        cause = diagnose(facts)
        if cause.memory:
            self._counts.claim(facts.group, alive_mono_s)
        view = agent.view if agent is not None else None
        if task is not None and task.key != key and view is not None:
            self._lost[task.key] = _Lost(view, time.monotonic())
        lost = self._lost.get(key)
        if view is None and lost is not None and time.monotonic() - lost.mono_s <= _LAUNCHER_S:
            view = lost.view  # the training was in a worker, which ended just before
        about = {} if task is None else about_task(task.info, task.rss_bytes, view)
        about |= {} if task is None else self._grew(task.key)
        tasks = self._seen.tasks if task is None else (task, *self._seen.tasks)
        end = _End(
            key, task, agent, view, facts, time.time(), about, tuple(tasks), dict(self._seen.growth)
        )
        alive_unix_s = end.unix_s - (time.monotonic() - alive_mono_s)
        guards = facts.oom_daemons
        if not (
            _asks_systemd(facts, cause, task, agent)
            and self._units.ask(
                facts.group, key.pid, alive_unix_s, partial(self._tell, end), guards=guards
            )
        ):
            self._tell(end, None)

    def _tell(self, end: _End, unit: UnitEnd | None) -> None:
        """Write an end down, and what systemd has said of it."""
        task, agent = end.task, end.agent
        facts = end.facts if unit is None else replace(end.facts, unit=unit)
        cause = diagnose(facts)
        if task is not None and cause.spec.card_may_explain:
            now_mono_s = time.monotonic()
            self._unexplained[task.key] = _Unexplained(task, agent, cause, now_mono_s)
        news = _is_news(facts, cause, task, agent, end.unix_s)
        if news is None:
            return
        name = task.name if task is not None else None
        if name is None:
            name = (agent.notebook if agent is not None else None) or f"process {end.key.pid}"
        entry = death_entry(
            end.key,
            name,
            None if task is None else task.info.notebook or task.info.script,
            cause=cause,
            evidence=evidence_of(facts),
            rescue=guard_exits.newest(end.view, facts.guard),
            had_agent=end.view is not None,
            was_paused=facts.was_paused and cause.kind is CauseKind.KILLED,
            unix_s=end.unix_s,
            about=end.about | surroundings(facts, cause, end.tasks, end.growth),
            plain_end=not news,
        )
        self._told(Death(task, cause, end.view, str(entry.data["text"]), entry))

    def _amend(self) -> None:
        """Ends whose cause has shown since: the journal gets it. The card's own notice tells it."""
        now = time.monotonic()
        for key, end in list(self._unexplained.items()):
            fault = self._seen.card_faults.get(key)
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
        self,
        key: ProcessKey,
        task: Task | None,
        handle: int | None,
        agent: Agent | None,
        *,
        cpu_limit_s: float | None,
        alive_mono_s: float,
    ) -> ExitFacts:
        info = self._seen.infos.get(key)
        return self._exit_evidence.facts(
            key,
            task,
            handle,
            group=info.cgroup if info else task.info.cgroup if task is not None else None,
            counts=self._counts,
            alive_mono_s=alive_mono_s,
            limit=self._seen.limits.get(task.key) if task is not None else None,
            group_high=task is not None and self._seen.high.get(task.key, False),
            memory=self._seen.memory,
            cpu_limit_s=cpu_limit_s,
            root=task is not None and task.key == key,
            said_bye=agent is not None and agent.said_bye and not agent.failed,
            failed=agent is not None and agent.failed,
            card_fault=None if task is None else self._seen.card_faults.get(task.key),
            device_full=None if task is None else self._seen.devices.get(task.key),
            # What stands still asks for nothing: a paused task ended in another way.
            address_space_full=None
            if task is None or task.paused
            else self._seen.full_space(task.key),
            address_space=None if task is None else self._seen.spaces.get(task.key),
            device_ooms=_ooms(agent),
            was_paused=self._was_paused(key),
        )

    def _look_for_workers(self, before: Task, now: Task, alive_mono_s: float) -> None:
        """A worker that the kernel killed, while its task lives on."""
        left = {member.key for member in now.members}
        gone = [m.key for m in before.members if m.key not in left and m.key not in self._done]
        if not gone:
            return
        self._counts.count()
        named = self._exit_evidence.named()
        for key in gone:
            info = self._seen.infos.get(key)
            # Workers come and go by the hundred: only where the kernel has said or counted
            # something is there more to be asked.
            if info is None or not (key.pid in named or self._counts.rose_in(info.cgroup)):
                continue
            facts = self._exit_evidence.facts(
                key,
                before,
                None,
                group=info.cgroup,
                counts=self._counts,
                alive_mono_s=alive_mono_s,
                limit=self._seen.limits.get(before.key),
                group_high=self._seen.high.get(before.key, False),
                memory=self._seen.memory,
                root=False,
            )
            cause = diagnose(facts)
            own = any(word.pid == key.pid for word in facts.kernel)
            # Workers end all the time: only with its own group hit since it was last seen, or with
            # the kernel's own word on it, is this one blamed.
            if not own:
                if cause.kind is not CauseKind.GROUP_LIMIT or facts.wait_status not in (None, 9):
                    continue
                cause = Cause(CauseKind.GROUP_LIMIT, "killed by the kernel", Certainty.LIKELY)
            elif not (cause.memory or crashed(facts.wait_status) or facts.wait_status is None):
                continue
            if cause.memory:
                self._counts.claim(info.cgroup, alive_mono_s)
            self._done.append(key)
            agent = self._agent_of(key)
            view = None if agent is None else agent.view
            if view is not None:
                self._lost[now.key] = _Lost(view, time.monotonic())
            grew = self._grew(now.key)
            self._told(_worker_death(now, key.pid, facts, cause=cause, view=view, grew=grew))

    def _grew(self, task: ProcessKey) -> dict[str, Any]:
        """Which lines and tensors of it grew, for its entry; empty where nobody has looked."""
        grew = self._seen.grew.get(task)
        if grew is None:
            return {}
        return {"grew": list(about_growth(grew, self._seen.growth.get(task)))}

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


def _asks_systemd(facts: ExitFacts, cause: Cause, task: Task | None, agent: Agent | None) -> bool:
    """Whether systemd may know more: of a kill, or where nothing is known, that matters."""
    number = signal_of(facts.wait_status)
    killed = number in (signal.SIGKILL, signal.SIGTERM)
    if cause.certainty is Certainty.EXACT or not (killed or facts.wait_status is None):
        return False
    if facts.said_bye and not killed:
        return False
    started = None if task is None else task.info.started_unix_s
    ran_s = 0.0 if started is None else time.time() - started
    kernel = task is not None and task.kind in KERNELS
    return agent is not None or kernel or killed or ran_s >= _ASKED_S


def _is_news(
    facts: ExitFacts, cause: Cause, task: Task | None, agent: Agent | None, unix_s: float
) -> bool | None:
    started = None if task is None else task.info.started_unix_s
    cared_for = False
    if agent is not None:
        # Python's good-bye with a status other than 0: such as sys.exit(1) after an error.
        left = agent.said_bye and not agent.failed
        cared_for = not left or (agent.view.training and cause.spec.own)
    return journal_level(
        facts,
        cause,
        seen=task is not None,
        kernel=task is not None and task.kind in KERNELS,
        age_s=0.0 if started is None else unix_s - started,
        cared_for=cared_for,
    )


def _worker_death(
    task: Task,
    pid: int,
    facts: ExitFacts,
    *,
    cause: Cause,
    view: AgentState | None,
    grew: Mapping[str, Any],
) -> Death:
    """Of a worker whose task lives on; told as news of that task."""
    rescue = guard_exits.newest(view, facts.guard)
    about = {} if view is None else about_task(task.info, task.rss_bytes, view)
    entry = worker_entry(
        task, pid, time.time(), cause, evidence_of(facts), rescue=rescue, about={**about, **grew}
    )
    text = str(entry.data["text"])
    told = replace(cause, text=text.rstrip("."), news=True, worker=pid)
    return Death(task, told, view, text, entry)


def _ooms(agent: Agent | None) -> int:
    """Out-of-memory errors that a training's framework has counted on all cards."""
    if agent is None:
        return 0
    return sum(memory.ooms or 0 for memory in agent.view.allocators)
