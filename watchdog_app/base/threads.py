"""
Run what may block in threads; the caller collects the results in its own thread.

`Worker` is for what may take seconds: stopping a task, showing a notification, asking a disk.
`Background` is for reads of the kernel that usually take microseconds: a read of a process's
command line, environment or map waits for a lock of that process, mmap_lock or exec_update_lock. A
process that gets no processor time keeps it, for seconds on a busy machine.

Source: proc(5); kernel, fs/proc/base.c (get_mm_cmdline, environ_read), mm/memory.c
(access_remote_vm).
"""

from __future__ import annotations

import threading
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Container, Hashable
from time import monotonic
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Done = Callable[[Any, Exception | None], None]

_MAX_THREADS = (
    4  # threads: as many processes may keep their locks before others have to wait for them
)
# The usual 8 MB would all be resident in a daemon that locks its memory.
_STACK_BYTES = 512 * 1024
_LINGER_S = 1.0  # for the next question: to begin a thread costs three times as much as to wake it
# Of one look, for all that is read in it: a tenth of what counts as late.
_SAMPLE_WAIT_S = 0.03


class _Threads:
    """
    Threads that run jobs; each is started when it is first needed.

    Args:
        most: threads at once.
        linger_s: how long a thread waits for the next job before it ends; None: until `close`.
    """

    def __init__(self, most: int, linger_s: float | None) -> None:
        self._most = most
        self._linger_s = linger_s
        self._changed = threading.Condition(threading.Lock())  # for all below
        self.jobs: deque[Callable[[], None]] = deque()  # not begun
        self._unfinished = 0
        self._threads = 0
        self._idle = 0  # of them
        self._closed = False

    def submit(self, job: Callable[[], None]) -> bool:
        """Run `job`, which raises nothing; whether it begins at once."""
        with self._changed:
            self.jobs.append(job)
            self._unfinished += 1
            if self._idle >= len(self.jobs):
                self._changed.notify_all()
                return True
            if self._threads >= self._most:
                return False
            self._threads += 1
        old = threading.stack_size(_STACK_BYTES)
        try:
            # Not threading.Thread, which waits until the new one has been given a processor.
            start_new_thread(self._run, ())
        except RuntimeError:  # no thread can be had now: late is better than never
            self._run(linger=False)
        finally:
            threading.stack_size(old)
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait until all jobs are done."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unfinished, timeout_s)

    def close(self) -> None:
        """Let the threads end once all jobs are done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self, *, linger: bool = True) -> None:
        while True:
            with self._changed:
                if not self.jobs and linger:
                    self._idle += 1
                    self._changed.wait_for(lambda: self.jobs or self._closed, self._linger_s)
                    self._idle -= 1
                if not self.jobs:
                    self._threads -= 1
                    return
                job = self.jobs.popleft()
            job()
            with self._changed:
                self._unfinished -= 1
                if not self._unfinished:
                    self._changed.notify_all()


class Worker:
    """
    Runs jobs in one thread, one after the other; `collect` calls their `done`.

    Args:
        wake: called in the thread when there is something to collect.
        linger_s: how long the thread waits for the next job before it ends; None: until `close`.
    """

    def __init__(
        self, wake: Callable[[], None] = lambda: None, linger_s: float | None = None
    ) -> None:
        self._wake = wake
        self._threads = _Threads(1, linger_s)
        self._finished: deque[tuple[Done | None, Any, Exception | None]] = deque()

    def submit(self, job: Callable[[], Any], done: Done | None = None) -> None:
        """
        Run `job` soon; then `done(value, None)` or `done(None, error)`.

        Args:
            job: called in the worker's thread.
            done: called by `collect` in the caller's thread.
        """

        def run() -> None:
            value, error = None, None
            try:
                value = job()
            except Exception as cause:  # told to who asked; the thread lives on
                error = cause
            self._finished.append((done, value, error))
            self._wake()

        self._threads.submit(run)

    @property
    def waiting(self) -> int:
        """Jobs that have not begun."""
        return len(self._threads.jobs)

    def collect(self, wait_s: float = 0.0) -> None:
        """Call `done` of the jobs that have finished; wait up to `wait_s` for all of them."""
        if wait_s:
            self._threads.wait(wait_s)
        while self._finished:
            done, value, error = self._finished.popleft()
            if done is not None:
                done(value, error)

    def close(self, timeout_s: float = 0.0) -> None:
        """Finish what was submitted, as far as that takes no longer than `timeout_s`."""
        self._threads.close()
        self.collect(timeout_s)


class Question(NamedTuple):
    """Key of a read; one key is read once at a time."""

    pid: int
    what: str
    which: Hashable = None  # tells apart whatever has this pid


class _PendingRead:
    __slots__ = ("dropped", "error", "ready", "value")

    def __init__(self) -> None:
        self.ready = allocate_lock()  # free once the answer is there
        self.ready.acquire()
        self.value: Any = None
        self.error: Exception | None = None
        self.dropped = False


class Background:
    """
    Reads that may block, each in one of four threads; the caller waits briefly and asks again.

    Questions are asked by one thread alone.

    Args:
        patience_s: how long `ask` waits for an answer; None: until it is there.
        linger_s: how long a thread waits for the next question; None: for ever.
    """

    def __init__(self, patience_s: float | None = None, linger_s: float | None = _LINGER_S) -> None:
        self._patience_s = patience_s
        self._threads = _Threads(_MAX_THREADS, linger_s)
        self._remaining_s = float("inf")  # in the first look there is nothing to miss yet
        self._pending: dict[Question, _PendingRead] = {}

    @property
    def is_exhausted(self) -> bool:
        """Whether this sample has used up its waiting time."""
        return self._remaining_s <= 0.0

    def end_sample(self) -> None:
        """Reset the waiting time: the next sample may wait again."""
        self._remaining_s = _SAMPLE_WAIT_S

    def ask(self, question: Question, job: Callable[[], T]) -> T | None:
        """
        What `job` finds, which is never None; None: that has not come yet, so ask again.

        An answer is given once: who asks again after it has it read anew.

        Args:
            question: what the answer is kept under until it is taken.
            job: reads it, in another thread.

        Raises:
            Exception: what `job` has raised.
        """
        answer = self._pending.get(question)
        if answer is None:
            answer = self._pending[question] = _PendingRead()
            if self._submit(answer, job) or self._patience_s is None:
                self._wait(answer)
        if answer.ready.locked():
            return None
        del self._pending[question]
        if answer.error is not None:
            raise answer.error
        value: T = answer.value
        return value

    def wait(self, timeout_s: float) -> None:
        """Wait until all that was asked is read; `ask` then gives it."""
        self._threads.wait(timeout_s)

    def close(self) -> None:
        """Let the threads end that have nothing to read."""
        self._threads.close()

    def drop_ended(self, alive: Container[int]) -> None:
        """Drop the reads of all processes that are not alive any more."""
        for question in [each for each in self._pending if each.pid not in alive]:
            self._pending.pop(question).dropped = True

    def drop(self, pid: int) -> None:
        """Drop the reads of one process."""
        for question in [each for each in self._pending if each.pid == pid]:
            self._pending.pop(question).dropped = True

    def _wait(self, answer: _PendingRead) -> None:
        if self._patience_s is None:
            answer.ready.acquire()
        elif self._remaining_s <= 0.0:
            return
        else:
            began = monotonic()
            there = answer.ready.acquire(timeout=min(self._patience_s, self._remaining_s))
            self._remaining_s -= monotonic() - began
            if not there:
                return
        answer.ready.release()

    def _submit(self, answer: _PendingRead, job: Callable[[], Any]) -> bool:
        """Submit a read; whether a thread starts it at once."""

        def run() -> None:
            if not answer.dropped:
                try:
                    answer.value = job()
                except Exception as error:  # told to who asked
                    answer.error = error
            answer.ready.release()

        return self._threads.submit(run)
