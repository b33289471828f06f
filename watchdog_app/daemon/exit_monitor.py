"""
Reports each end of a watched process once, with its cause and its entry for the journal.

The evidence of an end is read at once. If systemd or the next GPU reading may add evidence, the
diagnosis waits for it. An end is notable if it was a kill, a crash or an unfinished training. Other
ends are recorded only for processes that ran for a while.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

from watchdog_app.base.linux import process
from watchdog_app.base.records import dataclass
from watchdog_app.core.diagnosis.causes import diagnose
from watchdog_app.core.diagnosis.evidence import collect_evidence, crashed, journal_level, signal_of
from watchdog_app.core.explain.advice import growth_advice
from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.exits import Cause, CauseKind, Certainty, Evidence, ExitFacts
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.daemon.agents import Agent, Agents, newer_rescue
from watchdog_app.daemon.guards import guard_end
from watchdog_app.daemon.last_seen import LastSeen
from watchdog_app.daemon.poller import PidFds, Poller
from watchdog_app.daemon.status import AssessedSample
from watchdog_app.history.entries import (
    exit_context,
    exit_entry,
    task_fields,
    worker_entry,
)
from watchdog_app.history.journal import Entry
from watchdog_app.machine.sensors.exits import KERNELS, ExitEvidence
from watchdog_app.machine.sensors.systemd_units import UnitQueries, UnitQuery

# Wait this long for an exiting process: its wait status appears once its memory is freed, which a
# driver can delay.
_ENDING_S = 60.0
_COUNT_INTERVAL_S = 4.0
_LAUNCHER_S = 120.0  # a launcher may wait this long for its other workers before it ends
_PF_EXITING = 0x4  # source: include/linux/sched.h
_LEAST_RUN_S = 60.0  # after a shorter run without a clue, do not ask systemd
# A GPU fault ends a training at once. The first reading that begins this much later shows it.
_GPU_LATE_S = 1.0
_GPU_WAIT_S = 10.0


@dataclass(slots=True)
class _Watched:
    """The root of a task that runs, or ran at the last sample."""

    task: Task
    alive_mono_s: float  # time of the last sample in which it was alive
    ending_mono_s: float | None = None  # when its exit was first seen


@dataclass(slots=True)
class _PendingExit:
    """An end with the evidence that was available at once."""

    key: ProcessKey
    task: Task | None
    agent: Agent | None
    view: AgentState | None  # of that agent, or of the worker that trained
    worker: tuple[Evidence, ...]  # evidence of a worker killed before
    facts: ExitFacts
    mono_s: float
    unix_s: float
    ran_s: float  # 0: unknown
    known: dict[str, Any]  # further fields of its entry
    sample: AssessedSample | None  # last sample that contains the task, or the one before
    question: UnitQuery | None  # to systemd; None: systemd is not asked
    gpu_read_mono_s: float | None  # a GPU reading from then on shows a fault; None: do not wait
    until_mono_s: float  # end of the wait


@dataclass(frozen=True, slots=True)
class _EndedWorker:
    """A worker that has ended; its rescue belongs to its task."""

    view: AgentState | None
    mono_s: float
    killed: Evidence | None = None  # set if the kernel killed it


@dataclass(frozen=True, slots=True)
class Exit:
    """An end to record and, if the engine decides so, to report."""

    task: Task | None  # as last seen; None: no sample contained it
    cause: Cause
    view: AgentState | None
    entry: Entry
    mono_s: float  # time of the end
    notable: bool = True  # False: recorded, but shown only on request


@dataclass(eq=False)
class ExitMonitor:
    """
    Follows every task and worker to its end. `last_seen` holds what the last samples showed of
    them.

    Args:
        agents: the agents in trainings; one is forgotten when its process has ended.
        was_paused: whether watchdog has paused a task.
        units: asks systemd.
        worker_ended: called when a worker has ended; only a sample shows the consequences.
        on_end: called with each task that has ended, and the cause.
        folder: the state folder with the crash reports.
    """

    poller: Poller
    agents: Agents = field(kw_only=True)
    was_paused: Callable[[ProcessKey], bool] = field(kw_only=True)
    units: UnitQueries = field(kw_only=True)
    worker_ended: Callable[[], None] = field(kw_only=True)
    on_end: Callable[[Task, Cause], object] = field(default=lambda *_: None, kw_only=True)
    folder: str | None = field(default=None, kw_only=True)
    last_seen: LastSeen = field(default_factory=LastSeen, init=False)
    _watched: dict[ProcessKey, _Watched] = field(default_factory=dict, init=False)
    # By task.
    _ended_workers: dict[ProcessKey, _EndedWorker] = field(default_factory=dict, init=False)
    _pending: list[_PendingExit] = field(default_factory=list, init=False)
    _exits: list[Exit] = field(default_factory=list, init=False)
    _sampled_mono_s: float = field(default_factory=time.monotonic, init=False)
    _next_count_mono_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Make the handles of processes, and the reader of evidence."""
        # Opened by pid only. If another process has the pid by now, its end matches no task.
        self._pidfds = PidFds(self.poller, self._process_ended)  # of tasks and agents
        self._workers = PidFds(self.poller, lambda _: self.worker_ended())
        self._handled: deque[ProcessKey] = deque(maxlen=500)
        self._evidence = ExitEvidence(self.folder)
        self._counts = self._evidence.counts

    def ended(self, now_mono_s: float) -> list[Exit]:
        """Ends since the last call, each once, as soon as all its evidence has arrived."""
        self.units.collect()
        for end in [each for each in self._pending if self._is_complete(each, now_mono_s)]:
            self._pending.remove(end)
            found = self._diagnose_exit(end)
            if found is not None:
                self._exits.append(found)
        exits, self._exits = self._exits, []
        return exits

    def next_deadline_mono_s(self) -> float | None:
        """The time by which `ended` must be called; None: no end is pending."""
        if self._exits:
            return 0.0
        return min((each.until_mono_s for each in self._pending), default=None)

    def follow(self, sample: AssessedSample) -> None:
        """Follow the tasks of a new sample."""
        now = {task.key: task for task in sample.tasks}
        # Reading the machine's counter costs as much as reading ten processes. While no task is
        # missing, read it rarely: it need only be some seconds old at an end.
        if sample.snapshot.mono_s >= self._next_count_mono_s or now.keys() != self._watched.keys():
            self._next_count_mono_s = sample.snapshot.mono_s + _COUNT_INTERVAL_S
            self._counts.update()
        # Do this before `last_seen` is updated: it still holds the data of missing tasks.
        for key, known in self._watched.items():
            if key in now and len(known.task.members) > 1:
                self._find_killed_workers(known.task, now[key], known.alive_mono_s)
        self.last_seen.update(sample, self._watched.keys() - now.keys())
        groups = {info.cgroup for info in sample.snapshot.infos.values() if info.cgroup}
        self._counts.track(groups, [w.task.info.cgroup for w in self._watched.values()])
        for key, task in now.items():
            watched = self._watched.get(key)
            if watched is None:
                self._watched[key] = _Watched(task, sample.snapshot.mono_s)
                continue
            watched.task, watched.ending_mono_s = task, None
            watched.alive_mono_s = sample.snapshot.mono_s
        members = {member.key for task in sample.tasks for member in task.members}
        for key in [key for key in self._watched if key not in now]:
            if key in members:  # it runs: its parent ended, and it now belongs to another task
                del self._watched[key]
            elif not self._is_ending(self._watched[key], sample.snapshot.mono_s):
                self._task_ended(key)
        self.agents.update_infos(sample.snapshot.infos)
        self._pidfds.follow({*self._watched, *self.agents.keys()})
        self._workers.follow({m.key for task in sample.tasks for m in task.members[1:]})
        self.last_seen.infos = sample.snapshot.infos
        self._sampled_mono_s = sample.snapshot.mono_s

    def follow_agent(self, key: ProcessKey) -> None:
        """Follow the process of a new agent, which may end before the next sample."""
        self._pidfds.add(key)

    def agent_ended(self, agent: Agent) -> None:
        """Handle the end of an agent's process."""
        self.worker_ended()
        watched, handle = self._watched_task_of(agent.key), self._pidfds.fd(agent.key)
        self.agents.forget(agent.key)
        if watched is not None and watched.task.key == agent.key:
            self._task_ended(agent.key, agent)
        elif not agent.finished:  # in a worker, or in a process that lived between two samples
            task = watched.task if watched is not None else None
            for end in self._pending:  # the end of its launcher was seen before its own
                if end.view is None and end.task is not None and _has_member(end.task, agent.key):
                    end.view, task = agent.view, end.task
            self._collect_evidence(agent.key, task, handle, agent)

    def close(self) -> None:
        """Close the handles."""
        self._pidfds.close()
        self._workers.close()
        self._watched.clear()
        self._evidence.close()

    def _is_ending(self, watched: _Watched, now_mono_s: float) -> bool:
        """Whether the process is exiting, so that the kernel has no wait status yet."""
        key = watched.task.key
        if watched.ending_mono_s is None:
            watched.ending_mono_s = now_mono_s
        return now_mono_s - watched.ending_mono_s < _ENDING_S and is_ending(key.pid, key.start_time)

    def _process_ended(self, key: ProcessKey) -> None:
        agent = self.agents.get(key)
        if agent is not None:
            self.agent_ended(agent)
        else:
            self._task_ended(key)

    def _task_ended(self, key: ProcessKey, agent: Agent | None = None) -> None:
        watched = self._watched.get(key)
        if watched is None:
            return
        self._end_workers(watched.task)
        del self._watched[key]
        agent = agent or self.agents.get(key)
        try:
            self._collect_evidence(key, watched.task, self._pidfds.fd(key), agent, watched)
        finally:
            self._pidfds.release(key)
            self._ended_workers.pop(key, None)

    def _end_workers(self, task: Task) -> None:
        """
        Handle the ends of a task's workers before the end of its root.

        A kill of the group counts for the worker then, and the root's evidence names it.
        """
        for member in task.members:
            agent = None if member.key == task.key else self.agents.get(member.key)
            if agent is not None and process.start_time(member.key.pid) != member.key.start_time:
                self.agent_ended(agent)

    def _collect_evidence(
        self,
        key: ProcessKey,
        task: Task | None,
        handle: int | None,
        agent: Agent | None,
        watched: _Watched | None = None,
    ) -> None:
        """Collect the evidence right after an end; `watched` is for the root of a task."""
        if key in self._handled:
            return
        self._handled.append(key)
        self._counts.update()
        alive_mono_s = self._sampled_mono_s if watched is None else watched.alive_mono_s
        facts = self._exit_facts(key, task, handle, agent, alive_mono_s=alive_mono_s)
        cause = diagnose(facts)
        if cause.spec.by_kernel:
            self._counts.claim(facts.group, alive_mono_s)
        now_mono_s, unix_s = time.monotonic(), time.time()
        started_unix_s = None if task is None else task.info.started_unix_s
        ran_s = 0.0 if started_unix_s is None else unix_s - started_unix_s
        cared_for = agent is not None or _is_kernel(task) or ran_s >= _LEAST_RUN_S
        question = None
        if _should_ask_systemd(facts, cause, cared_for=cared_for):
            alive_unix_s = unix_s - (now_mono_s - alive_mono_s)
            guards = facts.oom_daemons
            question = self.units.ask(facts.group, key.pid, alive_unix_s, guards=guards)
        on_gpu = task is not None and self.last_seen.used_gpu(task.key)
        on_gpu = on_gpu and may_be_card_fault(facts, cause)
        lost = self._recent_worker(key)
        until = [now_mono_s]
        until += [] if question is None else [question.until_mono_s]
        until += [now_mono_s + _GPU_WAIT_S] if on_gpu else []
        self._pending.append(
            _PendingExit(
                key=key,
                task=task,
                agent=agent,
                view=self._agent_state(key, task, agent, cause),
                worker=() if lost is None or lost.killed is None else (lost.killed,),
                facts=facts,
                mono_s=now_mono_s,
                unix_s=unix_s,
                ran_s=ran_s,
                known={} if task is None else self._process_fields(key, task),
                sample=self.last_seen.sample_of(task),
                question=question,
                gpu_read_mono_s=now_mono_s + _GPU_LATE_S if on_gpu else None,
                until_mono_s=max(until),
            )
        )

    def _agent_state(
        self, key: ProcessKey, task: Task | None, agent: Agent | None, cause: Cause
    ) -> AgentState | None:
        """The state of the agent, or of a launcher's worker that ended just before."""
        if agent is not None:
            if task is not None and task.key != key:
                killed = _killed_worker(key, cause) if cause.spec.by_kernel else None
                self._ended_workers[task.key] = _EndedWorker(agent.view, time.monotonic(), killed)
            return agent.view
        lost = self._recent_worker(key)
        return None if lost is None else lost.view

    def _recent_worker(self, key: ProcessKey) -> _EndedWorker | None:
        """The worker that the task lost within the last `_LAUNCHER_S` seconds."""
        lost = self._ended_workers.get(key)
        late = lost is None or time.monotonic() - lost.mono_s > _LAUNCHER_S
        return None if late else lost

    def _is_complete(self, end: _PendingExit, now_mono_s: float) -> bool:
        """Whether all evidence has arrived or the wait is over."""
        if now_mono_s >= end.until_mono_s:
            return True
        answered = end.question is None or end.question.over(now_mono_s)
        wanted, read = end.gpu_read_mono_s, self.last_seen.gpus_mono_s
        return answered and (wanted is None or (read is not None and read >= wanted))

    def _diagnose_exit(self, end: _PendingExit) -> Exit | None:
        """The exit with its cause; None: it is too unimportant for an entry."""
        task, agent = end.task, end.agent
        facts = end.facts
        if end.question is not None and end.question.answer is not None:
            facts = replace(facts, unit=end.question.answer)
        if end.gpu_read_mono_s is not None and task is not None:
            facts = replace(facts, card_fault=self.last_seen.card_faults.get(task.key))
        cause = diagnose(facts)
        if task is not None and task.key == end.key:
            self.on_end(task, cause)
        news = _exit_level(end, facts, cause)
        if news is None:
            return None
        about: dict[str, Any] = {}
        name = (agent.notebook if agent is not None else None) or f"process {end.key.pid}"
        if task is not None:
            about = task_fields(task.info, task.rss_bytes, end.view, end.mono_s)
            name = task.name
        elif agent is not None and agent.info is not None:  # its launcher's end was seen before
            about = task_fields(agent.info, None, end.view, end.mono_s)
            name = agent.notebook or agent.info.name
        entry = exit_entry(
            end.key,
            name,
            about.get("path"),
            cause=cause,
            evidence=[*collect_evidence(facts), *end.worker],
            rescue=_newest_rescue(end.view, facts),
            had_agent=end.view is not None,
            was_paused=facts.was_paused and cause.kind is CauseKind.KILLED,
            unix_s=end.unix_s,
            about=about | end.known | _context(facts, cause, end.sample),
            notable=news,
        )
        return Exit(task, cause, end.view, entry, end.mono_s, notable=news)

    def _exit_facts(
        self,
        key: ProcessKey,
        task: Task | None,
        handle: int | None,
        agent: Agent | None,
        *,
        alive_mono_s: float,
    ) -> ExitFacts:
        info = self.last_seen.infos.get(key)
        group = info.cgroup if info else task.info.cgroup if task is not None else None
        failed = agent is not None and agent.failed
        return self._evidence.collect(
            key,
            task,
            handle,
            group=group,
            alive_mono_s=alive_mono_s,
            root=task is not None and task.key == key,
            announced_end=agent is not None and agent.announced_end and not failed,
            failed=failed,
            device_ooms=sum(each.ooms or 0 for each in agent.view.allocators) if agent else 0,
            was_paused=self.was_paused(key),
            guard=guard_end(key, group),
            **self.last_seen.facts(task),
        )

    def _find_killed_workers(self, before: Task, now: Task, alive_mono_s: float) -> None:
        """Report workers that the kernel killed while their task runs on."""
        remaining = {member.key for member in now.members}
        ended = [
            m.key for m in before.members if m.key not in remaining and m.key not in self._handled
        ]
        if not ended:
            return
        self._counts.update()
        named = self._evidence.logged_pids()
        for key in ended:
            info = self.last_seen.infos.get(key)
            # Workers come and go by the hundred. Investigate only if the kernel has logged or
            # counted a kill.
            if info is None or not (key.pid in named or self._counts.rose_recently(info.cgroup)):
                continue
            facts = self._exit_facts(key, before, None, None, alive_mono_s=alive_mono_s)
            cause = diagnose(facts)
            own = any(word.pid == key.pid for word in facts.kernel)
            # Workers end all the time. Report this one only if its own group was hit since the last
            # sample, or if the kernel's log names it.
            if not own:
                if cause.kind is not CauseKind.GROUP_LIMIT or facts.wait_status not in (None, 9):
                    continue
                cause = Cause(CauseKind.GROUP_LIMIT, "killed by the kernel", Certainty.LIKELY)
            elif not (
                cause.spec.by_kernel or crashed(facts.wait_status) or facts.wait_status is None
            ):
                continue
            if cause.spec.by_kernel:
                self._counts.claim(info.cgroup, alive_mono_s)
            self._handled.append(key)
            agent = self.agents.get(key)
            view = None if agent is None else agent.view
            earlier = self._recent_worker(now.key)
            kept = view if view is not None or earlier is None else earlier.view
            self._ended_workers[now.key] = _EndedWorker(
                kept, time.monotonic(), _killed_worker(key, cause)
            )
            known = self._process_fields(key, before)
            known |= _context(facts, cause, self.last_seen.sample_of(before))
            self._exits.append(
                _worker_exit(now, key.pid, facts, cause=cause, view=view, known=known)
            )

    def _process_fields(self, key: ProcessKey, task: Task) -> dict[str, Any]:
        """Fields of the entry: growth in the task; for a worker its memory and the file it ran."""
        found: dict[str, Any] = {}
        grew, slope_bytes_per_s = self.last_seen.growth(task.key)
        if grew is not None:
            found["grew"] = list(growth_advice(grew, slope_bytes_per_s))
        info = self.last_seen.infos.get(key)
        for member in task.members:
            if member.key == key != task.key:
                found["rss_bytes"] = member.rss_bytes
                found["worker_path"] = None if info is None else info.notebook or info.script
        return found

    def _watched_task_of(self, key: ProcessKey) -> _Watched | None:
        found = (each for each in self._watched.values() if _has_member(each.task, key))
        return next(found, None)


def _has_member(task: Task, key: ProcessKey) -> bool:
    return any(member.key == key for member in task.members)


def _killed_worker(worker: ProcessKey, cause: Cause) -> Evidence:
    """Evidence that the worker was killed, for the exit of its launcher."""
    text = f"Before, its worker (process {worker.pid}) was {cause.text}."
    return Evidence("worker", text, cause.certainty)


def _is_kernel(task: Task | None) -> bool:
    return task is not None and task.kind in KERNELS


def _newest_rescue(view: AgentState | None, facts: ExitFacts) -> RescueRecord | None:
    return newer_rescue(view, facts.guard.rescue if facts.guard else None)


def may_be_card_fault(facts: ExitFacts, cause: Cause) -> bool:
    """Whether a fault of its GPU that is not read yet would be the cause instead."""
    unread = replace(facts, card_fault="a fault that is not read yet")
    return facts.card_fault is None and diagnose(unread).kind is not cause.kind


def _should_ask_systemd(facts: ExitFacts, cause: Cause, *, cared_for: bool) -> bool:
    """Whether to ask systemd about an exit: after a kill, or without a wait status."""
    if signal_of(facts.wait_status) in (signal.SIGKILL, signal.SIGTERM):
        return cause.certainty is not Certainty.EXACT
    unknown = facts.wait_status is None and not facts.announced_end
    return unknown and cared_for and cause.certainty is not Certainty.EXACT


def _exit_level(end: _PendingExit, facts: ExitFacts, cause: Cause) -> bool | None:
    agent, cared_for = end.agent, False
    if agent is not None:
        # The agent's bye comes from Python's exit, also with a status other than 0, as after
        # sys.exit(1).
        exited_normally = agent.announced_end and not agent.failed
        cared_for = not exited_normally or (agent.view.training and cause.spec.own)
    return journal_level(
        facts,
        cause,
        seen=end.task is not None,
        kernel=_is_kernel(end.task),
        age_s=end.ran_s,
        cared_for=cared_for,
    )


def _context(facts: ExitFacts, cause: Cause, sample: AssessedSample | None) -> dict[str, Any]:
    """Fields of the entry: memory holders in the last sample before the end, and the limit."""
    outlooks = {} if sample is None else sample.result.tasks
    growth = {key: outlook.trend_bytes_per_s for key, outlook in outlooks.items()}
    return exit_context(facts, cause, () if sample is None else sample.tasks, growth)


def _worker_exit(
    task: Task,
    pid: int,
    facts: ExitFacts,
    *,
    cause: Cause,
    view: AgentState | None,
    known: Mapping[str, Any],
) -> Exit:
    """The exit of a worker whose task runs on; reported for that task."""
    now_mono_s = time.monotonic()
    about = {} if view is None else task_fields(task.info, task.rss_bytes, view, now_mono_s)
    entry = worker_entry(
        task,
        pid,
        time.time(),
        cause,
        collect_evidence(facts),
        rescue=_newest_rescue(view, facts),
        about={**about, **known},
    )
    text = str(entry.data["text"])
    news = replace(cause, text=text.rstrip("."), news=True, worker=pid)
    return Exit(task, news, view, entry, now_mono_s)


def is_ending(pid: int, start_time: int, proc: str = "/proc") -> bool:
    """
    Whether a process is exiting, so that its exit status is not available yet.

    The kernel frees the memory first; the process then has neither a size nor a command line. This
    takes about 0.2 s per GB, and seconds on a busy machine.

    Args:
        pid: pid of the process.
        start_time: field 22 of its stat, because another process may have the pid by now.
        proc: mount point of the proc file system.

    Source: proc(5), field 9 of stat; kernel, include/linux/sched.h (PF_EXITING).
    """
    stat = process.read_stat(pid, proc)
    if stat is None or stat.start_ticks != start_time or stat.has_ended:
        return False
    return bool(stat.flags & _PF_EXITING)
