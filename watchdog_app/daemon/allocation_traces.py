"""
Asking agents what grows: which lines, which tensors. On request, and once when a warning is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from watchdog_app.base.errors import RequestError
from watchdog_app.client import requests
from watchdog_app.client.jsonrpc import REFUSED
from watchdog_app.core.model.agent import MemoryGrowth
from watchdog_app.core.model.decisions import Assessment, Incident, Stage
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import SPECS
from watchdog_app.core.model.tasks import named
from watchdog_app.daemon import agent_messages
from watchdog_app.daemon.agents import Agent, Agents

_WARNED_S = 5.0  # by ourselves, where there is so much time
_WARNED_SHARE = 0.5  # of the time that is left, else
_LEAST_S = 1.0
_GRACE_S = 15.0  # beyond the time that was asked for: a machine short of memory is slow
_MOST_OPEN = 64
_MOST_REMEMBERED = 256

Done = Callable[[MemoryGrowth | None], None]  # None: no answer came


@dataclass(slots=True)
class _Request:
    task: ProcessKey
    agent: ProcessKey
    until_mono_s: float
    done: Done


class Traces:
    """
    The searches that are under way.

    Args:
        agents: those there are.
        send: a notification to one of them.
        found: is told what grows in a task, also before the answer is complete.
    """

    def __init__(
        self,
        agents: Agents,
        send: Callable[[Agent, str, Mapping[str, Any]], None],
        found: Callable[[ProcessKey, MemoryGrowth], None],
    ) -> None:
        self._agents = agents
        self._send = send
        self._found = found
        self._open: dict[str, _Request] = {}
        self._issued = 0
        self._looked: dict[tuple[str, ProcessKey], None] = {}  # incident, task; oldest first

    def ask(
        self, task: Task, seconds: float, now_mono_s: float, done: Done = lambda _: None
    ) -> None:
        """
        Look for what grows in a task for so many seconds.

        Raises:
            RequestError: it has no agent that trains.
        """
        agents = self._agents.within({member.key for member in task.members})
        agent = next((each for each in agents if each.view.training), None)
        if agent is None:
            raise RequestError(
                f"{named(task)} holds no agent that trains now: what grows in "
                "it can only be seen from inside. See: watchdog agent",
                REFUSED,
            )
        self._issued += 1
        ident = f"trace-{self._issued}"
        self._open[ident] = _Request(task.key, agent.key, now_mono_s + seconds + _GRACE_S, done)
        self._send(agent, "agent.leaks", {"request": ident, "seconds": seconds})

    @property
    def crowded(self) -> bool:
        """As many as may be wait for an answer; each is kept until it comes."""
        return len(self._open) >= _MOST_OPEN

    def worth_a_look(
        self, incidents: Iterable[Incident], tasks: Iterable[Task]
    ) -> list[tuple[Task, Incident]]:
        """
        Tasks that make memory run out and were not looked into on that account, each with the
        incident. From the stage `warn` on; those are looked into once an incident.
        """
        everyone = {task.key: task for task in tasks}
        found = []
        for incident in incidents:
            if incident.stage < Stage.WARN or not SPECS[incident.resource.kind].of_ram:
                continue
            for contributor in incident.contributors[:1]:
                task, about = everyone.get(contributor.task), (incident.id, contributor.task)
                if task is None or about in self._looked:
                    continue
                agents = self._agents.within({member.key for member in task.members})
                if any(agent.view.training for agent in agents):
                    self._looked[about] = None
                    while len(self._looked) > _MOST_REMEMBERED:
                        del self._looked[next(iter(self._looked))]
                    found.append((task, incident))
        return found

    def traced(self, agent: Agent, params: requests.Leaked) -> None:
        """Take in what an agent has seen growing."""
        ident = params.request
        found = agent_messages.growth(params)
        request = self._open.get(ident)
        if request is None or request.agent != agent.key:
            return
        if found.lines or found.tensors:
            self._found(request.task, found)
        if not params.interim:
            del self._open[ident]
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


def warned_s(assessment: Assessment | None) -> float:
    """For how long to look where a resource runs out: the answer is to come before its end."""
    if assessment is None or assessment.forecast is None:
        return _WARNED_S
    return min(_WARNED_S, max(_LEAST_S, _WARNED_SHARE * assessment.forecast.eta_s))


def to_json(growth: MemoryGrowth) -> dict[str, Any]:
    """What grows, as in the answer to `task.leaks`."""
    return {
        "seconds": growth.seconds,
        "steps": growth.steps,
        "refused": growth.refused,
        "complete": growth.complete,
        "tensors_counted": not growth.unlooked,
        "cut_short": growth.early,
        "lines": [
            {
                "file": each.file,
                "line": each.line,
                "own": each.own,
                "bytes": each.bytes,
                "bytes_per_step": each.bytes_per_step,
            }
            for each in growth.lines
        ],
        "tensors": [
            {"type": each.type, "shape": list(each.shape), "more": each.more}
            for each in growth.tensors
        ],
    }
