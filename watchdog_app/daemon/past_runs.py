"""Finds the earlier runs of each task in the journal, and stores the runs that end."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from watchdog_app.base import paths
from watchdog_app.base.codec import encode
from watchdog_app.base.durable import write_atomic
from watchdog_app.base.threads import Done, Worker
from watchdog_app.core.explain.past_runs import describe_run
from watchdog_app.core.model.exits import Cause, CauseKind
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.runs import RunEnd
from watchdog_app.core.policy.past_runs import LiveRun
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.pace import Pace
from watchdog_app.history.journal import Entry, Journal
from watchdog_app.history.writer import JournalWriter
from watchdog_app.rescue.identity import program_key

_SAVE_S = 300.0  # a run in progress is stored this often
_GONE_S = 120.0  # the end of a run is reported by then
_LINGER_S = 5.0  # no thread while no program starts
_SECRET_BYTES = 32
_ENDS = {
    CauseKind.ENDED: RunEnd.ENDED,
    CauseKind.UNKNOWN: RunEnd.LOST_SIGHT,
    CauseKind.MACHINE_DOWN: RunEnd.LOST_SIGHT,
    CauseKind.GPU_MEMORY: RunEnd.GPU_OOM,
    CauseKind.GUARD: RunEnd.KILLED_OOM,
}


class PastRunStore:
    """
    Connects the engine's runs with the journal.

    Args:
        observer: provides the engine's `PastRuns`.
        journal: the daemon's journal.
        pace: takes a sample once earlier runs are found: a notice may be due.
        wake: called in a thread when keys are known.
    """

    def __init__(
        self, observer: Observer, journal: JournalWriter, pace: Pace, wake: Callable[[], None]
    ) -> None:
        self.worker = Worker(wake, _LINGER_S)  # reads the scripts, perhaps from a slow disk
        self._observer, self._journal, self._pace = observer, journal, pace
        self._secret = os.path.join(os.path.abspath(paths.state_dir()), "run-key")
        self._next_mono_s = 0.0

    def follow(self, now_mono_s: float) -> None:
        """Look for the earlier runs of new tasks; every five minutes store the runs in progress."""
        live = self._observer.past.live
        for run in live.values():
            if not run.asked:
                run.asked = True
                job = partial(program_hash, run.task, run.cell, self._secret)
                self.worker.submit(job, partial(self._find_runs, run))
        if now_mono_s >= self._next_mono_s:
            self._next_mono_s = now_mono_s + _SAVE_S
            for key, run in list(live.items()):
                self._store(run)
                if now_mono_s - run.began_mono_s - run.record.seconds > _GONE_S:
                    del live[key]

    def end(self, task: Task, cause: Cause) -> None:
        """Store the run of a task that has ended."""
        outcome = _ENDS.get(cause.kind, RunEnd.STOPPED)
        if cause.spec.out_of_memory and outcome is RunEnd.STOPPED:
            outcome = RunEnd.MEMORY_ERROR if cause.spec.own else RunEnd.KILLED_OOM
        self._store(self._observer.past.end(task.key, outcome))

    def end_cell(self, key: ProcessKey, *, finished: bool) -> None:
        """Store the run of a cell whose training has ended, in the kernel with this key."""
        run = self._observer.past.live.get(key)
        if run is not None and run.cell is not None:
            outcome = RunEnd.ENDED if finished else RunEnd.STOPPED
            self._store(self._observer.past.end(key, outcome))

    def forget(self, program: str | None, done: Done) -> None:
        """Delete the runs of a program, or all, and look again for those of the present tasks."""
        self._journal.submit(partial(Journal.forget_runs, program=program), done)
        for run in self._observer.past.live.values():
            run.asked = False

    def close(self) -> None:
        """Store the runs in progress."""
        for run in self._observer.past.live.values():
            self._store(run)
        self.worker.close()

    def _find_runs(self, run: LiveRun, key: Any, error: Exception | None) -> None:
        def done(runs: Any, error: Exception | None) -> None:
            if error is None:
                run.set_known(key[0], key[1], runs)
                self._pace.sample_now()

        if key is not None and error is None:
            self._journal.submit(partial(Journal.runs, path=key[1]), done)

    def _store(self, run: LiveRun | None) -> None:
        if run is not None and run.record.exact:
            record, pid, name = run.record, run.task.key.pid, run.task.name
            about = {"pid": pid, "name": name, "text": describe_run(record), "notable": False}
            data = {**about, **encode(record)}
            entry = Entry(record.started_unix_s, "run", data, pid, name, run.path)
            self._journal.submit(partial(Journal.add_run, entry=entry))


def program_hash(task: Task, cell: int | None, secret_file: str) -> tuple[str, str] | None:
    """
    The exact key of a task and the path of its program; None: its file is not known.

    Args:
        task: a program, or a kernel with a training cell.
        cell: checksum of that cell; None: the whole program.
        secret_file: the secret of this user, created if it is missing.

    Raises:
        OSError: the program or the secret cannot be read.
    """
    info, cwd = task.info, task.info.cwd or ""
    program, files = program_key.started_cell(info.notebook, cell), []
    if cell is None:
        program = program_key.started_program(info.argv, cwd, info.script)
        # A launcher such as torchrun names the training's script among its arguments.
        words = (os.path.join(cwd, each) for each in info.argv[1:] if each.endswith(".py"))
        files = [each for each in (program.path, *words) if each and os.path.isfile(each)]
    if program.path is None:
        return None
    contents = []
    for path in files:
        with open(path, "rb") as file:
            contents.append(hashlib.blake2b(file.read()).hexdigest())
    if not os.path.exists(secret_file):
        write_atomic(secret_file, os.urandom(_SECRET_BYTES), 0o600)
    with open(secret_file, "rb") as file:
        secret = file.read(_SECRET_BYTES)
    return program_key.digest(program, secret, cwd, *contents), program.path
