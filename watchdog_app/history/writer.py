"""
Writes the journal in a thread, so that a slow, full or missing disk never blocks the loop.

The loop hands over data and continues. It waits only in two cases, for a limited time: for a
decision that must be on disk before its action, and at the end. Data that cannot be written stays
in memory up to a limit, and `fault` reports it.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from watchdog_app.base.errors import RequestError
from watchdog_app.base.threads import Done, Worker
from watchdog_app.core.model.machine import Fault
from watchdog_app.history.journal import Entry, Journal
from watchdog_app.history.series import SeriesPoints

FLUSH_S = 10.0
_AT_REST_S = 60.0  # one transaction a minute while no resource is near its limit
_IDLE_S = 300.0  # without data to write, check at this interval that the file still exists
_RETRY_S = 10.0
_TRIM_S = 1800.0
_MOST_ENTRIES = 2000  # most kept in memory while the disk accepts none
_MOST_SERIES = 20_000
_LATE_S = 0.02  # longest wait for a disk that is still behind, at most once per _LATE_EVERY_S
_LATE_EVERY_S = 1.0

Job = Callable[[Journal], Any]


class JournalWriter:
    """
    Owns the journal from `open` to `close`.

    `collect` runs the `done` callbacks. The loop calls it in each turn; `wake` requests a turn.

    Args:
        folder: the state folder.
        max_age_s: age at which entries are deleted.
        max_bytes: limit of the journal's size.
        wake: the thread calls it when `collect` has something to do.
    """

    def __init__(
        self, folder: str, max_age_s: float, max_bytes: int, wake: Callable[[], None]
    ) -> None:
        self.fault: Fault | None = None
        self.reopened = False  # set when the journal works again; its reader clears it
        self.notes: deque[str] = deque(maxlen=10)  # messages to log once
        # (kind, result) of actions and (cause, None) of unwanted ends, since the start
        self.actions: Counter[tuple[str, str | None]] = Counter()
        self.deaths: Counter[tuple[str, str | None]] = Counter()
        self._folder = folder
        self._limits = (max_age_s, max_bytes)
        self._journal: Journal | None = None
        self._worker = Worker(wake)
        self._lock = threading.Lock()  # guards the next six attributes
        self._entries: deque[Entry] = deque(maxlen=_MOST_ENTRIES)
        self._series: deque[SeriesPoints] = deque(maxlen=_MOST_SERIES)
        self._sync: list[threading.Event] = []
        self._flushing = False  # submitted, not yet started
        self._queries: deque[tuple[Job, Done, Callable[[], bool]]] = deque()
        self._reading = False  # a query is submitted; others wait for its answer
        self._last_sync: threading.Event | None = None
        self._late_mono_s = float("-inf")  # time of the last wait for a disk that was behind
        self._flush_mono_s = time.monotonic() + FLUSH_S
        self._next_try_mono_s = 0.0
        self._next_trim_mono_s = 0.0

    def open(self) -> Journal | None:
        """The journal for one first read, None if broken. After any other call, do not use it."""
        self._reopen()
        return self._journal

    def configure(self, max_age_s: float, max_bytes: int) -> None:
        """
        Set new limits after a reload.

        Args:
            max_age_s: age at which entries are deleted.
            max_bytes: limit of the journal's size.
        """
        self._limits = (max_age_s, max_bytes)

        def take(journal: Journal) -> None:
            journal.max_age_s, journal.max_bytes = max_age_s, max_bytes

        self.submit(take)

    def add(self, *entries: Entry) -> None:
        """Write entries within `FLUSH_S`."""
        self._count(entries)
        with self._lock:
            self._entries.extend(entries)
        self._flush_within(FLUSH_S)

    def add_series(self, series: Sequence[SeriesPoints], at_rest: bool = False) -> None:
        """
        Write points within `FLUSH_S`; at rest within a minute.

        Args:
            series: new points.
            at_rest: True: no resource is near its limit.
        """
        if series:
            with self._lock:
                self._series.extend(series)
            self._flush_within(_AT_REST_S if at_rest else FLUSH_S)

    def write_durably(self, entries: Sequence[Entry], timeout_s: float) -> bool:
        """
        Write entries and wait until they are on disk; False: they are not, or not in time.

        If a wait failed, later callers wait only briefly until the disk has caught up, and at most
        once a second. Otherwise 500 ends at once would add up to a long delay.

        Args:
            entries: events.
            timeout_s: longest wait.
        """
        written = threading.Event()
        late = self._last_sync is not None and not self._last_sync.is_set()
        self._last_sync = written
        self._count(entries)
        with self._lock:
            self._entries.extend(entries)
            self._sync.append(written)
        self._flush_now()
        if late:
            now = time.monotonic()
            waited = now - self._late_mono_s < _LATE_EVERY_S
            timeout_s = 0.0 if waited else min(_LATE_S, timeout_s)
            self._late_mono_s = self._late_mono_s if waited else now
        return written.wait(timeout_s) and self.fault is None

    def submit(self, job: Job, done: Done | None = None) -> None:
        """
        Run `job` in the thread after all data handed over before.

        Args:
            job: called with the journal.
            done: called in `collect` with the result or the error.
        """
        self._flush_now()
        self._worker.submit(partial(self._run_job, job), done)

    def query(self, job: Job, done: Done, wanted: Callable[[], bool]) -> None:
        """
        Run a job that reads for a client, after everything handed over before.

        Args:
            job: called with the journal, which it must not change.
            done: called in `collect` with the result or the error.
            wanted: whether the client still waits; if not, the job does not run.
        """
        with self._lock:
            self._queries.append((job, done, wanted))
        self._flush_now()
        self._submit_next_query(answered=False)

    def collect(self) -> None:
        """Run the callbacks of finished jobs, and write the data that is due."""
        self._worker.collect()
        now = time.monotonic()
        retry = self.fault is not None and now >= self._next_try_mono_s
        if retry or now >= self._flush_mono_s:
            self._flush_now()

    def close(self, timeout_s: float) -> None:
        """Write the remaining data and close, within `timeout_s`."""
        self._flush_now()
        self._worker.submit(self._close_journal)
        self._worker.close(timeout_s)

    def _count(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            data = entry.data
            if entry.kind == "outcome":
                self.actions[data["decision_kind"], data["status"]] += 1
            elif entry.kind == "exit" and data.get("notable"):
                self.deaths[data["cause"], None] += 1

    def _flush_within(self, seconds: float) -> None:
        self._flush_mono_s = min(self._flush_mono_s, time.monotonic() + seconds)

    def _flush_now(self) -> None:
        self._flush_mono_s = time.monotonic() + _IDLE_S
        with self._lock:
            flushing, self._flushing = self._flushing, True
        if not flushing:
            self._worker.submit(self._flush)

    def _submit_next_query(self, *, answered: bool) -> None:
        """Submit one query at a time, so that urgent writes need not wait for many readers."""
        with self._lock:
            if self._reading and not answered:
                return
            self._reading = bool(self._queries)
            if not self._reading:
                return
            job, done, wanted = self._queries.popleft()
        self._worker.submit(
            partial(self._run_query, job, wanted), partial(_call_done, done, wanted)
        )

    # In the thread

    def _run_query(self, job: Job, wanted: Callable[[], bool]) -> Any:
        try:
            return self._run_job(job) if wanted() else None
        finally:
            self._submit_next_query(answered=True)

    def _flush(self) -> None:
        with self._lock:
            self._flushing = False
            entries, self._entries = list(self._entries), deque(maxlen=_MOST_ENTRIES)
            series, self._series = list(self._series), deque(maxlen=_MOST_SERIES)
            sync, self._sync = self._sync, []
        if self._journal is not None and not self._journal.is_file_current():
            self._record_failure(OSError("its file was removed or replaced"))
            self._next_try_mono_s = 0.0  # create a new file at once
        due = bool(sync) or time.monotonic() >= self._next_try_mono_s
        if self._journal is None and due and self._reopen():
            self.notes.append("The journal can be written again.")
            self.reopened = True
        written = not (entries or series) or self._try_write(
            lambda journal: journal.add(entries, series, bool(sync))
        )
        if not written:
            with self._lock:  # in front of newer data; the oldest is dropped
                self._entries = deque([*entries, *self._entries], maxlen=_MOST_ENTRIES)
                self._series = deque([*series, *self._series], maxlen=_MOST_SERIES)
        for event in sync:
            event.set()
        now = time.monotonic()
        if self._journal is not None and self._trim_is_due(now):
            self._next_trim_mono_s = now + _TRIM_S
            self._try_write(lambda journal: journal.trim(time.time()))

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def _trim_is_due(self, now_mono_s: float) -> bool:
        """Whether the interval has passed, or many short jobs have filled the journal since."""
        if now_mono_s >= self._next_trim_mono_s:
            return True
        try:
            return self._journal is not None and self._journal.is_over_limit()
        except sqlite3.Error:
            return False  # the next write reports the error

    def _run_job(self, job: Job) -> Any:
        if self._journal is not None:
            try:
                return job(self._journal)
            except (sqlite3.Error, OSError) as cause:
                self._record_failure(cause)
        raise RequestError(self.fault.message if self.fault else "The journal is not open.")

    def _try_write(self, job: Job) -> bool:
        if self._journal is None:
            return False
        try:
            job(self._journal)
        except (sqlite3.InterfaceError, ValueError, TypeError, OverflowError) as cause:
            # Our data is at fault, not the disk: a retry would not help.
            self.notes.append(f"Some of the journal was left out: {cause!r}")
        except (sqlite3.Error, OSError) as cause:
            self._record_failure(cause)
            return False
        self.fault = None
        return True

    def _reopen(self) -> bool:
        self._next_try_mono_s = time.monotonic() + _RETRY_S
        try:
            self._journal = Journal(self._folder, *self._limits)
        except (sqlite3.Error, OSError) as cause:
            self._record_failure(cause)
            return False
        self.fault = None
        if self._journal.set_aside:
            told = f"journal {self._journal.why} and is kept as {self._journal.set_aside}"
            self.notes.append(f"The {told}; a new one was begun.")
            # for a user who misses the old one
            self.add(Entry(time.time(), "daemon", {"what": f"the {told}"}))
        return True

    def _record_failure(self, cause: Exception) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None
            self._next_try_mono_s = time.monotonic() + _RETRY_S
        if self.fault is None:
            self.notes.append(f"The journal cannot be written: {cause}")
        self.fault = Fault(
            "journal",
            f"The journal in {self._folder} cannot be written: {cause}. "
            "The daemon continues to watch and act; the history may miss what happens now.",
            (
                "Move it away, or make it yours (chown); it is tried again every ten seconds."
                if isinstance(cause, PermissionError)
                else "Make room on that disk or make it writable; it is tried again every ten "
                "seconds."
            ),
        )


def _call_done(done: Done, wanted: Callable[[], bool], value: Any, error: Exception | None) -> None:
    if wanted():
        done(value, error)
