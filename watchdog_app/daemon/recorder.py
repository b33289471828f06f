"""
From ticks to the journal: which points of which series, and what changed in the incidents.
"""

from __future__ import annotations

from collections.abc import Hashable

from watchdog_app.core.model.decisions import Assessment, Incident, Stage
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import Reading, ResourceKind
from watchdog_app.daemon import status
from watchdog_app.history.journal import Entry
from watchdog_app.history.series import Pace, Point, SeriesPoints, Thinner

_COARSE_S = 0.9  # at rest no series needs more than a sample a second


class Recorder:
    """Turns each look into what the journal should keep of it."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._thinner = Thinner()
        self._sampled_mono_s = float("-inf")
        self._incidents: dict[str, tuple[Stage, bool]] = {}

    def points(self, look: status.Look) -> list[SeriesPoints]:
        """New points worth keeping."""
        paces = {key: _pace(each) for key, each in look.result.assessments.items()}
        alarm = Pace.ALARM in paces.values()
        if not alarm and look.snapshot.mono_s - self._sampled_mono_s < _COARSE_S:
            return []
        self._sampled_mono_s = look.snapshot.mono_s
        found: list[SeriesPoints] = []
        keys: set[Hashable] = set()
        near: set[ProcessKey] = set()
        above: dict[Hashable, list[str]] = {}
        for reading in look.readings:
            pace = paces.get(reading.key, Pace.REST)
            ident = _resource_ident(reading)
            for key in reading.tasks:
                above.setdefault(key, []).append(ident)
            if pace is Pace.REST and reading.key.kind is ResourceKind.TEMPERATURE:
                pace = Pace.CALM
            elif pace is not Pace.REST:
                near.update(reading.tasks)
            keys.add(ident)
            point = Point(look.snapshot.unix_s, reading.used, limit=reading.limit)
            kept = self._thinner.offer(ident, point, reading.unit, pace)
            if kept:
                kind = reading.key.kind.value
                found.append(SeriesPoints(ident, kind, reading.label, reading.unit, kept))
        for task in look.tasks:
            keys.add(task.key)
            point = Point(
                look.snapshot.unix_s,
                task.rss_bytes,
                swap=task.swap_bytes,
            )
            pace = Pace.NEAR if task.key in near else Pace.REST
            kept = self._thinner.offer(task.key, point, "bytes", pace)
            if kept:
                found.append(self._task_series(task, kept, above.get(task.key, [])))
        self._thinner.forget_others(keys)
        return found

    def incidents(self, look: status.Look) -> list[Entry]:
        """An entry for each incident that opened, changed its stage or closed."""
        found = []
        for incident in (*look.result.incidents, *look.result.closed):
            now = (incident.stage, incident.closed_unix_s is not None)
            if self._incidents.get(incident.id) == now:
                continue
            self._incidents[incident.id] = now
            found.append(_incident_entry(incident, look.snapshot.unix_s))
        open_ids = {incident.id for incident in look.result.incidents}
        for id_ in [id_ for id_ in self._incidents if id_ not in open_ids]:
            del self._incidents[id_]
        return found

    def _task_series(self, task: Task, kept: list[Point], resources: list[str]) -> SeriesPoints:
        return SeriesPoints(
            ident=f"{self._boot}:{task.key.pid}:{task.key.start_time}",
            kind="task",
            name=task.name,
            unit="bytes",
            points=kept,
            pid=task.key.pid,
            path=task.info.notebook or task.info.script,
            resources=resources,
        )


def _pace(assessment: Assessment) -> Pace:
    if assessment.stage is Stage.OK:
        return Pace.REST
    return Pace.ALARM if assessment.notify or assessment.stage >= Stage.WARN else Pace.NEAR


def _resource_ident(reading: Reading) -> str:
    return f"{reading.key.kind.value}:{reading.key.subject}"


def _incident_entry(incident: Incident, now_unix_s: float) -> Entry:
    first = incident.contributors[0] if incident.contributors else None
    return Entry(
        now_unix_s,
        "incident",
        status.incident(incident).to_json(),
        pid=first.task.pid if first else None,
        name=first.name if first else None,
    )
