"""
Shows notifications about a training below its notebook cell, through the agent in the kernel.

This is no channel: it shows them in addition, and whether it worked changes nothing. An agent
whose connection ends removes its output itself.
"""

from __future__ import annotations

from collections.abc import Callable

from watchdog_app.base.text.terminal import plain
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.status import Notification, Status
from watchdog_app.daemon.agents import Agent, Agents
from watchdog_app.daemon.notify import plain_text

_TOPICS = ("warning", "rescued", "rescue_failed")


class Cells:
    """
    The notifications below cells, from `show` until they are no longer true.

    Args:
        agents: the agents in the kernels.
    """

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        # Warnings by incident, the newest last; what was saved since the first.
        self._warnings: dict[ProcessKey, dict[str, Notification]] = {}
        self._saved: dict[ProcessKey, str] = {}

    def show(self, notification: Notification, task: Task | None) -> None:
        """
        Send a notification to the agents of a task; those outside of kernels ignore it.

        Args:
            notification: a warning, or what was saved.
            task: the task that it concerns; None: none.
        """
        if task is None or notification.topic not in _TOPICS:
            return
        for agent in self._agents.connected_in(task):
            if notification.topic == "warning":
                warnings = self._warnings.setdefault(agent.key, {})
                warnings.pop(notification.incident, None)
                warnings[notification.incident] = notification
            elif agent.key in self._warnings:
                self._saved[agent.key] = notification.title
            else:
                continue  # a save in no danger: nothing would remove it
            self._send(agent)

    def close_over(self, status: Callable[[], Status]) -> None:
        """
        Remove warnings that are no longer true.

        Args:
            status: makes the status, which is needed only while a warning is shown.
        """
        if not self._warnings:
            return
        now = status()
        for key, warnings in list(self._warnings.items()):
            over = [incident for incident, each in warnings.items() if each.is_over(now)]
            for incident in over:
                del warnings[incident]
            if not warnings:
                del self._warnings[key]
                self._saved.pop(key, None)
            agent = self._agents.get(key)
            if over and agent is not None:
                self._send(agent)

    def _send(self, agent: Agent) -> None:
        warnings = self._warnings.get(agent.key)
        newest = list(warnings.values())[-1] if warnings else Notification()
        title, body = plain_text(newest, ())
        saved = plain(self._saved.get(agent.key, ""))
        texts = {"title": title, "body": body, "saved": saved}
        self._agents.send(agent, "agent.notification", texts)
