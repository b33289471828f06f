"""
Shows notifications about a training below its notebook cell, through the agent in the kernel.

This is no channel: it shows them in addition, and whether it worked changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.status import Notification, Status
from watchdog_app.daemon.agents import Agents

_TOPICS = ("warning", "rescued", "rescue_failed")


class Cells:
    """
    The notifications below cells, from `show` until they are no longer true.

    Args:
        agents: the agents in the kernels.
    """

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._warnings: dict[ProcessKey, Notification] = {}

    def show(self, notification: Notification, task: Task | None) -> None:
        """
        Send a notification to the agents of a task if it is a kernel.

        Args:
            notification: a warning, or what was saved.
            task: the task that it concerns; None: none.
        """
        if task is None or task.info.kernel_id is None or notification.topic not in _TOPICS:
            return
        for agent in self._agents.connected_in(task):
            warning = self._warnings.get(agent.key)
            if notification.topic == "warning":
                warning = self._warnings[agent.key] = notification
            elif warning is None:
                continue  # a save in no danger: nothing would remove it
            saved = notification.title if notification is not warning else ""
            self._agents.send(
                agent,
                "agent.notification",
                {"title": warning.title, "body": warning.body, "saved": saved},
            )

    def close_over(self, status: Callable[[], Status]) -> None:
        """
        Remove warnings that are no longer true.

        Args:
            status: makes the status, which is needed only while a warning is shown.
        """
        if not self._warnings:
            return
        now = status()
        for key, warning in list(self._warnings.items()):
            if warning.is_over(now):
                del self._warnings[key]
                agent = self._agents.get(key)
                if agent is not None:
                    empty = {"title": "", "body": "", "saved": ""}
                    self._agents.send(agent, "agent.notification", empty)
