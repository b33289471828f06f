"""
What agents say: the second half of docs/protocol.md, one function a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from watchdog_app.client import requests
from watchdog_app.daemon.agents import Agents
from watchdog_app.daemon.checkpoints import Checkpoints
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.pace import Pace
from watchdog_app.daemon.rpc import Connection, Reply


class AgentMethods:
    """
    Takes in what agents say.

    Args:
        agents: those there are.
        checkpoints: requests under way.
        observer: its machine reviews a process that is about to grow.
        pace: when to look.
        log: of the daemon.
    """

    def __init__(
        self, agents: Agents, checkpoints: Checkpoints, observer: Observer, pace: Pace, log: Log
    ) -> None:
        self._agents = agents
        self._checkpoints = checkpoints
        self._observer = observer
        self._pace = pace
        self._log = log
        self.table: dict[str, Callable[[Connection, Any, Reply], Any]] = {
            "agent.register": self._register,
            "agent.report": self._report,
            "agent.progress": self._progress,
            "agent.saved": self._saved,
            "agent.failed": self._failed,
            "agent.bye": self._bye,
        }

    def _register(
        self, connection: Connection, params: requests.RegisterAgent, _: Reply
    ) -> dict[str, Any]:
        agent = self._agents.register(connection, params)
        self._log.info(
            "an agent has come",
            pid=agent.key.pid,
            framework=agent.view.framework,
            directory=agent.view.directory,
        )
        self._pace.look_soon()
        found: dict[str, Any] = {"interval_s": self._agents.interval_s, "page": None}
        if not agent.view.outdated:  # an older one waits for no word that would not come
            found["page"] = self._agents.out_of_process.page(agent.key)
            found["acknowledges"] = True
        return found

    def _report(self, connection: Connection, params: requests.Report, _: Reply) -> dict[str, Any]:
        agent = self._agents.of(connection)
        before = agent.view.expected_number
        self._agents.report(agent, params, time.monotonic())
        if agent.view.expected_number != before:
            # It is about to grow and waits for our word: look now, at the limits that it has now.
            self._observer.machine.review(agent.key)
            self._pace.look_soon()
        return {}

    def _progress(
        self, connection: Connection, params: requests.Progress, _: Reply
    ) -> dict[str, Any]:
        agent = self._agents.of(connection)
        self._agents.saving(agent, params.state == "saving")
        if params.request is not None:
            self._checkpoints.progress(params.request, agent, params.bytes_done, params.bytes_total)
        return {}

    def _saved(self, connection: Connection, params: requests.Saved, _: Reply) -> dict[str, Any]:
        agent = self._agents.of(connection)
        record = self._agents.saved(agent, params.rescue, time.monotonic())
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

    def _failed(self, connection: Connection, params: requests.Failed, _: Reply) -> dict[str, Any]:
        agent = self._agents.of(connection)
        self._agents.saving(agent, False)
        error, remedy = params.error, params.remedy
        self._log.warning("a rescue failed", pid=agent.key.pid, error=error, remedy=remedy)
        self._checkpoints.failed(params.request, agent, error, remedy)
        return {}

    def _bye(self, connection: Connection, params: requests.Bye, _: Reply) -> dict[str, Any]:
        agent = self._agents.of(connection)
        self._agents.bye(agent, params)
        self._checkpoints.agent_gone(agent.key, "The training has ended.")
        return {}
