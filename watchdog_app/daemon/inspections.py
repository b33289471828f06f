"""
Inspections of trainings: thread dumps and allocation traces.

People request them, and the daemon does for a stalled training or one that exhausts memory. The
kernel provides all threads of a task; its agents provide Python's stacks and memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from typing import Any

from watchdog_app.base import codec
from watchdog_app.base.errors import RequestError
from watchdog_app.base.records import dataclass
from watchdog_app.base.threads import Worker
from watchdog_app.client import requests
from watchdog_app.client.jsonrpc import REFUSED
from watchdog_app.core.model.agent import (
    Frame,
    MemoryGrowth,
    ProcessThreads,
    ThreadDump,
    ThreadState,
)
from watchdog_app.core.model.decisions import Assessment, Incident, Stage
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import SPECS
from watchdog_app.core.model.tasks import name_with_pid
from watchdog_app.daemon.agents import Agent, Agents
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.pauses import Pauses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.diagnosis.stall_reasons import StallReason

_DUMP_TIMEOUT_S = 3.0  # an agent's own thread answers within milliseconds if it can run at all
_MOST_CHARS = 60_000  # of the frames in one dump: the dump must fit into a message after escaping
_MOST_AGENTS = 8
_MOST_OPEN = 64  # most open questions; each is kept until it is answered

_TRACE_S = 5.0  # duration of the daemon's own traces if enough time is left
_TRACE_SHARE = 0.5  # ... else this share of the time left
_LEAST_TRACE_S = 1.0
_TRACE_GRACE_S = 15.0  # added to the time limit: a machine short of memory is slow
_MOST_REMEMBERED = 256

# threads from the kernel, and time of the reading
KernelThreads = tuple[tuple[ProcessThreads, ...], float]


@dataclass(slots=True)
class _Question:
    """A question to the agents of a task, with their answers."""

    task: Task
    until_mono_s: float
    waiting: set[ProcessKey]  # agents that have not answered
    on_answered: Callable[[_Question], None]  # called once: all answered, or timeout
    stacks: dict[int, list[ThreadState]] = field(default_factory=dict)  # by pid
    growth: MemoryGrowth | None = None


@dataclass(kw_only=True, slots=True, eq=False)
class Inspections:
    """
    Questions to agents, and their answers.

    Args:
        agents: all agents.
        observer: provides the last sample and the engine.
        pauses: the pauses in force.
        worker: reads the threads' stacks. That blocks while their process is in exec (lock_trace in
            the kernel's fs/proc/base.c), and there may be hundreds of threads.
        on_growth: called with a task and its growing allocations.
        log: the daemon's log.
    """

    agents: Agents
    observer: Observer
    pauses: Pauses
    worker: Worker
    on_growth: Callable[[ProcessKey, MemoryGrowth], None]
    log: Log
    _open: dict[str, _Question] = field(default_factory=dict, init=False)
    _asked: int = field(default=0, init=False)
    # incident and task, the oldest first
    _traced: dict[tuple[str, ProcessKey], None] = field(default_factory=dict, init=False)

    def inspect(self, trace: bool) -> None:
        """
        Ask agents about the stalls and the growth in the last sample; call this after each sample.

        Args:
            trace: whether the configuration allows allocation traces.
        """
        sample, now_mono_s = self.observer.latest, time.monotonic()
        if sample is None:
            return
        for task in sample.tasks:
            if task.key in sample.result.stalled:
                with suppress(RequestError):  # too many questions are open
                    self.dump(task, now_mono_s, partial(self._report_stall, task.key))
        for incident in sample.result.incidents if trace else ():
            growing = self._growing_task(incident)
            if growing is not None:
                self.log.info("looking for what grows", task=growing.name, incident=incident.id)
                seconds = trace_s(sample.result.assessments.get(incident.resource))
                with suppress(RequestError):
                    self.trace(growing, seconds, now_mono_s, lambda _: None)

    def dump(self, task: Task, now_mono_s: float, done: Callable[[ThreadDump], None]) -> None:
        """
        Make a thread dump of a task; `done` gets it, usually within three seconds.

        Args:
            task: the task.
            now_mono_s: the current time.
            done: called once, in the loop.

        Raises:
            RequestError: too many questions are open.
        """
        agents = self.agents.connected_in(task)[:_MOST_AGENTS]
        on_answered = partial(self._read_threads, done)
        self._ask(
            task, agents, "agent.stacks", on_answered, until_mono_s=now_mono_s + _DUMP_TIMEOUT_S
        )

    def trace(
        self,
        task: Task,
        seconds: float,
        now_mono_s: float,
        done: Callable[[MemoryGrowth | None], None],
    ) -> None:
        """
        Trace the growth in a task; `done` gets None without an answer.

        Args:
            task: the growing task.
            seconds: duration of the trace.
            now_mono_s: the current time.
            done: called once, in the loop.

        Raises:
            RequestError: no agent in it trains, or too many questions are open.
        """
        agent = self._training_agent(task)
        if agent is None:
            raise RequestError(
                f"{name_with_pid(task)} holds no agent that trains now: what grows in "
                "it can only be seen from inside. See: watchdog help saving",
                REFUSED,
            )
        until_mono_s = now_mono_s + seconds + _TRACE_GRACE_S
        on_answered: Callable[[_Question], None] = lambda question: done(question.growth)  # noqa: E731
        self._ask(
            task, [agent], "agent.leaks", on_answered, until_mono_s=until_mono_s, seconds=seconds
        )

    def receive_stacks(self, agent: Agent, params: requests.Stacked) -> None:
        """
        Receive the stacks of an agent.

        Args:
            agent: the answering agent.
            params: its answer.
        """
        question = self._waiting_question(params.request, agent)
        if question is None:
            return
        question.stacks[agent.key.pid] = [
            ThreadState(
                each["native_id"],
                each["name"],
                frames=codec.decode(tuple[Frame, ...], each["frames"]),
                trains=each["trains"],
            )
            for each in params.values()["threads"]
        ]
        self._mark_answered(params.request, agent)

    def receive_growth(self, agent: Agent, params: requests.Leaked) -> None:
        """
        Receive the growth that an agent has traced; it may be a first part.

        Args:
            agent: the answering agent.
            params: its answer.
        """
        question = self._waiting_question(params.request, agent)
        if question is None:
            return
        found, key = codec.decode(MemoryGrowth, params.values()), question.task.key
        if found.lines or found.tensors:
            self.observer.call_engine(lambda engine: engine.add_memory_growth(key, found))
            self.on_growth(key, found)  # people may ask for it after the task has ended, too
        if not params.interim:
            question.growth = found
            self._mark_answered(params.request, agent)

    def expire(self, now_mono_s: float) -> None:
        """Collect thread dumps; close questions that were not answered in time."""
        self.worker.collect()
        for ident, question in list(self._open.items()):
            gone = all(self.agents.get(key) is None for key in question.waiting)
            if gone or now_mono_s >= question.until_mono_s:
                self._close(ident)

    def next_deadline_mono_s(self) -> float | None:
        """The time at which `expire` must be called next; None: no question is open."""
        return min((each.until_mono_s for each in self._open.values()), default=None)

    def reasons(self, key: ProcessKey, dump: ThreadDump) -> tuple[StallReason, ...]:
        """
        Reasons for a stall, from the task's dump and the last sample; the most likely first.

        Args:
            key: the task.
            dump: the dump of its threads.
        """
        from watchdog_app.core.diagnosis.stall_reasons import StallContext, stall_reasons

        paused_pids = frozenset(
            each.pid for pause in self.pauses.all() for each in pause.paused.keys
        )
        sample = self.observer.latest
        if sample is None:
            return stall_reasons(dump, StallContext(stopped_by_us=paused_pids))
        result = sample.result
        outlook = result.tasks.get(key)
        cpu = None if outlook is None else outlook.cpu_percent
        return stall_reasons(
            dump,
            StallContext(
                cores=0.0 if cpu is None else cpu / 100,
                card_fault=result.card_faults.get(key),
                stopped_by_us=paused_pids,
            ),
        )

    def _ask(
        self,
        task: Task,
        agents: Sequence[Agent],
        method: str,
        on_answered: Callable[[_Question], None],
        *,
        until_mono_s: float,
        **params: Any,
    ) -> None:
        if len(self._open) + self.worker.waiting >= _MOST_OPEN:
            message = "Too many wait for an answer of a training. Ask again in a minute."
            raise RequestError(message, REFUSED)
        self._asked += 1
        ident = f"{method}-{self._asked}"
        waiting = {agent.key for agent in agents}
        self._open[ident] = _Question(task, until_mono_s, waiting, on_answered)
        for agent in agents:
            self.agents.send(agent, method, {"request": ident, **params})
        if not agents:
            self._close(ident)

    def _waiting_question(self, ident: str, agent: Agent) -> _Question | None:
        """The question with this id, if this agent has not answered it."""
        question = self._open.get(ident)
        return question if question is not None and agent.key in question.waiting else None

    def _mark_answered(self, ident: str, agent: Agent) -> None:
        waiting = self._open[ident].waiting
        waiting.discard(agent.key)
        if not waiting:
            self._close(ident)

    def _close(self, ident: str) -> None:
        question = self._open.pop(ident)
        question.on_answered(question)

    def _read_threads(self, done: Callable[[ThreadDump], None], question: _Question) -> None:
        keys = tuple(member.key for member in question.task.members)
        self.worker.submit(
            partial(_dump_threads, keys),
            lambda seen, _: done(self._build_dump(question, seen or ((), time.monotonic()))),
        )

    def _build_dump(self, question: _Question, seen: KernelThreads) -> ThreadDump:
        """Merge the data of the kernel and of the agents into one dump."""
        dumped, seen_mono_s = seen
        asked = {agent.key.pid for agent in self.agents.connected_in(question.task)}
        left = _MOST_CHARS
        processes = []
        for process in dumped:
            stacks = question.stacks.get(process.pid, [])
            threads, left = _merge_threads(process.threads, stacks, left)
            processes.append(replace(process, threads=threads, agent=process.pid in asked))
        silent = {key.pid for key in question.waiting} & asked
        # Only the silence of the training agent has a meaning.
        view = self.agents.view_of(question.task)
        answered = None
        if question.stacks or silent:
            answered = not silent if view is None else view.key.pid not in silent
        if view is None or view.place is None or view.reported_mono_s is None:
            return ThreadDump(tuple(processes), answered, None if view is None else view.place)
        last_seen_s = max(0.0, seen_mono_s - view.reported_mono_s)
        return ThreadDump(tuple(processes), answered, view.place, last_seen_s)

    def _report_stall(self, key: ProcessKey, dump: ThreadDump) -> None:
        task = self.observer.task(key)
        if task is not None:
            self.observer.call_engine(lambda engine: engine.add_thread_dump(task, dump))

    def _growing_task(self, incident: Incident) -> Task | None:
        """
        The task that exhausts memory if its agent trains, once for each incident.

        Starts at the stage `warn`.
        """
        if incident.stage < Stage.WARN or not SPECS[incident.resource.kind].of_ram:
            return None
        for contributor in incident.contributors[:1]:
            task, about = self.observer.task(contributor.task), (incident.id, contributor.task)
            if task is None or about in self._traced or self._training_agent(task) is None:
                continue
            self._traced[about] = None
            while len(self._traced) > _MOST_REMEMBERED:
                del self._traced[next(iter(self._traced))]
            return task
        return None

    def _training_agent(self, task: Task) -> Agent | None:
        agents = self.agents.connected_in(task)
        return next((each for each in agents if each.view.training), None)


def trace_s(assessment: Assessment | None) -> float:
    """Duration of a trace: its answer must arrive before the resource is exhausted."""
    if assessment is None or assessment.forecast is None:
        return _TRACE_S
    return min(_TRACE_S, max(_LEAST_TRACE_S, _TRACE_SHARE * assessment.forecast.eta_s))


def _dump_threads(keys: Iterable[ProcessKey]) -> KernelThreads:
    # imported late, because it is rarely needed
    from watchdog_app.machine.sensors import thread_dump

    return thread_dump.dump(keys), time.monotonic()


def _merge_threads(
    seen: Iterable[ThreadState], stacks: Iterable[ThreadState], left: int
) -> tuple[tuple[ThreadState, ...], int]:
    """
    The kernel's threads with Python's names and stacks, then the threads that only Python knows.
    """
    found = {thread.tid: thread for thread in seen}
    alone = []
    for each in stacks:
        frames = []
        for frame in each.frames:
            left -= len(frame.file) + len(frame.function)
            if left < 0:
                break
            frames.append(frame)
        thread = found.get(each.tid)
        if thread is None:
            alone.append(replace(each, frames=tuple(frames)))
        else:
            found[each.tid] = replace(
                thread, name=each.name, frames=tuple(frames), trains=each.trains
            )
    return (*found.values(), *alone), left
