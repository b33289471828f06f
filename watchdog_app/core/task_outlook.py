"""Where one task is going, and the ceiling that will stop it first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watchdog_app.core.culprits import NOBODY, Attribution
from watchdog_app.core.outlook import Assessment, CeilingKey, CeilingReading, Forecast, Stage
from watchdog_app.core.records import ProcessKey, Task
from watchdog_app.core.usage import Usage


@dataclass(frozen=True, slots=True)
class TaskOutlook:
    """One task's line of the status."""

    key: ProcessKey
    trend_bytes_per_s: float | None  # of its RAM and swap
    cpu_percent: float | None  # of one core
    ceiling: CeilingKey | None = None
    forecast: Forecast | None = None
    stage: Stage = Stage.OK
    why: str | None = None


def outlooks(
    tasks: Sequence[Task],
    usage: Mapping[ProcessKey, Usage],
    readings: Sequence[CeilingReading],
    assessments: Mapping[CeilingKey, Assessment],
    blamed: Mapping[CeilingKey, Attribution],
) -> dict[ProcessKey, TaskOutlook]:
    """
    An outlook for each task.

    A ceiling concerns the tasks that make it fill up. Those that would merely die with it are
    shown its stage from `rescue` on, when that is what matters for them: an idle notebook has
    no time to exhaustion only because something else is growing.
    """
    nearest: dict[ProcessKey, CeilingReading] = {}
    for reading in sorted(readings, key=lambda each: _urgency(assessments[each.key])):
        assessment = assessments[reading.key]
        if assessment.forecast is None and assessment.stage is Stage.OK:
            continue
        growing = {each.task for each in blamed.get(reading.key, NOBODY).culprits}
        deadly = reading.lethal and assessment.stage >= Stage.RESCUE and assessment.notify
        for key in reading.tasks:
            if deadly or key in growing:
                nearest.setdefault(key, reading)
    found = {}
    for task in tasks:
        own = usage[task.key]
        at = nearest.get(task.key)
        known = None if at is None else assessments[at.key]
        found[task.key] = TaskOutlook(
            key=task.key,
            trend_bytes_per_s=own.trend_bytes_per_s,
            cpu_percent=own.cpu_percent,
            ceiling=None if at is None else at.key,
            forecast=None if known is None else known.forecast,
            stage=Stage.OK if known is None else known.stage,
            why=None if known is None else known.why,
        )
    return found


def _urgency(assessment: Assessment) -> tuple[int, float]:
    eta = float("inf") if assessment.forecast is None else assessment.forecast.eta_s
    return -int(assessment.stage), eta
