"""
What trainings are asked: what each thread does (thread dump), and what grows (allocation trace).

People ask, and the daemon itself where a training stands still or makes memory run out. The kernel
tells of all threads of a task, its agents tell of Python's stacks and of Python's memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from watchdog_app.base import codec
from watchdog_app.base.errors import RequestError
from watchdog_app.base.linux.process import innermost_pid
from watchdog_app.base.text.plain import clean
from watchdog_app.base.threads import Worker
from watchdog_app.client import requests
from watchdog_app.client.jsonrpc import REFUSED
from watchdog_app.core.explain.advice import about_growth
from watchdog_app.core.model.agent import (
    Frame,
    MemoryGrowth,
    ProcessThreads,
    ThreadDump,
    ThreadState,
)
from watchdog_app.core.model.decisions import Assessment, Incident, Stage
from watchdog_app.core.model.history import SwapTraffic
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import SPECS
from watchdog_app.core.model.tasks import find, named
from watchdog_app.daemon.agents import Agent, Agents, record
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.pace import Pace
from watchdog_app.daemon.pauses import Pauses
from watchdog_app.daemon.rpc import Connection, Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.diagnosis.stall_reasons import StallReason

_DUMP_S = 3.0  # an agent's own thread runs within milliseconds where it can run at all
_MOST_CHARS = 60_000  # of the frames of one dump: it has to fit into a message, escaped
_MOST_AGENTS = 8
_MOST_ASKING = 16  # for one dump: each answer is made in the loop

_TRACE_S = 5.0  # by ourselves, where there is so much time
_TRACE_SHARE = 0.5  # of the time that is left, else
_LEAST_TRACE_S = 1.0
_GRACE_S = 15.0  # beyond the time that was asked for: a machine short of memory is slow
_MOST_TRACES = 64
_MOST_REMEMBERED = 256

Seen = tuple[tuple[ProcessThreads, ...], float]  # what the kernel tells, and when


@dataclass(slots=True)
class _DumpRequest:
    task: Task
    until_mono_s: float
    done: list[Callable[[ThreadDump], None]]  # of all who have asked meanwhile
    waiting: set[ProcessKey]  # agents that have not answered
    stacks: dict[int, list[ThreadState]] = field(default_factory=dict)  # by pid
    ending: bool = False  # the kernel is asked


class ThreadDumps:
    """
    The dumps that are being made: of each task one, for whoever asks meanwhile.

    Args:
        agents: those there are.
        worker: reads where threads stand: that waits until an exec of their process is over
            (lock_trace in the kernel's fs/proc/base.c), and there may be hundreds of threads.
    """

    def __init__(self, agents: Agents, worker: Worker) -> None:
        self._agents = agents
        self._worker = worker
        self._open: dict[str, _DumpRequest] = {}
        self._issued = 0

    def ask(self, task: Task, now_mono_s: float, done: Callable[[ThreadDump], None]) -> None:
        """
        Make a dump of a task; `done` gets it, within three seconds where it can be looked at.

        Raises:
            RequestError: too many are waiting for the same dump.
        """
        request = next((each for each in self._open.values() if each.task.key == task.key), None)
        if request is not None:
            if len(request.done) >= _MOST_ASKING:
                raise RequestError(
                    f"{named(task)} is being looked at for {_MOST_ASKING} others that have "
                    "asked. Ask again in a second.",
                    REFUSED,
                )
            request.done.append(done)
            return
        self._issued += 1
        ident = f"stacks-{self._issued}"
        agents = self._agents.within(task)[:_MOST_AGENTS]
        waiting = {agent.key for agent in agents}
        request = _DumpRequest(task, now_mono_s + _DUMP_S, [done], waiting)
        self._open[ident] = request
        for agent in agents:
            self._agents.send(agent, "agent.stacks", {"request": ident})
        if not agents:
            self._end(ident, request)

    def stacked(self, agent: Agent, params: requests.Stacked) -> None:
        """Take in the stacks that an agent tells."""
        request = self._open.get(params.request)
        if request is None or request.ending or agent.key not in request.waiting:
            return
        request.stacks[agent.key.pid] = [
            ThreadState(
                each["native_id"],
                each["name"],
                frames=codec.decode(tuple[Frame, ...], each["frames"]),
                trains=each["trains"],
            )
            for each in params.values()["threads"]
        ]
        request.waiting.discard(agent.key)
        if not request.waiting:
            self._end(params.request, request)

    def expire(self, now_mono_s: float) -> None:
        """End what was not answered in time."""
        for ident, request in list(self._open.items()):
            if not request.ending and now_mono_s >= request.until_mono_s:
                self._end(ident, request)

    def next_deadline_mono_s(self) -> float | None:
        """When `expire` has something to do."""
        due = (each.until_mono_s for each in self._open.values() if not each.ending)
        return min(due, default=None)

    def _end(self, ident: str, request: _DumpRequest) -> None:
        request.ending = True
        keys = tuple(member.key for member in request.task.members)
        self._worker.submit(partial(_seen, keys), partial(self._made, ident, request))

    def _made(
        self, ident: str, request: _DumpRequest, seen: Seen | None, _: Exception | None
    ) -> None:
        del self._open[ident]
        looks, now_mono_s = seen or ((), time.monotonic())
        asked = {agent.key.pid for agent in self._agents.within(request.task)}
        left = _MOST_CHARS
        processes = []
        for look in looks:
            threads, left = _merged(look.threads, request.stacks.get(look.pid, []), left)
            processes.append(replace(look, threads=threads, agent=look.pid in asked))
        silent = {key.pid for key in request.waiting} & asked
        # The agent that trains is the one whose silence says something.
        view = self._agents.view_of(request.task)
        answered = None
        if request.stacks or silent:
            answered = not silent if view is None else view.key.pid not in silent
        place, seen_s = None if view is None else view.place, None
        if view is not None and place is not None and view.reported_mono_s is not None:
            seen_s = max(0.0, now_mono_s - view.reported_mono_s)
        dump = ThreadDump(tuple(processes), answered, place, seen_s)
        for done in request.done:
            done(dump)


def _seen(keys: Iterable[ProcessKey]) -> Seen:
    from watchdog_app.machine.sensors import thread_dump  # asked for seldom

    return thread_dump.dump(keys), time.monotonic()


def _merged(
    seen: Iterable[ThreadState], stacks: Iterable[ThreadState], left: int
) -> tuple[tuple[ThreadState, ...], int]:
    """The kernel's threads with Python's names and stacks; those that only Python knows behind."""
    found = {look.tid: look for look in seen}
    alone = []
    for each in stacks:
        frames = []
        for frame in each.frames:
            left -= len(frame.file) + len(frame.function)
            if left < 0:
                break
            frames.append(frame)
        look = found.get(each.tid)
        if look is None:
            alone.append(replace(each, frames=tuple(frames)))
        else:
            found[each.tid] = replace(
                look, name=each.name, frames=tuple(frames), trains=each.trains
            )
    return (*found.values(), *alone), left


@dataclass(slots=True)
class _TraceRequest:
    task: ProcessKey
    agent: ProcessKey
    until_mono_s: float
    done: Callable[[MemoryGrowth | None], None]  # None: no answer came


class AllocationTraces:
    """
    The traces that are under way.

    Args:
        agents: those there are.
        found: is told what grows in a task, also before the answer is complete.
    """

    def __init__(self, agents: Agents, found: Callable[[ProcessKey, MemoryGrowth], None]) -> None:
        self._agents = agents
        self._found = found
        self._open: dict[str, _TraceRequest] = {}
        self._issued = 0
        self._looked: dict[tuple[str, ProcessKey], None] = {}  # incident, task; oldest first

    def ask(
        self,
        task: Task,
        seconds: float,
        now_mono_s: float,
        done: Callable[[MemoryGrowth | None], None] = lambda _: None,
    ) -> None:
        """
        Look for what grows in a task for so many seconds.

        Raises:
            RequestError: it has no agent that trains.
        """
        agent = self._trains(task)
        if agent is None:
            raise RequestError(
                f"{named(task)} holds no agent that trains now: what grows in "
                "it can only be seen from inside. See: watchdog agent",
                REFUSED,
            )
        self._issued += 1
        ident = f"trace-{self._issued}"
        until_mono_s = now_mono_s + seconds + _GRACE_S
        self._open[ident] = _TraceRequest(task.key, agent.key, until_mono_s, done)
        self._agents.send(agent, "agent.leaks", {"request": ident, "seconds": seconds})

    @property
    def crowded(self) -> bool:
        """As many as may be wait for an answer; each is kept until it comes."""
        return len(self._open) >= _MOST_TRACES

    def due(
        self, incidents: Iterable[Incident], tasks: Iterable[Task]
    ) -> list[tuple[Task, Incident]]:
        """
        Tasks that make memory run out, each with the incident; each pair once.

        From the stage `warn` on, where the task has an agent that trains.
        """
        everyone = {task.key: task for task in tasks}
        found = []
        for incident in incidents:
            if incident.stage < Stage.WARN or not SPECS[incident.resource.kind].of_ram:
                continue
            for contributor in incident.contributors[:1]:
                task, about = everyone.get(contributor.task), (incident.id, contributor.task)
                if task is None or about in self._looked or self._trains(task) is None:
                    continue
                self._looked[about] = None
                while len(self._looked) > _MOST_REMEMBERED:
                    del self._looked[next(iter(self._looked))]
                found.append((task, incident))
        return found

    def traced(self, agent: Agent, params: requests.Leaked) -> None:
        """Take in what an agent has seen growing."""
        request = self._open.get(params.request)
        if request is None or request.agent != agent.key:
            return
        found = record(MemoryGrowth, params)
        if found.lines or found.tensors:
            self._found(request.task, found)
        if not params.interim:
            del self._open[params.request]
            request.done(found)

    def expire(self, now_mono_s: float) -> None:
        """End what was not answered in time."""
        for ident, request in list(self._open.items()):
            if now_mono_s >= request.until_mono_s or self._agents.get(request.agent) is None:
                del self._open[ident]
                request.done(None)

    def next_deadline_mono_s(self) -> float | None:
        """When `expire` has something to do."""
        return min((request.until_mono_s for request in self._open.values()), default=None)

    def _trains(self, task: Task) -> Agent | None:
        agents = self._agents.within(task)
        return next((each for each in agents if each.view.training), None)


def trace_s(assessment: Assessment | None) -> float:
    """For how long to trace where a resource runs out: the answer is to come before its end."""
    if assessment is None or assessment.forecast is None:
        return _TRACE_S
    return min(_TRACE_S, max(_LEAST_TRACE_S, _TRACE_SHARE * assessment.forecast.eta_s))


class Inspections:
    """
    Questions to agents and their answers.

    `table` has their methods by name. `grew` takes what grows in a task.
    """

    def __init__(
        self,
        agents: Agents,
        *,
        observer: Observer,
        pace: Pace,
        pauses: Pauses,
        wake: Callable[[], None],
        grew: Callable[[ProcessKey, MemoryGrowth], None],
        log: Log,
    ) -> None:
        self._agents = agents
        self._kept = grew
        self._pace = pace
        self._observer = observer
        self._pauses = pauses
        self._log = log
        self._worker = Worker(wake)
        self._dumps = ThreadDumps(agents, self._worker)
        self._traces = AllocationTraces(agents, self._grew)
        self.table: Mapping[str, Callable[[Connection, Any, Reply], dict[str, Any] | None]] = {
            "task.stacks": self._task_stacks,
            "task.leaks": self._task_leaks,
            "agent.stacked": self._stacked,
            "agent.leaked": self._leaked,
            "agent.notebook": self._notebook,
        }

    def look(self) -> None:
        """After each look at the machine: ask about what it has shown."""
        look, now_mono_s = self._observer.latest, time.monotonic()
        if look is None:
            return
        for task in look.tasks:
            if task.key in look.result.stalled:
                self._dumps.ask(task, now_mono_s, partial(self._stalled, task.key))
        if not (self._pace.settings.trace and look.result.incidents):
            return
        for task, incident in self._traces.due(look.result.incidents, look.tasks):
            self._log.info("what grows is looked for", task=task.name, incident=incident.id)
            assessment = look.result.assessments.get(incident.resource)
            self._traces.ask(task, trace_s(assessment), now_mono_s)

    def expire(self, now_mono_s: float) -> None:
        """Take in what was seen of threads; end what was not answered in time."""
        self._worker.collect()
        self._dumps.expire(now_mono_s)
        self._traces.expire(now_mono_s)

    def next_deadline_mono_s(self) -> float | None:
        """When `expire` has something to do."""
        due = (self._dumps.next_deadline_mono_s(), self._traces.next_deadline_mono_s())
        return min((each for each in due if each is not None), default=None)

    def _stalled(self, key: ProcessKey, dump: ThreadDump) -> None:
        task = next((each for each in self._observer.tasks() if each.key == key), None)
        if task is not None:
            self._observer.ask(lambda engine: engine.threads_seen(task, dump))

    def _grew(self, key: ProcessKey, growth: MemoryGrowth) -> None:
        self._observer.ask(lambda engine: engine.growth_seen(key, growth))
        self._kept(key, growth)  # it is asked for when the task has ended, too

    def _reasons(self, key: ProcessKey, dump: ThreadDump) -> tuple[StallReason, ...]:
        from watchdog_app.core.diagnosis.stall_reasons import StallContext, stall_reasons

        held = frozenset(each.pid for pause in self._pauses.all() for each in pause.paused.keys)
        look = self._observer.latest
        if look is None:
            return stall_reasons(dump, StallContext(stopped_by_us=held))
        result = look.result
        outlook = result.tasks.get(key)
        cpu = None if outlook is None else outlook.cpu_percent
        return stall_reasons(
            dump,
            StallContext(
                cores=0.0 if cpu is None else cpu / 100,
                swap=SwapTraffic.of(result.swap_in_bytes_per_s, result.swap_out_bytes_per_s),
                card_fault=result.card_faults.get(key),
                stopped_by_us=held,
            ),
        )

    # What people ask

    def _task_stacks(self, _: Connection, params: requests.DumpStacks, reply: Reply) -> None:
        task = find(params.task, self._observer.tasks())

        def done(dump: ThreadDump) -> None:
            reasons = [
                {
                    "kind": each.why.value,
                    "text": each.text,
                    "facts": list(each.reasons),
                    "remedy": each.remedy,
                }
                for each in self._reasons(task.key, dump)
            ]
            about = {"task": task.key.pid, "name": task.name}
            reply.result({**about, **codec.encode(dump), "reasons": reasons})

        self._dumps.ask(task, time.monotonic(), done)

    def _task_leaks(self, _: Connection, params: requests.FindLeaks, reply: Reply) -> None:
        task = find(params.task, self._observer.tasks())
        if self._traces.crowded:
            raise RequestError("Too many traces are being made. Ask again in a minute.", REFUSED)

        def done(growth: MemoryGrowth | None) -> None:
            if growth is None:
                reply.error(
                    REFUSED,
                    f"{clean(task.name)} did not answer: it has ended, or its Python code gets no "
                    f"turn. See: watchdog stacks {task.key.pid}",
                )
                return
            about = {"task": task.key.pid, "name": task.name}
            advice = list(about_growth(growth))
            reply.result({**about, **codec.encode(growth), "advice": advice})

        self._traces.ask(task, params.seconds, time.monotonic(), done)

    # What agents say

    def _stacked(
        self, connection: Connection, params: requests.Stacked, _: Reply
    ) -> dict[str, Any]:
        self._dumps.stacked(self._agents.of(connection), params)
        return {}

    def _leaked(self, connection: Connection, params: requests.Leaked, _: Reply) -> dict[str, Any]:
        self._traces.traced(self._agents.of(connection), params)
        return {}

    def _notebook(
        self, connection: Connection, params: requests.AgentNotebook, _: Reply
    ) -> dict[str, Any]:
        pid = params.pid
        # On Linux the kernel names everybody who is in our /proc.
        peer = connection.peer.pid
        unknown = peer is None and sys.platform != "linux"
        if not unknown and (peer is None or pid not in (peer, innermost_pid(peer))):
            raise RequestError(f"You are process {peer}, not {pid}.", REFUSED)
        key = ProcessKey(peer or pid, params.start_time)
        self._observer.kernels.hear(key, params.notebook)
        self._pace.look_soon()
        return {}
