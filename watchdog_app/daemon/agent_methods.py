"""
What agents say: the second half of docs/protocol.md, one function a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from watchdog_app.client import requests
from watchdog_app.daemon.agents import peer_key
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.parts import Parts
from watchdog_app.daemon.rpc import Connection, Reply

Answer = dict[str, Any] | None  # None: it comes later, by the reply
Method = Callable[[Connection, Any, Reply], Answer]


class AgentMethods:
    """
    Takes in what agents say.

    Args:
        parts: of the daemon.
        log: of the daemon.
    """

    def __init__(self, parts: Parts, log: Log) -> None:
        self._parts = parts
        self._log = log
        self._agents = parts.agents
        self._checkpoints = parts.checkpoints

    def _agent_register(
        self, connection: Connection, params: requests.RegisterAgent, _: Reply
    ) -> Answer:
        agent = self._agents.register(connection, params)
        self._parts.exit_monitor.follow_agent(agent.key)
        if params.notebook is not None:
            self._parts.observer.kernels.set_notebook(agent.key, params.notebook)
        self._log.info(
            "an agent connected",
            pid=agent.key.pid,
            framework=agent.view.framework,
            directory=agent.view.directory,
        )
        self._parts.pace.look_soon()
        found: dict[str, Any] = {"interval_s": self._agents.interval_s, "page": None}
        if not agent.view.outdated:  # an older one waits for no word that would not come
            found["page"] = self._agents.out_of_process.page(agent.key)
            found["acknowledges"] = True
        return found

    def _agent_report(self, connection: Connection, params: requests.Report, _: Reply) -> Answer:
        agent = self._agents.registered(connection)
        before = agent.view.expected_number
        self._agents.report(agent, params, time.monotonic())
        if agent.view.expected_number != before:
            # It is about to grow and waits for our word: look now, at the limits that it has now.
            self._parts.observer.machine.review(agent.key)
            self._parts.pace.look_soon()
        return {}

    def _agent_progress(
        self, connection: Connection, params: requests.Progress, _: Reply
    ) -> Answer:
        agent = self._agents.registered(connection)
        self._agents.set_saving(agent, params.state == "saving")
        if params.request is not None:
            self._checkpoints.accepted(params.request, agent)
        return {}

    def _agent_saved(self, connection: Connection, params: requests.Saved, _: Reply) -> Answer:
        agent = self._agents.registered(connection)
        record = self._agents.record_rescue(agent, params.rescue, time.monotonic())
        self._log.info(
            "a rescue is complete",
            pid=agent.key.pid,
            step=record.step,
            bytes=record.bytes,
            seconds=record.seconds,
            path=record.path,
        )
        self._checkpoints.saved(params.request, agent, record)
        return {}

    def _agent_failed(self, connection: Connection, params: requests.Failed, _: Reply) -> Answer:
        agent = self._agents.registered(connection)
        self._agents.set_saving(agent, False)
        error, remedy = params.error, params.remedy
        self._log.warning("a rescue failed", pid=agent.key.pid, error=error, remedy=remedy)
        self._checkpoints.failed(params.request, agent, error, remedy)
        return {}

    def _agent_bye(self, connection: Connection, params: requests.Bye, _: Reply) -> Answer:
        agent = self._agents.registered(connection)
        self._agents.end_training(agent, params)
        self._checkpoints.agent_ended(agent.key, "The training has ended.")
        return {}

    def _agent_stacked(self, connection: Connection, params: requests.Stacked, _: Reply) -> Answer:
        self._parts.inspections.receive_stacks(self._agents.registered(connection), params)
        return {}

    def _agent_leaked(self, connection: Connection, params: requests.Leaked, _: Reply) -> Answer:
        self._parts.inspections.receive_growth(self._agents.registered(connection), params)
        return {}

    def _agent_notebook(
        self, connection: Connection, params: requests.AgentNotebook, _: Reply
    ) -> Answer:
        key = peer_key(connection, params.pid, params.start_time)
        self._parts.observer.kernels.set_notebook(key, params.notebook)
        self._parts.pace.look_soon()
        return {}
