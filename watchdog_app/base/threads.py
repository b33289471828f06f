"""
Run blocking calls in threads; the caller collects the results in its own thread.

`Worker` is for calls that may take seconds: stop a task, show a notification, read a disk.
`Background` is for reads from the kernel that usually take microseconds. A read of a process's
command line, environment or map waits for a lock of that process (mmap_lock, exec_update_lock). On
a busy machine a process without CPU time may keep that lock for seconds.

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

_MAX_THREADS = 4  # this many blocked reads do not delay the reads of other processes
# The default of 8 MB would be resident in a daemon that locks its memory.
_STACK_BYTES = 512 * 1024
_LINGER_S = 1.0  # wait for the next read: starting a thread costs three times a wake-up
# Longest wait for all reads of one sample: a tenth of the delay that counts as late.
_SAMPLE_WAIT_S = 0.03


class _Threads:
    """
    Threads that run jobs; each starts when it is first needed.

    Args:
        most: maximum number of threads.
        linger_s: time that a thread waits for the next job before it ends; None: until `close`.
    """

    def __init__(self, most: int, linger_s: float | None) -> None:
        self._most = most
        self._linger_s = linger_s
        self._changed = threading.Condition(threading.Lock())  # protects all attributes below
        self._jobs: deque[Callable[[], None]] = deque()  # jobs that have not started
        self._unfinished = 0
        self._threads = 0
        self._idle = 0  # threads that wait for a job
        self._closed = False

    def start(self, job: Callable[[], None]) -> bool:
        """Run `job`, which must not raise; return whether it starts at once."""
        with self._changed:
            self._jobs.append(job)
            self._unfinished += 1
            if self._idle >= len(self._jobs):
                self._changed.notify_all()
                return True
            if self._threads >= self._most:
                return False
            self._threads += 1
        old = threading.stack_size(_STACK_BYTES)
        try:
            # Not threading.Thread, because it waits until the new thread runs.
            start_new_thread(self._run, ())
        except RuntimeError:  # no thread available: run the job here, which blocks the caller
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
                if not self._jobs and linger:
                    self._idle += 1
                    self._changed.wait_for(lambda: self._jobs or self._closed, self._linger_s)
                    self._idle -= 1
                if not self._jobs:
                    self._threads -= 1
                    return
                job = self._jobs.popleft()
            job()
            with self._changed:
                self._unfinished -= 1
                if not self._unfinished:
                    self._changed.notify_all()


class Worker(_Threads):
    """
    Runs jobs one after the other in one thread; `collect` calls their `done`.

    Args:
        wake: called in the thread when a job has finished.
        linger_s: time that the thread waits for the next job before it ends; None: until `close`.
    """

    def __init__(
        self, wake: Callable[[], None] = lambda: None, linger_s: float | None = None
    ) -> None:
        super().__init__(1, linger_s)
        self._wake = wake
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
            except Exception as cause:  # passed to `done`; the thread continues
                error = cause
            self._finished.append((done, value, error))
            self._wake()

        self.start(run)

    @property
    def waiting(self) -> int:
        """Number of jobs that have not started."""
        return len(self._jobs)

    def collect(self, wait_s: float = 0.0) -> None:
        """Call `done` of finished jobs, after waiting up to `wait_s` for all jobs."""
        if wait_s:
            self.wait(wait_s)
        while self._finished:
            done, value, error = self._finished.popleft()
            if done is not None:
                done(value, error)

    def close(self, timeout_s: float = 0.0) -> None:
        """End the thread after its jobs, and collect results for up to `timeout_s`."""
        super().close()
        self.collect(timeout_s)


class Question(NamedTuple):
    """Key of a read; only one read per key runs at a time."""

    pid: int
    what: str
    which: Hashable = None  # distinguishes processes with the same pid


class _PendingRead:
    __slots__ = ("_job", "dropped", "error", "ready", "value")

    def __init__(self, job: Callable[[], Any]) -> None:
        self._job = job
        self.ready = allocate_lock()  # released when the result is available
        self.ready.acquire()
        self.value: Any = None
        self.error: Exception | None = None
        self.dropped = False

    def run(self) -> None:
        if not self.dropped:
            try:
                self.value = self._job()
            except Exception as error:  # `ask` raises it
                self.error = error
        self.ready.release()


class Background(_Threads):
    """
    Runs reads that may block in four threads; the caller waits briefly and asks again later.

    Only one thread may call `ask`.

    Args:
        patience_s: longest wait of `ask` for a result; None: until the result is available.
        linger_s: time that a thread waits for the next read; None: until `close`.
    """

    def __init__(self, patience_s: float | None = None, linger_s: float | None = _LINGER_S) -> None:
        super().__init__(_MAX_THREADS, linger_s)
        self._patience_s = patience_s
        self._remaining_s = float("inf")  # the first sample may wait without limit
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
        The result of `job`, which is never None; None: not available yet, so ask again.

        Each result is returned once. The next call with the same key reads again.

        Args:
            question: key of the read.
            job: function that reads, called in another thread.

        Raises:
            Exception: the exception of `job`.
        """
        answer = self._pending.get(question)
        if answer is None:
            answer = self._pending[question] = _PendingRead(job)
            if self.start(answer.run) or self._patience_s is None:
                self._wait(answer)
        if answer.ready.locked():
            return None
        del self._pending[question]
        if answer.error is not None:
            raise answer.error
        value: T = answer.value
        return value

    def drop_ended(self, alive: Container[int]) -> None:
        """Drop the reads of all processes that have ended."""
        for question in [each for each in self._pending if each.pid not in alive]:
            self._pending.pop(question).dropped = True

    def drop(self, pid: int) -> None:
        """Drop the reads of one process."""
        for question in [each for each in self._pending if each.pid == pid]:
            self._pending.pop(question).dropped = True

    def _wait(self, answer: _PendingRead) -> None:
        if self._patience_s is None:
            answer.ready.acquire()
            answer.ready.release()
            return
        began = monotonic()
        wait_s = max(0.0, min(self._patience_s, self._remaining_s))
        if answer.ready.acquire(timeout=wait_s):
            answer.ready.release()
        self._remaining_s -= monotonic() - began
