"""
Earlier runs of the same program: how much it will need, and whether that fits. Pure.

A run is a script or module from its start to its end, or a training of one cell of a notebook. Only
runs with the same exact key hold back a notification, ask for less evidence, or send a notice at
the start. The caller finds the keys and the earlier runs, and stores the runs that end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from watchdog_app.base.records import dataclass
from watchdog_app.core.explain.phrases import describe_past
from watchdog_app.core.model import decisions
from watchdog_app.core.model.decisions import Assessment, Decision, DecisionKind, Forecast, Topic
from watchdog_app.core.model.machine import ProcessKey, Task, TaskKind
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.runs import Past, Run, Verdict
from watchdog_app.core.model.tasks import is_stopped
from watchdog_app.core.policy.danger import Tick
from watchdog_app.core.policy.incidents import OpenIncident
from watchdog_app.core.policy.tracker import TaskUsage, Tracker

_MARGIN = 0.15  # share of the limit that must stay free where a notification is held back
_ONE_RUN, _LEAST = 1.05, 1.02  # tolerated factor above one run, and the least above several
_SAME_LIMIT = 1.1  # with up to this multiple of the level of a kill, the program ends again
_EXPLAINED = 0.8  # share of the growth on known ground that holds back a notification
_NOTICE_S = 60.0  # age of a run after which a notice at its start comes too late
_LOW, _HIGH = 0.7, 1.4  # interval of a forecast from an earlier run, as factors
_GONE_S = 120.0  # the end of a run is reported by then
_SEEN_S = 15.0  # age of a task from which its beginning was missed
_SAME_START, _START_BYTES = 0.1, 128 * 1024**2  # largest difference between two starts of a cell


class Need(NamedTuple):
    """What earlier runs of a program needed of RAM or of one GPU."""

    source: Run  # the run that tells most
    most: float  # the level up to which the program is on known ground
    complete: int  # runs that ended well
    killed: bool  # the last run with a clear end ran out of memory

    @classmethod
    def of(cls, runs: Sequence[Run], gpu: str | None) -> Need | None:
        """The need by these runs, oldest first; None: no run used the resource."""
        known = [each for each in runs if each.peak(gpu) > 0]
        if not known:
            return None
        telling = [each for each in known if each.proves_fit or each.ran_out(gpu)]
        complete = [each.peak(gpu) for each in telling if each.proves_fit]
        killed = bool(telling) and telling[-1].ran_out(gpu)
        rest = telling[-1:] if killed else [each for each in known if not each.ran_out(gpu)]
        source = max(rest, key=lambda run: run.peak(gpu))
        spread = max(complete) / min(complete) - 1.0 if complete else 0.0
        factor = max(_LEAST, 1.0 + 2.0 * spread) if len(complete) > 1 else _ONE_RUN
        most = factor * source.peak(gpu) if complete else math.inf
        return cls(source, most, len(complete), killed)


@dataclass(slots=True)
class LiveRun:
    """A run in progress."""

    task: Task
    cell: int | None  # number for the training cell; None: the whole program
    began_mono_s: float
    record: Run
    usage: TaskUsage
    level: int = 0
    path: str = ""  # of the program, once its key is known
    runs: Sequence[Run] = ()  # earlier runs with the same exact key, oldest first
    like: Run | None = None  # the newest run of the same path
    asked: bool = False  # the caller looks for its key
    notified: bool = False
    needs: dict[str | None, Need | None] = field(default_factory=dict)  # by GPU; None: RAM

    def set_known(self, exact: str, path: str, runs: Sequence[Run]) -> None:
        """Set the key and path of the program, and the earlier runs of that path, oldest first."""
        self.record.exact, self.path, start = exact, path, self.record.start_bytes
        self.like = runs[-1] if runs else None
        near = math.inf if self.cell is None else max(_SAME_START * start, _START_BYTES)
        alike = [run for run in runs if abs(run.start_bytes - start) <= near]
        self.runs = [run for run in alike if run.exact == exact]
        self.needs = {}


class PastRuns:
    """The runs in progress, and what earlier runs say about them."""

    def __init__(self) -> None:
        self.live: dict[ProcessKey, LiveRun] = {}
        self._past: dict[ResourceKey, dict[ProcessKey, Past]] = {}

    def update(self, observation: decisions.Observation, tracker: Tracker) -> None:
        """Process one sample that `tracker` already contains."""
        now, unix_s = observation.snapshot.mono_s, observation.snapshot.unix_s
        for key, task in observation.tasks.items():
            cell = next((each.cell for each in observation.agents.get(key, ())), None)
            if cell is None and task.kind not in (TaskKind.SCRIPT, TaskKind.MODULE):
                self.live.pop(key, None)
                continue
            run, usage = self.live.get(key), tracker.usage[key]
            level = int(usage.memory.last or 0)
            if run is None or run.cell != cell:
                age_s = 0.0 if cell else unix_s - (task.info.started_unix_s or unix_s)
                record = Run("", unix_s - age_s, level, cut=age_s > _SEEN_S)
                self.live[key] = run = LiveRun(task, cell, now - age_s, record, usage)
            run.task, run.level, record = task, level, run.record
            record.add(now - run.began_mono_s, level, tracker.device_memory(key))
            record.cut = record.cut or is_stopped(task)
        # The tightest comes last, so that its limit remains.
        watched = sorted(filter(_is_watched, observation.readings), key=lambda r: r.used - r.limit)
        self._past = {reading.key: self._judge(reading, tracker) for reading in watched}

    def drop_ended(self, now_mono_s: float) -> None:
        """Forget the runs whose ends were not reported."""
        for key, run in list(self.live.items()):
            if now_mono_s - run.began_mono_s - run.record.seconds > _GONE_S:
                del self.live[key]

    def of_tasks(self) -> dict[ProcessKey, Past]:
        """The most urgent of what earlier runs say about each task of which some are known."""
        order, found = list(Verdict), {}
        for key, run in self.live.items():
            if run.like is not None:
                pasts = [each[key] for each in self._past.values() if key in each]
                pasts.append(Past(Verdict.SILENT, run.like))
                found[key] = min(pasts, key=lambda past: order.index(past.verdict))
        return found

    def asks_early(self, reading: Reading) -> bool:
        """Whether a task that grows under this resource needs earlier warnings."""
        risky = (Verdict.BEYOND, Verdict.KILLED)
        pasts = self._past.get(reading.key, {}).items()
        found = [self.live[key].usage for key, past in pasts if past.verdict in risky]
        return any((usage.trend_bytes_per_s or 0.0) > 0 for usage in found)

    def is_known_ground(self, reading: Reading, attribution: decisions.Attribution) -> bool:
        """Whether earlier runs of the growing tasks grew as far, ended well, and that fits."""
        pasts = self._past.get(reading.key, {})
        fitting = [key for key, past in pasts.items() if past.verdict is Verdict.FITS]
        return sum(c.share for c in attribution.contributors if c.task in fitting) >= _EXPLAINED

    def with_past_eta(self, reading: Reading, assessment: Assessment) -> Assessment:
        """
        The assessment; its forecast uses the curve of an earlier run.

        After a run that ended well the curve alone predicts best, as its ramps end. After a kill
        the geometric mean with the trend does.
        """
        pasts = self._past.get(reading.key, {}).values()
        trend = assessment.forecast
        ends = [
            math.sqrt(past.end_s * trend.eta_s) if past.killed and trend else past.end_s
            for past in pasts
            if past.end_s is not None
        ]
        if not ends:
            return assessment
        eta_s = min(ends)
        return replace(assessment, forecast=Forecast(eta_s, _LOW * eta_s, _HIGH * eta_s))

    def due_notifications(self, tick: Tick) -> Iterator[Decision]:
        """Yield a notice about each run that has begun and will need more than there is."""
        for resource, pasts in self._past.items():
            for key, past in pasts.items():
                run, name = self.live[key], self.live[key].task.name
                late = run.notified or run.record.cut or run.record.seconds > _NOTICE_S
                if past.verdict is Verdict.SHORT and not late:
                    run.notified = True
                    if tick.permits(run.task, resource.kind).notify:
                        incident = OpenIncident("", resource, "", tick.unix_s, tick.mono_s)
                        evidence = {"topic": Topic.PAST.value, "name": name}
                        why, notify = describe_past(past, name), DecisionKind.NOTIFY
                        yield tick.decide(notify, incident, key, why, evidence)

    def _judge(self, reading: Reading, tracker: Tracker) -> dict[ProcessKey, Past]:
        gpu = None if SPECS[reading.key.kind].of_ram else reading.key.subject
        room = int(max(0.0, reading.limit - reading.used))
        found: dict[ProcessKey, Past] = {}
        more: dict[ProcessKey, int] = {}
        for key in reading.tasks:
            run = self.live.get(key)
            if run is not None and gpu is None:
                run.record.limit_bytes = run.level + room
            if run is not None and run.runs:
                level = run.level if gpu is None else tracker.device_memory(key).get(gpu, 0)
                past = judge(run, level, room, reading.limit, gpu)
                if past is not None:
                    found[key] = past
                    # What it needed and has given back will perhaps not be needed again.
                    more[key] = max(0, past.expected - max(level, run.record.peak(gpu)))
        wanting = [key for key in more if more[key]]
        total = sum(more.values())
        if len(wanting) > 1 and total > room:
            names = " and ".join(self.live[key].task.name for key in wanting)
            for key in wanting:
                past = found[key]
                found[key] = replace(past, verdict=Verdict.SHORT, together=names, more=total)
        return found


def judge(run: LiveRun, level: int, room: int, limit: float, gpu: str | None) -> Past | None:
    """
    What earlier runs of a program say about the present one. Amounts are in bytes.

    Args:
        run: the present run.
        level: its present memory.
        room: amount that is free.
        limit: limit of the resource.
        gpu: id of the GPU; None: it is about RAM.

    Returns:
        None: no run used the resource.
    """
    if gpu not in run.needs:
        run.needs[gpu] = Need.of(run.runs, gpu)
    need = run.needs[gpu]
    if need is None:
        return None
    there, verdict, end_s, expected = level + room, Verdict.SILENT, None, need.source.peak(gpu)
    if need.killed:
        verdict = Verdict.SHORT if there <= _SAME_LIMIT * expected else Verdict.KILLED
    elif expected > max(there, run.record.peak(gpu)):
        verdict = Verdict.SHORT
    elif level > need.most:
        verdict = Verdict.BEYOND
    elif need.most + _MARGIN * limit <= there:
        verdict = Verdict.FITS
    if gpu is None and verdict is Verdict.SHORT:
        at, passed_s = need.source.reached_s, run.record.seconds
        now_s, early_s, full_s = at(level), at(level / _LEAST), at(min(there, expected))
        if now_s is not None and early_s is not None and full_s is not None:
            # A level may last: then the time that has passed says more.
            end_s = max(0.0, full_s - min(now_s, max(early_s, passed_s)))
    return Past(verdict, run.runs[-1], expected, level, room, need.complete, need.killed, end_s)


def _is_watched(reading: Reading) -> bool:
    of_ram = SPECS[reading.key.kind].of_ram and reading.fatal and reading.limit > 0
    return of_ram or reading.key.kind is ResourceKind.GPU_MEMORY
