"""
Notices and explanations in the form that clients get, from the words of `core`.
"""

from __future__ import annotations

import time
from typing import Any

from watchdog_app.core import explain, notices
from watchdog_app.core.notices import Notice
from watchdog_app.core.outlook import Decision
from watchdog_app.core.records import Task
from watchdog_app.daemon.status import Look, incident


def notice(decision: Decision, task: Task | None, look: Look | None) -> Notice:
    """The notice that a decision asks for."""
    agent = look.agents.get(task.key) if look is not None and task is not None else None
    about = None
    if look is not None:
        about = next((e for e in look.result.incidents if e.id == decision.incident), None)
    return notices.notice(decision, task, agent, about)


def explanation(look: Look | None, task: Task | None) -> dict[str, Any]:
    """The answer to `explain`: for one task, or for the machine."""
    if look is None:
        return {"text": "The machine has not been looked at yet. Ask again.", "incidents": []}
    readings, result = look.readings, look.result
    if task is None:
        text = explain.about_machine(
            look.snapshot.host,
            look.tasks,
            hardware=look.snapshot.hardware,
            readings=readings,
            assessments=result.assessments,
            incidents=result.incidents,
            now_unix_s=time.time(),
        )
        return {"text": text, "incidents": [incident(each) for each in result.incidents]}
    text = explain.about_task(
        task,
        result.tasks.get(task.key),
        look.agents.get(task.key),
        hardware=look.snapshot.hardware,
        readings=readings,
        assessments=result.assessments,
        incidents=result.incidents,
        now_unix_s=time.time(),
    )
    above = {reading.key for reading in readings if task.key in reading.tasks}
    concerns = [
        each
        for each in result.incidents
        if each.ceiling in above or any(culprit.task == task.key for culprit in each.culprits)
    ]
    return {"text": text, "incidents": [incident(each) for each in concerns]}
