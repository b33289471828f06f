"""
Notices and explanations in the form that clients get, from the words of `core`.
"""

from __future__ import annotations

import time
from typing import Any

from watchdog_app.core.explain import notifications
from watchdog_app.core.model.agent import ThreadDump
from watchdog_app.core.model.decisions import Decision, Notification
from watchdog_app.core.model.history import SwapTraffic
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.daemon.status import Look, incident

# What only a person's question or a standstill needs is imported when that comes.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.diagnosis.stall_reasons import StallReason


def notice(decision: Decision, task: Task | None, look: Look | None) -> Notification:
    """The notice that a decision asks for."""
    agent = look.agents.get(task.key) if look is not None and task is not None else None
    about = None
    if look is not None:
        about = next((e for e in look.result.incidents if e.id == decision.incident), None)
    return notifications.notification(decision, task, agent, about)


def explanation(look: Look | None, task: Task | None) -> dict[str, Any]:
    """The answer to `explain`: for one task, or for the machine."""
    if look is None:
        return {"text": "The machine has not been looked at yet. Ask again.", "incidents": []}
    from watchdog_app.core.explain import status

    readings, result = look.readings, look.result
    if task is None:
        text = status.about_machine(
            look.snapshot.host,
            look.tasks,
            hardware=look.snapshot.hardware,
            readings=readings,
            assessments=result.assessments,
            incidents=result.incidents,
            now_unix_s=time.time(),
        )
        return {"text": text, "incidents": [incident(each) for each in result.incidents]}
    text = status.about_task(
        task,
        result.tasks.get(task.key),
        look.agents.get(task.key),
        hardware=look.snapshot.hardware,
        readings=readings,
        assessments=result.assessments,
        incidents=result.incidents,
        now_unix_s=time.time(),
    )
    stands = result.stalled_threads.get(task.key)
    if stands:
        text = "\n".join((text, "", "What each thread does:", *(f"  {line}" for line in stands)))
    above = {reading.key for reading in readings if task.key in reading.tasks}
    concerns = [
        each
        for each in result.incidents
        if each.resource in above or any(culprit.task == task.key for culprit in each.culprits)
    ]
    return {"text": text, "incidents": [incident(each) for each in concerns]}


def suspected(
    look: Look | None, task: ProcessKey, picture: ThreadDump, held: frozenset[int]
) -> tuple[StallReason, ...]:
    """
    What may hold a task up.

    Args:
        look: the latest one.
        task: that the picture is of.
        picture: of its threads.
        held: pids that we have paused.
    """
    from watchdog_app.core.diagnosis.stall_reasons import StallContext, stall_reasons

    if look is None:
        return stall_reasons(picture, StallContext(stopped_by_us=held))
    result = look.result
    outlook = result.tasks.get(task)
    cpu = None if outlook is None else outlook.cpu_percent
    return stall_reasons(
        picture,
        StallContext(
            cores=0.0 if cpu is None else cpu / 100,
            swap=SwapTraffic.of(result.swap_in_bytes_per_s, result.swap_out_bytes_per_s),
            card_fault=result.card_faults.get(task),
            stopped_by_us=held,
        ),
    )
