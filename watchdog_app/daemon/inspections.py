"""
What trainings are asked from inside: what each thread does, and what grows. On request of a
person, and by ourselves where one stands still or makes memory run out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from watchdog_app.base.errors import RequestError
from watchdog_app.base.linux.process import innermost_pid
from watchdog_app.base.text.plain import clean
from watchdog_app.base.threads import Worker
from watchdog_app.client import requests
from watchdog_app.client.jsonrpc import REFUSED
from watchdog_app.core.explain.advice import about_growth
from watchdog_app.core.model.agent import MemoryGrowth, ProcessThreads, ThreadDump
from watchdog_app.core.model.history import SwapTraffic
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.tasks import find
from watchdog_app.daemon import allocation_traces, thread_dumps
from watchdog_app.daemon.agents import Agent, Agents
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.pace import Pace
from watchdog_app.daemon.pauses import Pauses
from watchdog_app.daemon.rpc import Connection, Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.diagnosis.stall_reasons import StallReason


class Inspections:
    """
    Questions to agents and their answers.

    `table` has their methods by name. `grew` takes what grows in a task.
    """

    def __init__(
        self,
        agents: Agents,
        send: Callable[[Agent, str, Mapping[str, Any]], None],
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
        self._looks = Worker(wake)
        self._stacks = thread_dumps.Stacks(agents, send, self._look_at)
        self._traces = allocation_traces.Traces(agents, send, self._grew)
        self.table: Mapping[str, Callable[[Connection, Any, Reply], dict[str, Any] | None]] = {
            "task.stacks": self._task_stacks,
            "task.leaks": self._task_leaks,
            "agent.stacked": self._stacked,
            "agent.leaked": self._traced,
            "agent.notebook": self._notebook,
        }

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

    def look(self) -> None:
        """After each look at the machine: ask about what it has shown."""
        look = self._observer.latest
        if look is None:
            return
        for task in look.tasks:
            if task.key in look.result.stalled:
                self._look_into_stall(task.key)
        if not (self._pace.settings.trace and look.result.incidents):
            return
        for task, incident in self._traces.worth_a_look(look.result.incidents, look.tasks):
            self._log.info("what grows is looked for", task=task.name, incident=incident.id)
            assessment = look.result.assessments.get(incident.resource)
            self._traces.ask(task, allocation_traces.warned_s(assessment), time.monotonic())

    def expire(self, now_mono_s: float) -> None:
        """Take in what was seen of threads; end what was not answered in time."""
        self._looks.collect()
        self._stacks.expire(now_mono_s)
        self._traces.expire(now_mono_s)

    def next_deadline_mono_s(self) -> float | None:
        """When `expire` has something to do."""
        due = (self._stacks.next_deadline_mono_s(), self._traces.next_deadline_mono_s())
        return min((each for each in due if each is not None), default=None)

    def _look_at(self, keys: Iterable[ProcessKey], looked: thread_dumps.Looked) -> None:
        # Beside the loop: who reads where a thread stands waits until its process's exec is over
        # (lock_trace in the kernel's fs/proc/base.c), and there may be hundreds of threads.
        def done(
            seen: tuple[tuple[ProcessThreads, ...], float] | None, _: Exception | None
        ) -> None:
            looked(*(seen or ((), time.monotonic())))

        self._looks.submit(partial(_look_at, tuple(keys)), done)

    def _look_into_stall(self, key: ProcessKey) -> None:
        def seen(picture: ThreadDump) -> None:
            now = next((each for each in self._observer.tasks() if each.key == key), None)
            if now is not None:
                self._observer.ask(lambda engine: engine.threads_seen(now, picture))

        task = next(each for each in self._observer.tasks() if each.key == key)
        self._stacks.ask(task, time.monotonic(), seen, with_faults=True)

    def _grew(self, key: ProcessKey, growth: MemoryGrowth) -> None:
        self._observer.ask(lambda engine: engine.growth_seen(key, growth))
        self._kept(key, growth)  # it is asked for when the task has ended, too

    def _suspects(self, key: ProcessKey, picture: ThreadDump) -> tuple[StallReason, ...]:
        from watchdog_app.core.diagnosis.stall_reasons import StallContext, stall_reasons

        held = frozenset(each.pid for pause in self._pauses.all() for each in pause.paused.keys)
        look = self._observer.latest
        if look is None:
            return stall_reasons(picture, StallContext(stopped_by_us=held))
        result = look.result
        outlook = result.tasks.get(key)
        cpu = None if outlook is None else outlook.cpu_percent
        return stall_reasons(
            picture,
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

        def done(picture: ThreadDump) -> None:
            found = self._suspects(task.key, picture)
            about = {"task": task.key.pid, "name": task.name}
            reply.result({**about, **thread_dumps.to_json(picture, found)})

        self._stacks.ask(task, time.monotonic(), done)

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
            reply.result({**about, **allocation_traces.to_json(growth), "advice": advice})

        self._traces.ask(task, params.seconds, time.monotonic(), done)

    # What agents say

    def _stacked(
        self, connection: Connection, params: requests.Stacked, _: Reply
    ) -> dict[str, Any]:
        self._stacks.stacked(self._agents.of(connection), params, time.monotonic())
        return {}

    def _traced(self, connection: Connection, params: requests.Leaked, _: Reply) -> dict[str, Any]:
        self._traces.traced(self._agents.of(connection), params)
        return {}


def _look_at(keys: Iterable[ProcessKey]) -> tuple[tuple[ProcessThreads, ...], float]:
    from watchdog_app.machine.sensors import thread_dump  # asked for seldom

    return thread_dump.dump(keys), time.monotonic()
