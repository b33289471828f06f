"""Requests to agents for a rescue, and their results: saved, failed, or not answered in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import field
from functools import partial
from typing import Any

from watchdog_app.base.records import dataclass
from watchdog_app.base.text.quantities import format_bytes, format_duration
from watchdog_app.core.model import status as records
from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.daemon.agents import Agent, Agents
from watchdog_app.daemon.log import Log

LEAST_DEADLINE_S = 5.0
MOST_DEADLINE_S = 600.0
_DEFAULT_DEADLINE_S = 60.0  # for an agent that has not measured a save
_STARTING_S = 120.0  # the framework and the data may need this long to start
_ADD_AGENT = "How to add one: watchdog help saving"
MOST_FOLLOWERS = 1000  # limit of people's requests for one save; each is kept until it ends
_FORGET_NEAR_S = 120.0  # a task that needed no save for this long is no longer in danger
_DEADLINE_FACTOR = 10.0  # under memory pressure a save may take this much longer than measured


@dataclass(slots=True)
class RescueRequest:
    """A request to one agent, and its state."""

    id: str
    task: ProcessKey
    name: str
    agent: ProcessKey
    asked_mono_s: float
    until_mono_s: float
    status: str = "requested"  # later "done" or "failed"
    accepted: bool = False
    rescue: RescueRecord | None = None
    detail: str = ""
    remedy: str | None = None
    followers: list[Callable[[RescueRequest], None]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The request as an entry of the answer to `task.checkpoint`."""
        return {
            "task": self.task.pid,
            "name": self.name,
            "status": self.status,
            "detail": f"{self.detail} {self.remedy}" if self.remedy else self.detail,
            "rescue": None
            if self.rescue is None
            else records.Rescue.from_object(self.rescue).to_json(),
        }


class Checkpoints:
    """
    The open requests, at most one per agent: a second requester joins the first request.

    Args:
        agents: all agents.
        log: the daemon's log.
    """

    def __init__(self, agents: Agents, log: Log) -> None:
        self.agents = agents
        self._log = log
        self._open: dict[str, RescueRequest] = {}
        self._near: dict[ProcessKey, float] = {}  # agents in danger: time of the last request

    def request(
        self,
        task: Task,
        id_: str,
        reason: str,
        now_mono_s: float,
        *,
        agent_pid: int | None = None,
        deadline_s: float | None = None,
        follower: Callable[[RescueRequest], None] | None = None,
    ) -> list[RescueRequest]:
        """
        Ask every training agent of a task for a rescue.

        Args:
            id_: id of the first request; those to further agents get a number appended.
            agent_pid: ask only this agent; None: all of the task.
            deadline_s: time limit; None: derived from the measured duration of a save.
            follower: called once for each request when it has ended.

        Returns:
            One request per agent; empty if the task has no agent that can save.
        """
        found = []
        agents = self.agents.connected_in(task)
        if agent_pid is not None:
            agents = [agent for agent in agents if agent.key.pid == agent_pid]
        for number, agent in enumerate(agents):
            self._near[agent.key] = now_mono_s
            self.agents.out_of_process.ask_every_batch(agent.key, True)
            under_way = next((r for r in self._open.values() if r.agent == agent.key), None)
            if under_way is None:
                rescue_id = id_ if number == 0 else f"{id_}.{number}"
                wait_s = deadline_s if deadline_s is not None else save_deadline_s(agent)
                under_way = RescueRequest(
                    rescue_id, task.key, task.name, agent.key, now_mono_s, now_mono_s + wait_s
                )
                self._open[rescue_id] = under_way
                asked = {"request": rescue_id, "reason": reason, "deadline_s": wait_s}
                self.agents.send(agent, "agent.checkpoint", asked)
            if follower is not None:
                under_way.followers.append(follower)
            found.append(under_way)
        return found

    def is_full(self, task: Task) -> bool:
        """Whether the maximum number of followers waits for a rescue of this task."""
        keys = {member.key for member in task.members}
        return any(
            rescue.agent in keys and len(rescue.followers) >= MOST_FOLLOWERS
            for rescue in self._open.values()
        )

    def accepted(self, id_: str, agent: Agent) -> None:
        """
        Record that the agent has received a request or started to save.

        Ignores requests to other agents.

        Args:
            id_: the request.
            agent: the reporting agent.
        """
        for rescue in self._open_requests(id_, agent):
            rescue.accepted = True

    def saved(self, id_: str | None, agent: Agent, record: RescueRecord) -> None:
        """
        Record a complete rescue, also one that was not requested.

        Args:
            id_: the request; None: the agent saved without a request.
            agent: the agent that saved.
            record: the rescue.
        """
        for rescue in self._open_requests(id_, agent):
            rescue.rescue = record
            self._end(
                rescue,
                "done",
                f"Step {record.step} saved: {format_bytes(record.bytes)} "
                f"in {format_duration(record.seconds)}.",
            )

    def failed(self, id_: str | None, agent: Agent, error: str, remedy: str | None) -> None:
        """
        Record that the agent could not save.

        Args:
            id_: the request; None: the agent tried to save without a request.
            agent: the agent that failed.
            error: the reason.
            remedy: advice; None: unknown.
        """
        for rescue in self._open_requests(id_, agent):
            rescue.remedy = remedy
            self._end(rescue, "failed", error)

    def agent_ended(self, agent: ProcessKey, detail: str) -> None:
        """
        Fail the open requests of an agent that has ended.

        Args:
            agent: its process.
            detail: the reason, for the requesters.
        """
        for rescue in [r for r in self._open.values() if r.agent == agent]:
            self._end(rescue, "failed", detail)

    def copy_stopped(self, task: Task) -> None:
        """
        Copy the published state of a stopped task's trainings from outside.

        This saves trainings that had no time to answer. A training that saved itself just before
        has published nothing newer and keeps its rescue.
        """
        for agent in self.agents.connected_in(task):
            self.agents.out_of_process.copy(agent.key, partial(self._copy_ended, agent))

    def _copy_ended(self, agent: Agent, found: dict[str, Any]) -> None:
        error = found.get("error")
        if error is not None:
            self._log.info("not copied from outside", pid=agent.key.pid, why=error)
            return
        record = self.agents.record_rescue(agent, found, time.monotonic())
        self._log.info("a rescue was copied from outside", pid=agent.key.pid, path=record.path)
        self.saved(None, agent, record)

    def expire(self, now_mono_s: float) -> None:
        """Fail the requests that were not answered in time."""
        for key in [key for key, seen in self._near.items() if now_mono_s - seen > _FORGET_NEAR_S]:
            del self._near[key]
            self.agents.out_of_process.ask_every_batch(key, False)
        for key in {rescue.agent for rescue in self._open.values()} - set(self.agents.keys()):
            self.agent_ended(key, "The training has ended before it could save.")
        for rescue in [r for r in self._open.values() if now_mono_s >= r.until_mono_s]:
            waited = format_duration(rescue.until_mono_s - rescue.asked_mono_s)
            if rescue.accepted:
                detail = f"The agent began to save and has not ended within {waited}."
            else:
                detail = (
                    f"The agent did not answer within {waited}: no step has ended since. It saves "
                    f"when one ends. See where it stands: watchdog stacks {rescue.agent.pid}"
                )
            self._end(rescue, "failed", detail)

    def next_deadline_mono_s(self) -> float | None:
        """The time at which `expire` must be called next; None: no request is open."""
        return min((rescue.until_mono_s for rescue in self._open.values()), default=None)

    def _open_requests(self, id_: str | None, agent: Agent) -> Iterable[RescueRequest]:
        return [
            rescue
            for rescue in self._open.values()
            if rescue.agent == agent.key and id_ in (None, rescue.id)
        ]

    def _end(self, rescue: RescueRequest, status: str, detail: str) -> None:
        del self._open[rescue.id]
        rescue.status, rescue.detail = status, detail
        # Followers refer to the requests that they wait for: break this reference cycle.
        followers, rescue.followers = rescue.followers, []
        for follower in followers:
            follower(rescue)


def no_agent_message(task: Task, now_unix_s: float, agent: AgentState | None = None) -> str:
    """
    Why a task cannot be asked for a rescue, and what to do.

    Args:
        task: the task.
        now_unix_s: the current time.
        agent: its agent; None: no agent has reported.
    """
    if agent is not None and agent.outdated:
        return "Its agent is outdated: restart its kernel or its script to save it."
    if agent is not None and not agent.training:
        return "Its training has ended: there is nothing to save now."
    began = task.info.started_unix_s
    age_s = None if began is None else now_unix_s - began
    if age_s is not None and 0 <= age_s < _STARTING_S:
        return (
            f"No agent has reported from it yet; it started {format_duration(age_s)} ago. An agent "
            "reports when the training begins, after its framework has started: ask again then. "
            f"{_ADD_AGENT}"
        )
    return f"No agent has reported from it, so it has none or does not train now. {_ADD_AGENT}"


def save_deadline_s(agent: Agent) -> float:
    """The time limit in seconds for a save by this agent."""
    view = agent.view
    if view.save_s is None:
        return _DEFAULT_DEADLINE_S
    cost_s = view.save_s + (view.step_s or 1.0)
    return min(MOST_DEADLINE_S, max(LEAST_DEADLINE_S, cost_s * _DEADLINE_FACTOR))
