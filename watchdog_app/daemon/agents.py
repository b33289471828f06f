"""
The agents in the trainings: connections, reports and ends.

The daemon believes an agent only about its own process, which the kernel identifies.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace
from typing import Any

from watchdog_app.base import codec
from watchdog_app.base.errors import RequestError
from watchdog_app.base.linux.process import innermost_pid
from watchdog_app.base.records import dataclass
from watchdog_app.client import requests
from watchdog_app.client.jsonrpc import PROTOCOL_VERSION, REFUSED, notification
from watchdog_app.core.model.agent import AgentState, Frame, RescueRecord
from watchdog_app.core.model.machine import ProcessInfo, ProcessKey, Task
from watchdog_app.core.model.status import Allocator, MemoryParts
from watchdog_app.daemon.out_of_process import OutOfProcessCopies
from watchdog_app.daemon.rpc import Connection, RpcServer


@dataclass(slots=True)
class Agent:
    """An agent. `connection` is None after its end."""

    key: ProcessKey
    connection: Connection | None
    view: AgentState
    notebook: str | None
    info: ProcessInfo | None = None  # of its process, as last sampled
    by_lines: bool = False  # a user must run lines to resume from its rescue
    announced_end: bool = False
    finished: bool = False  # only with announced_end: the training succeeded
    failed: bool = False  # only with announced_end: an exception ends the program


@dataclass(eq=False)
class Agents:
    """
    Every agent that is connected, or whose process still runs.

    Args:
        server: sends messages to agents.
        out_of_process: makes rescues of stopped trainings from outside.
        alive: whether a process still runs.
    """

    server: RpcServer
    out_of_process: OutOfProcessCopies
    alive: Callable[[ProcessKey], bool]
    _agents: dict[ProcessKey, Agent] = field(default_factory=dict, init=False)

    def register(self, connection: Connection, params: requests.RegisterAgent) -> Agent:
        """
        Register an agent; it replaces an earlier one of the same process.

        Args:
            connection: the agent's connection.
            params: its process, framework and folder.

        Raises:
            RequestError: the connection belongs to another process.
        """
        key = peer_key(connection, params.pid, params.start_time)
        if not self.alive(key):
            raise RequestError(
                f"Process {key.pid} with start time {key.start_time} is not running here.", REFUSED
            )
        old = self._agents.get(key)
        # A rescue from before this connection: saved earlier, or resumed from.
        outdated = connection.protocol < PROTOCOL_VERSION
        by_lines = not params.resumes_itself
        rescue, rescue_mono_s = None, None
        if params.rescue is not None:
            rescue = _rescue_record(params.rescue, by_lines)
            rescue_mono_s = _saved_mono_s(rescue)
        if old is not None and old.view.rescue is not None:
            rescue, rescue_mono_s = old.view.rescue, old.view.rescue_mono_s
        agent = Agent(
            key,
            connection,
            AgentState(
                key,
                params.framework,
                params.directory,
                outdated,
                rank=params.rank,
                world_size=params.world_size,
                cell=params.cell,
                rescue=rescue,
                rescue_mono_s=rescue_mono_s,
            ),
            params.notebook,
            by_lines=by_lines,
        )
        self._agents[key] = agent
        return agent

    def send(self, agent: Agent, method: str, params: dict[str, Any]) -> None:
        """
        Send a notification to an agent, if it is connected.

        Args:
            agent: the recipient.
            method: a method of docs/protocol.md.
            params: the parameters of the method.
        """
        if agent.connection is not None:
            self.server.send(agent.connection, notification(method, params))

    def registered(self, connection: Connection) -> Agent:
        """
        The agent of a connection.

        Raises:
            RequestError: the connection has not registered an agent.
        """
        for agent in self._agents.values():
            if agent.connection is connection:
                return agent
        raise RequestError("Register first: agent.register.", REFUSED)

    def report(self, agent: Agent, params: requests.Report, now_mono_s: float) -> None:
        """
        Record a report of an agent about its training.

        Args:
            agent: the reporting agent.
            params: the report.
            now_mono_s: time of its arrival.
        """
        agent.view = replace(
            agent.view,
            **{
                **params.values(),
                "allocators": tuple(Allocator.read(each.values()) for each in params.allocators),
                "memory": params.memory and MemoryParts.read(params.memory.values()),
                "place": params.place and codec.decode(Frame, params.place.values()),
            },
            reported_mono_s=now_mono_s,
        )

    def record_guard_copies(self, rescues: Mapping[int, RescueRecord]) -> None:
        """
        Record rescues that guards have copied, if they are newer than the agent's own.

        Args:
            rescues: the newest by pid.
        """
        for agent in self._agents.values():
            newest = newer_rescue(agent.view, rescues.get(agent.key.pid))
            if newest is not None and newest is not agent.view.rescue:
                saved_mono_s = _saved_mono_s(newest)
                agent.view = replace(agent.view, rescue=newest, rescue_mono_s=saved_mono_s)

    def set_saving(self, agent: Agent, saving: bool, not_saved: str | None = None) -> None:
        """
        Record that the agent has started or stopped writing a rescue.

        Args:
            agent: the agent that saves.
            saving: True: it has started.
            not_saved: why it failed; None: it did not.
        """
        agent.view = replace(agent.view, saving=saving, not_saved=not_saved)

    def record_rescue(
        self, agent: Agent, found: Mapping[str, Any], now_mono_s: float
    ) -> RescueRecord:
        """
        Record a complete rescue, by the agent or copied from outside.

        Args:
            agent: the agent of the training.
            found: `path`, `step`, `bytes`, `seconds`, and what else is known of the rescue.
            now_mono_s: time at which it was complete.
        """
        known = {**found, "saved_unix_s": time.time(), "by_lines": agent.by_lines}
        rescue = RescueRecord(**known)
        agent.view = replace(
            agent.view, saving=False, not_saved=None, rescue=rescue, rescue_mono_s=now_mono_s
        )
        return rescue

    def end_training(self, agent: Agent, params: requests.Bye) -> None:
        """
        Record that the training has ended well, or that its interpreter is about to exit.

        In the second case the agent is kept until its process has ended.

        Args:
            agent: the sender of `agent.bye`.
            params: how its training ended.
        """
        agent.announced_end = True
        agent.finished = params.finished
        agent.failed = params.failed and not agent.finished
        training = agent.view.training and not agent.finished
        agent.view = replace(agent.view, training=training, saving=False)

    def connection_ended(self, connection: Connection) -> None:
        """
        Record the end of a connection. The agent's process may have ended or may connect again.
        """
        for agent in list(self._agents.values()):
            if agent.connection is connection:
                agent.connection = None
                self.set_saving(agent, False, agent.view.not_saved)
                if agent.finished:  # the next training of the process has a new segment
                    self.forget(agent.key)

    def ended(self) -> list[Agent]:
        """Agents without a connection whose processes have ended."""
        return [
            agent
            for agent in self._agents.values()
            if agent.connection is None and not self.alive(agent.key)
        ]

    def update_infos(self, infos: Mapping[ProcessKey, ProcessInfo]) -> None:
        """Keep what a sample says of the agents' processes, to name them after their end."""
        for key, agent in self._agents.items():
            agent.info = infos.get(key, agent.info)

    def forget(self, key: ProcessKey) -> None:
        """Forget an agent whose process or training has ended."""
        self.out_of_process.forget(key)
        self._agents.pop(key, None)

    def keys(self) -> Collection[ProcessKey]:
        """The processes of all agents, connected or not."""
        return self._agents.keys()

    def connected(self) -> list[Agent]:
        """Agents that can save: they use this protocol version and their training has not ended."""
        return [
            agent
            for agent in self._agents.values()
            if agent.connection is not None and not agent.announced_end and not agent.view.outdated
        ]

    def views(self) -> tuple[AgentState, ...]:
        """The last reports of all agents that can save."""
        return tuple(agent.view for agent in self.connected())

    def connected_in(self, task: Task) -> list[Agent]:
        """The agents of a task that can save."""
        members = {member.key for member in task.members}
        return [agent for agent in self.connected() if agent.key in members]

    def view_of(self, task: Task) -> AgentState | None:
        """The last report of a task's agent; of several agents, the one that trains."""
        members = {member.key for member in task.members}
        views = [agent.view for agent in self._agents.values() if agent.key in members]
        return max(views, key=lambda view: (view.training, view.step or 0), default=None)

    def get(self, key: ProcessKey) -> Agent | None:
        """The agent in a process, connected or not."""
        return self._agents.get(key)


def peer_key(connection: Connection, pid: int, start_time: int) -> ProcessKey:
    """
    The process of a connection, as the kernel reports it.

    Args:
        connection: the agent's connection.
        pid: the pid that the agent reports; in a container it differs from ours.
        start_time: the start time that the agent reports.

    Raises:
        RequestError: the connection belongs to another process, or the kernel reports none.
    """
    peer = connection.peer.pid
    if peer is None and sys.platform != "linux":
        return ProcessKey(pid, start_time)
    if peer is not None and pid in (peer, innermost_pid(peer)):
        return ProcessKey(peer, start_time)
    you, remedy = f"{peer}", "After a fork, connect again."
    if peer is None:  # unix(7): the peer is not in our namespace, so it is not in our /proc either
        you, remedy = "in another container or process namespace", "Run one daemon in yours."
    raise RequestError(
        f"An agent speaks for its own process alone: you are {you}, not {pid}. {remedy}", REFUSED
    )


def newer_rescue(view: AgentState | None, copied: RescueRecord | None) -> RescueRecord | None:
    """
    The newer rescue: the agent's own, or a copy made from outside.

    Args:
        view: the last report of the agent; None: there is no agent.
        copied: the rescue that a supervisor copied; None: there is none.
    """
    own = None if view is None else view.rescue
    if copied is None or (own is not None and own.saved_unix_s >= copied.saved_unix_s - 1.0):
        return own
    return copied if own is None else replace(copied, by_lines=own.by_lines)


def _rescue_record(params: requests.Rescue, by_lines: bool) -> RescueRecord:
    saved_unix_s = time.time() if params.saved_unix_s is None else params.saved_unix_s
    return RescueRecord(**{**params.values(), "saved_unix_s": saved_unix_s}, by_lines=by_lines)


def _saved_mono_s(rescue: RescueRecord) -> float:
    return time.monotonic() - max(0.0, time.time() - rescue.saved_unix_s)
