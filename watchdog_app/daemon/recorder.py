"""Data for the journal: points, incidents and runs; the state for the next daemon."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any

from watchdog_app.base import children, paths
from watchdog_app.base.codec import encode
from watchdog_app.base.threads import Worker
from watchdog_app.core.explain.phrases import describe_run
from watchdog_app.core.model.decisions import Assessment, Incident, Stage
from watchdog_app.core.model.exits import Cause, CauseKind
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import ResourceKind
from watchdog_app.core.model.runs import RunEnd
from watchdog_app.core.policy.past_runs import LiveRun
from watchdog_app.daemon import status
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.observer import Observer
from watchdog_app.history.journal import Entry, Journal
from watchdog_app.history.series import Downsampler, Pace, Point, SeriesPoints
from watchdog_app.history.writer import JournalWriter

_ENGINE, _KERNELS, _OFFERED = "engine", "kernels", "offered"
_REWRITE_AFTER_S = 1200.0  # the next daemon accepts a state for an hour
_SAVE_RUNS_S = 300.0  # a run in progress is stored this often
_LINGER_S = 5.0  # no thread while no program starts
_SETTLED_S = 1.0  # a shorter run costs no process
_TIMEOUT_S = 30.0  # for a script on a slow disk
_MODULE = "watchdog_app.daemon.program_hash"
_ABOUT = ("argv", "cwd", "script", "notebook")  # what its key depends on
_ENDS = {CauseKind.ENDED: RunEnd.ENDED, CauseKind.UNKNOWN: RunEnd.LOST_SIGHT}
Call = Callable[[], None]
_MIN_INTERVAL_S = 0.9  # at rest no series needs more than a sample a second


class Recorder:
    """Selects the data of each sample that the journal stores."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._thinner = Downsampler()
        self._sampled_mono_s = float("-inf")
        self._incidents: dict[str, tuple[Stage, bool]] = {}

    def points(self, sample: status.AssessedSample) -> list[SeriesPoints]:
        """The new points to store."""
        paces = {
            key: _pace(each)
            for key, each in sample.result.assessments.items()
            if key.kind is not ResourceKind.WALLTIME
        }
        alarm = Pace.ALARM in paces.values()
        if not alarm and sample.snapshot.mono_s - self._sampled_mono_s < _MIN_INTERVAL_S:
            return []
        self._sampled_mono_s = sample.snapshot.mono_s
        found: list[SeriesPoints] = []
        keys: set[Hashable] = set()
        near: set[ProcessKey] = set()
        above: dict[Hashable, list[str]] = {}
        for reading in sample.readings:
            if reading.key.kind is ResourceKind.WALLTIME:
                continue  # a straight line
            pace = paces.get(reading.key, Pace.REST)
            ident = f"{reading.key.kind.value}:{reading.key.subject}"
            for key in reading.tasks:
                above.setdefault(key, []).append(ident)
            if pace is Pace.REST and reading.key.kind is ResourceKind.TEMPERATURE:
                pace = Pace.CALM
            elif pace is not Pace.REST:
                near.update(reading.tasks)
            keys.add(ident)
            point = Point(sample.snapshot.unix_s, reading.used, limit=reading.limit)
            kept = self._thinner.add(ident, point, reading.unit, pace)
            if kept:
                kind = reading.key.kind.value
                found.append(SeriesPoints(ident, kind, reading.label, reading.unit, kept))
        for task in sample.tasks:
            keys.add(task.key)
            point = Point(sample.snapshot.unix_s, task.rss_bytes, swap=task.swap_bytes)
            pace = Pace.NEAR if task.key in near else Pace.REST
            kept = self._thinner.add(task.key, point, "bytes", pace)
            if kept:
                found.append(self._task_series(task, kept, above.get(task.key, [])))
        self._thinner.keep_only(keys)
        return found

    def incidents(self, sample: status.AssessedSample) -> list[Entry]:
        """An entry for each incident that opened, changed its stage or closed."""
        found = []
        for incident in (*sample.result.incidents, *sample.result.closed):
            now = (incident.stage, incident.closed_unix_s is not None)
            if self._incidents.get(incident.id) == now:
                continue
            self._incidents[incident.id] = now
            found.append(_incident_entry(incident, sample.snapshot.unix_s))
        open_ids = {incident.id for incident in sample.result.incidents}
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


def _incident_entry(incident: Incident, now_unix_s: float) -> Entry:
    first = incident.contributors[0] if incident.contributors else None
    return Entry(
        now_unix_s,
        "incident",
        status.incident(incident).to_json(),
        pid=first.task.pid if first else None,
        name=first.name if first else None,
    )


class StateStore:
    """
    Saves the state of the engine, of kernels and of other parts in the journal.

    Args:
        observer: provides the engine and the kernels.
        journal: the daemon's journal.
        boot: id of this boot: pids and monotonic times of another boot are meaningless.
        log: the daemon's log.
    """

    def __init__(self, observer: Observer, journal: JournalWriter, boot: str, log: Log) -> None:
        self._observer = observer
        self._journal = journal
        self._boot = boot
        self._log = log
        self._engine: dict[str, Any] | None = None  # the last saved state
        self._engine_mono_s = 0.0
        self._kernels = 0  # the last saved revision
        self._offered = 0  # number of saved environments

    def put(self, key: str, **data: Any) -> None:
        """Save a state; it replaces an earlier one with this key."""
        state = {"boot": self._boot, **data}
        self._journal.submit(partial(Journal.save_state, key=key, data=state))

    def restore(
        self, journal: Journal | None, key: str, load: Callable[[Mapping[str, Any], bool], object]
    ) -> None:
        """
        Restore a state that an earlier daemon saved.

        Args:
            journal: the journal of that daemon; None: it cannot be read.
            key: name of the state.
            load: called with the state, and whether it is of this boot. May raise any exception.
        """
        if journal is None:
            return
        try:
            state = journal.load_state(key)
            if state is not None:
                load(state, state.get("boot") == self._boot)
        except Exception as error:  # the data on disk may be damaged in any way
            self._log.error("what was known before is lost", of=key, error=repr(error))

    def recover(self, journal: Journal | None) -> None:
        """Restore the engine, the kernels and the offers of an earlier daemon."""

        def engine(state: Mapping[str, Any], same_boot: bool) -> None:
            if same_boot:
                self._observer.load(state.get("dump"), self._log)

        def kernels(state: Mapping[str, Any], same_boot: bool) -> None:
            if same_boot:
                self._observer.kernels.load(state.get("kernels"))

        self.restore(journal, _ENGINE, engine)

        def offered(state: Mapping[str, Any], _: bool) -> None:
            self._observer.offered.update(map(str, state["environments"]))
            self._offered = len(self._observer.offered)

        self.restore(journal, _KERNELS, kernels)
        self.restore(journal, _OFFERED, offered)

    def save_engine(self, *, if_new: bool = False) -> None:
        """
        Save the state of the engine.

        Args:
            if_new: skip a state that differs from a recent one only in its times.
        """
        dump = self._observer.call_engine(lambda engine: engine.dump())
        if dump is None:
            return
        known = {**dump, "mono_s": None, "unix_s": None}
        now = time.monotonic()
        if if_new and known == self._engine and now - self._engine_mono_s < _REWRITE_AFTER_S:
            return
        self._engine, self._engine_mono_s = known, now
        self.put(_ENGINE, dump=dump)

    def save_known(self) -> None:
        """Save the kernels and the offers if they have changed since the last call."""
        offered = self._observer.offered
        if len(offered) != self._offered:
            self._offered = len(offered)
            self.put(_OFFERED, environments=sorted(offered))
        kernels = self._observer.kernels
        if kernels.revision != self._kernels:
            self._kernels = kernels.revision
            self.put(_KERNELS, kernels=kernels.dump())


class RunStore:
    """
    Finds the earlier runs of each task in the journal, and stores the runs that end.

    Args:
        observer: provides the runs in progress.
        journal: the daemon's journal.
        wake: called in a thread when the key of a program is known.
        sample_now: called when earlier runs are known: a notice may be due.
    """

    def __init__(
        self, observer: Observer, journal: JournalWriter, wake: Call, sample_now: Call
    ) -> None:
        self.worker = Worker(wake, _LINGER_S)  # reads the scripts, perhaps from a slow disk
        self._observer, self._journal, self._sample_now = observer, journal, sample_now
        self._secret = os.path.join(os.path.abspath(paths.state_dir()), "run-key")
        self._next_mono_s = 0.0

    def follow(self, now_mono_s: float) -> None:
        """Look for the earlier runs of new tasks; every five minutes store the runs in progress."""
        for run in self._observer.past.live.values():
            if not run.asked and now_mono_s - run.began_mono_s >= _SETTLED_S:
                run.asked = True
                job = partial(_ask_child, run.task, run.cell, self._secret)
                self.worker.submit(job, partial(self._find_runs, run))
        if now_mono_s >= self._next_mono_s:
            self._next_mono_s = now_mono_s + _SAVE_RUNS_S
            self.store_all()
            self._observer.past.drop_ended(now_mono_s)

    def end(self, task: Task, cause: Cause) -> None:
        """Store the run of a task that has ended."""
        outcome = _ENDS.get(cause.kind, RunEnd.STOPPED)
        if cause.spec.out_of_memory:
            by_itself = RunEnd.GPU_OOM if cause.spec.of_card else RunEnd.MEMORY_ERROR
            outcome = by_itself if cause.spec.own else RunEnd.KILLED_OOM
        self._end(task.key, outcome)

    def end_cell(self, key: ProcessKey, *, finished: bool) -> None:
        """Store the run of a cell whose training has ended, in the kernel with this key."""
        run = self._observer.past.live.get(key)
        if run is not None and run.cell is not None:
            self._end(key, RunEnd.ENDED if finished else RunEnd.STOPPED)

    def store_all(self) -> None:
        """Store the runs in progress."""
        for run in self._observer.past.live.values():
            self._store(run)

    def _find_runs(self, run: LiveRun, key: Any, _: object) -> None:
        def done(runs: Any, error: Exception | None) -> None:
            if error is None:
                run.set_known(key[0], key[1], runs)
                if self._observer.past.live.get(run.task.key) is not run:
                    self._store(run)  # it has ended meanwhile
                self._sample_now()

        if key is not None:
            self._journal.submit(partial(Journal.runs, path=key[1]), done)

    def _end(self, key: ProcessKey, outcome: RunEnd) -> None:
        run = self._observer.past.live.pop(key, None)
        if run is not None:
            run.record.outcome = outcome
            self._store(run)

    def _store(self, run: LiveRun) -> None:
        if run.record.exact:
            record, pid, name = run.record, run.task.key.pid, run.task.name
            about = {"pid": pid, "name": name, "text": describe_run(record), "notable": False}
            data = {**about, **encode(record)}
            entry = Entry(record.started_unix_s, "run", data, pid, name, run.path)
            self._journal.submit(partial(Journal.add_run, entry=entry))


def _ask_child(task: Task, cell: int | None, secret_file: str) -> Any:
    """Return the answer of `daemon.program_hash`, run as a process of its own."""
    question = {"cell": cell, "secret_file": secret_file}
    question |= {name: getattr(task.info, name) for name in _ABOUT}
    done = subprocess.run(
        children.module_argv(_MODULE),
        input=json.dumps(question).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=_TIMEOUT_S,
        check=True,
    )
    return json.loads(done.stdout)
