"""
Earlier runs of the same program: how much it will need, and whether that fits. Pure.

A run is a script or module from its start to its end, or a training of one cell of a notebook. Only
runs with the same exact key hold back a notification, ask for less evidence, or send a notice at
the start. The caller finds the keys and the earlier runs, and stores the runs that end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from watchdog_app.base.records import dataclass
from watchdog_app.core.explain.phrases import describe_past
from watchdog_app.core.model import decisions
from watchdog_app.core.model.decisions import Assessment, Decision, Observation
from watchdog_app.core.model.machine import ProcessKey, Task, TaskKind
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.runs import Past, Run, RunEnd, Verdict
from watchdog_app.core.model.tasks import is_stopped
from watchdog_app.core.policy.danger import Tick
from watchdog_app.core.policy.incidents import OpenIncident
from watchdog_app.core.policy.tracker import Tracker

_MARGIN = 0.15  # share of the limit that must stay free where a notification is held back
_ONE_RUN, _LEAST = 1.05, 1.02  # tolerated factor above one run, and the least above several
_SAME_LIMIT = 1.1  # with up to this multiple of the level of a kill, the program ends again
_EXPLAINED = 0.8  # share of the growth on known ground that holds back a notification
_NOTICE_S = 60.0  # age of a run after which a notice at its start comes too late
_LOW, _HIGH = 0.7, 1.4  # interval of a forecast from an earlier run, as factors
_GONE_S = 120.0  # the end of a run is reported by then
_SEEN_S = 15.0  # age of a task from which its beginning was missed
_SAME_START, _START_BYTES = 0.1, 128 * 1024**2  # largest difference between two starts of a cell


@dataclass(slots=True)
class LiveRun:
    """A run in progress."""

    task: Task
    cell: int | None  # checksum of the cell's source; None: the whole program
    began_mono_s: float
    partial: bool  # its beginning was not seen
    record: Run
    path: str = ""  # of the program, once its key is known
    runs: Sequence[Run] = ()  # earlier runs with the same exact key, oldest first
    like: Run | None = None  # the newest run of the same path
    asked: bool = False  # the caller looks for its key
    noticed: bool = False

    def set_known(self, exact: str, path: str, runs: Iterable[Run]) -> None:
        """Set the key and path of the program, and the earlier runs of that path, oldest first."""
        start, found = self.record.start_bytes, list(runs)
        near = math.inf if self.cell is None else max(_SAME_START * start, _START_BYTES)
        same = [run for run in found if run.exact == exact]
        self.record.exact, self.path = exact, path
        self.like = found[-1] if found else None
        self.runs = [run for run in same if abs(run.start_bytes - start) <= near]


class PastRuns:
    """The runs in progress, and what earlier runs say about them."""

    def __init__(self) -> None:
        self.live: dict[ProcessKey, LiveRun] = {}
        self._past: dict[ResourceKey, dict[ProcessKey, Past]] = {}

    def update(self, observation: Observation, tracker: Tracker) -> None:
        """Process one sample that `tracker` already contains."""
        now, unix_s = observation.snapshot.mono_s, observation.snapshot.unix_s
        for key, task in observation.tasks.items():
            cell = next((each.cell for each in observation.agents.get(key, ())), None)
            run, usage = self.live.get(key), tracker.usage[key]
            program = task.kind in (TaskKind.SCRIPT, TaskKind.MODULE) and task.info.argv
            if cell is None and not program:
                self.live.pop(key, None)
                continue
            level = int(usage.memory.last or 0)
            if run is None or run.cell != cell:
                age_s = 0.0 if cell else unix_s - (task.info.started_unix_s or unix_s)
                record = Run("", unix_s - age_s, level)
                run = LiveRun(task, cell, now - age_s, age_s > _SEEN_S, record)
                self.live[key] = run
            record, run.task = run.record, task
            record.add(now - run.began_mono_s, level, tracker.device_memory(key))
            record.swap_bytes = max(record.swap_bytes, task.swap_bytes or 0)
            record.end_slope_per_s = usage.trend_bytes_per_s or 0.0
            record.paused = record.paused or is_stopped(task)
        watched = [each for each in observation.readings if _is_watched(each)]
        self._past = {reading.key: self._judge(reading, tracker) for reading in watched}

    def end(self, key: ProcessKey, outcome: RunEnd) -> LiveRun | None:
        """The run of a task that has ended; None: there is none."""
        run = self.live.pop(key, None)
        if run is not None and not (run.partial and outcome is RunEnd.ENDED):
            run.record.outcome = outcome
        return run

    def drop_ended(self, now_mono_s: float) -> None:
        """Forget the runs whose ends were not reported."""
        for key, run in list(self.live.items()):
            if now_mono_s - run.began_mono_s - run.record.seconds > _GONE_S:
                del self.live[key]

    def of_tasks(self) -> dict[ProcessKey, Past]:
        """The most urgent of what earlier runs say about each task of which some are known."""
        order = list(Verdict)
        found: dict[ProcessKey, Past] = {}
        for key, run in self.live.items():
            pasts = [each[key] for each in self._past.values() if key in each]
            if run.like is not None:
                pasts = pasts or [Past(Verdict.SILENT, run.like)]
                found[key] = min(pasts, key=lambda past: (order.index(past.verdict), past.room))
        return found

    def asks_early(self, reading: Reading) -> bool:
        """Whether a task that grows under this resource needs earlier warnings."""
        return any(
            past.verdict in (Verdict.BEYOND, Verdict.KILLED)
            and self.live[key].record.end_slope_per_s > 0
            for key, past in self._past.get(reading.key, {}).items()
        )

    def is_known_ground(self, reading: Reading, attribution: decisions.Attribution) -> bool:
        """Whether earlier runs of the growing tasks grew as far, ended well, and that fits."""
        pasts = self._past.get(reading.key, {})
        fitting = {key for key, past in pasts.items() if past.verdict is Verdict.FITS}
        shares = (each.share for each in attribution.contributors if each.task in fitting)
        return sum(shares) >= _EXPLAINED

    def with_past_eta(self, reading: Reading, assessment: Assessment) -> Assessment:
        """
        The assessment; its forecast uses the curve of an earlier run.

        After a run that ended well the curve alone predicts best, as its ramps end. After a kill
        the geometric mean with the trend does.
        """
        pasts = [each for each in self._past.get(reading.key, {}).values() if each.end_s]
        if not pasts:
            return assessment
        past, trend = min(pasts, key=lambda each: each.end_s or 0.0), assessment.forecast
        eta_s = past.end_s or 0.0
        if past.killed and trend is not None:
            eta_s = math.sqrt(eta_s * trend.eta_s)
        found = decisions.Forecast(eta_s, _LOW * eta_s, _HIGH * eta_s)
        return replace(assessment, forecast=found)

    def due_notices(self, tick: Tick) -> Iterator[Decision]:
        """Yield a notice about each run that has begun and will need more than there is."""
        for resource, pasts in self._past.items():
            for key, past in pasts.items():
                run = self.live[key]
                late = run.noticed or run.partial or run.record.seconds > _NOTICE_S
                if past.verdict is not Verdict.SHORT or late:
                    continue
                run.noticed = True
                if tick.permits(run.task, resource.kind).notify:
                    incident = OpenIncident("", resource, "", tick.unix_s, tick.mono_s)
                    evidence = {"topic": decisions.Topic.PAST.value, "name": run.task.name}
                    why, kind = describe_past(past, run.task.name), decisions.DecisionKind.NOTIFY
                    yield tick.decide(kind, incident, key, why, evidence)

    def _judge(self, reading: Reading, tracker: Tracker) -> dict[ProcessKey, Past]:
        gpu = None if SPECS[reading.key.kind].of_ram else reading.key.subject
        found: dict[ProcessKey, Past] = {}
        for key in set(reading.tasks) & self.live.keys():
            run, level = self.live[key], int(tracker.usage[key].memory.last or 0)
            if gpu is None:
                run.record.limit_bytes = level + int(reading.limit - reading.used)
            else:
                level = tracker.device_memory(key).get(gpu, 0)
            past = judge(run.runs, level, reading, gpu)
            found |= {} if past is None else {key: past}
        wanting = [key for key, past in found.items() if past.expected > past.level]
        more = sum(found[key].expected - found[key].level for key in wanting)
        if len(wanting) > 1 and more > reading.limit - reading.used:
            names = " and ".join(self.live[key].task.name for key in wanting)
            for key in wanting:
                short = replace(found[key], verdict=Verdict.SHORT, together=names, more=more)
                found[key] = short
        return found


def judge(runs: Iterable[Run], level: int, reading: Reading, gpu: str | None) -> Past | None:
    """
    What earlier runs of a program say about the present one under one resource.

    Args:
        runs: the runs with the same exact key, oldest first.
        level: present memory of the program there, in bytes.
        reading: RAM, a memory group or the memory of a GPU.
        gpu: id of that GPU; None: it is about RAM.

    Returns:
        None: no run used the resource.
    """
    known = [each for each in runs if each.peak(gpu) > 0]
    if not known or reading.limit <= 0:
        return None
    room = int(max(0.0, reading.limit - reading.used))
    there, verdict = level + room, Verdict.SILENT
    end_s: float | None = None
    telling = [each for each in known if each.proves_fit or each.ran_out(gpu)]
    complete = [each.peak(gpu) for each in telling if each.proves_fit]
    killed = bool(telling) and telling[-1].ran_out(gpu)
    candidates = telling[-1:] if killed else [each for each in known if not each.ran_out(gpu)]
    source = max(candidates, key=lambda run: run.peak(gpu))
    expected = source.peak(gpu)
    if killed:
        verdict = Verdict.SHORT if there <= _SAME_LIMIT * expected else Verdict.KILLED
    elif expected > there:
        verdict = Verdict.SHORT
    elif complete:
        spread = max(complete) / min(complete) - 1.0
        factor = _ONE_RUN if len(complete) == 1 else max(_LEAST, 1.0 + 2.0 * spread)
        if level > factor * expected:
            verdict = Verdict.BEYOND
        elif factor * expected + _MARGIN * reading.limit <= there:
            verdict = Verdict.FITS
    if gpu is None and verdict is Verdict.SHORT:
        now_s, full_s = source.reached_s(level), source.reached_s(min(there, expected))
        end_s = None if now_s is None or full_s is None else max(0.0, full_s - now_s)
    return Past(verdict, known[-1], expected, level, room, len(complete), killed, end_s)


def _is_watched(reading: Reading) -> bool:
    of_ram = SPECS[reading.key.kind].of_ram and reading.fatal
    return of_ram or reading.key.kind is ResourceKind.GPU_MEMORY
