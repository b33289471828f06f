"""
The journal behind a thread: a disk that is slow, full or gone never stalls the loop.

The loop hands over and continues. Two things wait, for a bounded time: a decision that must be on
the disk before its action, and the end.
What could not be written is kept in memory as far as it fits, and said.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from watchdog_app.base.errors import RequestError
from watchdog_app.core.model.machine import Fault
from watchdog_app.history.journal import Entry, Journal
from watchdog_app.history.series import SeriesPoints

FLUSH_S = 10.0
_AT_REST_S = 60.0  # one transaction a minute, and one wake-up, while nothing is near
_IDLE_S = 300.0  # ... and while there is nothing to write: who adds something ends the wait
_RETRY_S = 10.0
_TRIM_S = 1800.0
_MOST_ENTRIES = 2000  # kept in memory while the disk takes none
_MOST_SERIES = 20_000
_LATE_S = 0.02  # waited for a disk that has not caught up yet, and how often at most
_LATE_EVERY_S = 1.0
_STACK_BYTES = 512 * 1024

Job = Callable[[Journal], Any]
Done = Callable[[Any, Exception | None], None]


class JournalWriter:
    """
    Owns the journal from `open` to `close`.

    `done` callbacks run in `collect`, which the loop calls after `wake` was called.

    Args:
        folder: of the state.
        max_age_s: of what is kept.
        max_bytes: of the journal.
        wake: called in the thread when there is something to collect.
    """

    def __init__(
        self, folder: str, max_age_s: float, max_bytes: int, wake: Callable[[], None]
    ) -> None:
        self.fault: Fault | None = None
        self.reopened = False  # set when it works again; who owes it something clears it
        self.notes: deque[str] = deque(maxlen=10)  # what the log should say once
        self._folder = folder
        self._limits = (max_age_s, max_bytes)
        self._wake = wake
        self._journal: Journal | None = None
        self._lock = threading.Condition()
        self._entries: deque[Entry] = deque(maxlen=_MOST_ENTRIES)
        self._series: deque[SeriesPoints] = deque(maxlen=_MOST_SERIES)
        self._jobs: deque[tuple[Job, Done | None]] = deque()
        self._questions: deque[tuple[Job, Done, Callable[[], bool]]] = deque()
        self._finished: deque[tuple[Done, Any, Exception | None]] = deque()
        self._sync: list[threading.Event] = []
        self._last_sync: threading.Event | None = None
        self._late_mono_s = float("-inf")  # when one was waited for that had not caught up
        self._closing = False
        self._flush_mono_s = time.monotonic() + FLUSH_S  # when the thread looks what there is
        self._next_try_mono_s = 0.0
        self._next_trim_mono_s = 0.0
        self._thread: threading.Thread | None = None

    def open(self) -> Journal | None:
        """Open the journal and start the thread; the journal for one first read, None if broken."""
        self._reopen()
        old = threading.stack_size(_STACK_BYTES)
        try:
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        finally:
            threading.stack_size(old)
        return self._journal

    def start(self) -> None:
        """From here on the journal belongs to the thread."""
        if self._thread is not None:
            self._thread.start()

    def configure(self, max_age_s: float, max_bytes: int) -> None:
        """
        New bounds after a reload.

        Args:
            max_age_s: of what is kept.
            max_bytes: of the journal.
        """
        self._limits = (max_age_s, max_bytes)

        def take(journal: Journal) -> None:
            journal.max_age_s, journal.max_bytes = max_age_s, max_bytes

        self.submit(take)

    def add(self, *entries: Entry) -> None:
        """Write these within `FLUSH_S`."""
        with self._lock:
            self._entries.extend(entries)
            self._flush_within(FLUSH_S)

    def add_series(self, series: Sequence[SeriesPoints], at_rest: bool = False) -> None:
        """
        Write these within `FLUSH_S`; at rest within a minute.

        Args:
            series: new points.
            at_rest: nothing is near a limit.
        """
        if not series:
            return
        with self._lock:
            self._series.extend(series)
            self._flush_within(_AT_REST_S if at_rest else FLUSH_S)

    def _flush_within(self, seconds: float) -> None:
        """With the lock held: the thread wakes up by then."""
        due = time.monotonic() + seconds
        if due < self._flush_mono_s - 1.0:
            self._flush_mono_s = due
            self._lock.notify()

    def durable(self, entries: Sequence[Entry], timeout_s: float) -> bool:
        """
        Write these and wait until they are on the disk; False: they are not, or not in time.

        A disk that made one caller wait in vain is given little time until it has caught up, and
        once a second at most: 500 ends at once must not add up.

        Args:
            entries: what happened.
            timeout_s: the longest wait.
        """
        written = threading.Event()
        late = self._last_sync is not None and not self._last_sync.is_set()
        self._last_sync = written
        with self._lock:
            self._entries.extend(entries)
            self._sync.append(written)
            self._lock.notify()
        if late:
            now = time.monotonic()
            waited = now - self._late_mono_s < _LATE_EVERY_S
            timeout_s = 0.0 if waited else min(_LATE_S, timeout_s)
            self._late_mono_s = self._late_mono_s if waited else now
        return written.wait(timeout_s) and self.fault is None

    def submit(self, job: Job, done: Done | None = None) -> None:
        """
        Run `job` in the thread after what was handed over before.

        Args:
            job: gets the journal.
            done: called with what it gave, or with the error, in `collect`.
        """
        with self._lock:
            self._jobs.append((job, done))
            self._lock.notify()

    def ask(self, job: Job, done: Done, wanted: Callable[[], bool]) -> None:
        """
        Run `job`, which reads for a client, when nothing is left to be written or kept.

        Args:
            job: does not change the journal.
            done: called with what it gave, or with the error.
            wanted: whether somebody still waits for it; else it is not run.
        """
        with self._lock:
            self._questions.append((job, done, wanted))
            self._lock.notify()

    def collect(self) -> None:
        """Call back what has finished."""
        while self._finished:
            done, value, error = self._finished.popleft()
            done(value, error)

    def close(self, timeout_s: float) -> None:
        """Write out what there is, as far as that takes no longer than `timeout_s`."""
        with self._lock:
            self._closing = True
            self._lock.notify()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                while not (self._closing or self._jobs or self._sync or self._questions):
                    left_s = self._flush_mono_s - time.monotonic()
                    if left_s <= 0:
                        break
                    self._lock.wait(left_s)
                idle = not (self._entries or self._series or self._jobs or self._sync)
                self._flush_mono_s = time.monotonic() + (_IDLE_S if idle else _AT_REST_S)
                closing = self._closing
                entries, self._entries = list(self._entries), deque(maxlen=_MOST_ENTRIES)
                series, self._series = list(self._series), deque(maxlen=_MOST_SERIES)
                jobs, self._jobs = self._jobs, deque()
                sync, self._sync = self._sync, []
                # One at a time: what has to be on the disk waits for no crowd of readers.
                question = self._questions.popleft() if self._questions else None
            if self._journal is not None and not self._journal.in_place():
                self._failed(OSError("its file was removed or replaced"))
                self._next_try_mono_s = 0.0  # a new one can be begun at once
            self._flush(entries, series, bool(sync))
            for event in sync:
                event.set()
            for job, done in jobs:
                self._carry_out(job, done)
            if question is not None:
                job, done, wanted = question
                if wanted():
                    self._carry_out(job, done)
            if self._journal is None:  # it is tried again, whatever there is to write
                with self._lock:
                    self._flush_within(FLUSH_S)
            now = time.monotonic()
            if self._journal is not None and self._trim_is_due(now) and not closing:
                self._next_trim_mono_s = now + _TRIM_S
                self._guarded(lambda journal: journal.trim(time.time()))
            if closing:
                if self._journal is not None:
                    self._journal.close()
                return

    def _trim_is_due(self, now_mono_s: float) -> bool:
        """Now and then; and where a night of short jobs has filled it in between."""
        if now_mono_s >= self._next_trim_mono_s:
            return True
        try:
            return self._journal is not None and self._journal.overflows()
        except sqlite3.Error:
            return False  # whoever writes next hears of it

    def _flush(self, entries: list[Entry], series: list[SeriesPoints], sync: bool) -> None:
        due = sync or time.monotonic() >= self._next_try_mono_s
        if self._journal is None and due and self._reopen():
            self.notes.append("The journal can be written again.")
            self.reopened = True
            self._wake()
        if not entries and not series:
            return
        if self._guarded(lambda journal: journal.add(entries, series, sync)):
            return
        with self._lock:  # before what came meanwhile; the oldest give way
            self._entries = deque([*entries, *self._entries], maxlen=_MOST_ENTRIES)
            self._series = deque([*series, *self._series], maxlen=_MOST_SERIES)

    def _carry_out(self, job: Job, done: Done | None) -> None:
        error: Exception | None = None
        value = None
        try:
            value = job(self._need_journal())
        except (sqlite3.Error, OSError) as cause:
            self._failed(cause)
            error = self._unavailable()
        except Exception as cause:  # told to who asked; the thread lives on
            error = cause
        if done is not None:
            self._finished.append((done, value, error))
            self._wake()

    def _guarded(self, job: Job) -> bool:
        if self._journal is None:
            return False
        try:
            job(self._journal)
        except (sqlite3.InterfaceError, ValueError, TypeError, OverflowError) as cause:
            # What we hand over is at fault, not the disk: trying again would not help.
            self.notes.append(f"Some of the journal was left out: {cause!r}")
        except (sqlite3.Error, OSError) as cause:
            self._failed(cause)
            return False
        self.fault = None
        return True

    def _reopen(self) -> bool:
        self._next_try_mono_s = time.monotonic() + _RETRY_S
        try:
            self._journal = Journal(self._folder, *self._limits)
        except (sqlite3.Error, OSError) as cause:
            self._failed(cause)
            return False
        self.fault = None
        if self._journal.set_aside:
            told = f"journal {self._journal.why} and is kept as {self._journal.set_aside}"
            self.notes.append(f"The {told}; a new one was begun.")
            self.add(Entry(time.time(), "daemon", {"what": f"the {told}"}))  # for who misses it
        return True

    def _failed(self, cause: Exception) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None
            self._next_try_mono_s = time.monotonic() + _RETRY_S
        if self.fault is None:
            self.notes.append(f"The journal cannot be written: {cause}")
        self.fault = Fault(
            "journal",
            f"The journal in {self._folder} cannot be written: {cause}. "
            "Watching and acting go on; what happens now may be missing from the history.",
            (
                "Move it away, or make it yours (chown); it is tried again every ten seconds."
                if isinstance(cause, PermissionError)
                else "Make room on that disk or make it writable; it is tried again every ten "
                "seconds."
            ),
        )

    def _need_journal(self) -> Journal:
        if self._journal is None:
            raise self._unavailable()
        return self._journal

    def _unavailable(self) -> RequestError:
        return RequestError(self.fault.message if self.fault else "The journal is not open.")
