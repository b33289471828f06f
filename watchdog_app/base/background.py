"""
Run reads that can block in worker threads; the caller waits briefly and retries at the next sample.

A read of a process's command line, environment or map waits for a lock of that process:
mmap_lock or exec_update_lock. A process that gets no processor time keeps it, for seconds on a
busy machine.

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

_MOST = 4  # threads: as many processes may keep their locks before others have to wait for them
_STACK_BYTES = 512 * 1024
_LINGER_S = 1.0  # for the next question: to begin a thread costs three times as much as to wake it
# Of one look, for all that is read in it: a tenth of what counts as late.
_LOOK_S = 0.03


class Question(NamedTuple):
    """Key of a read; one key is read once at a time."""

    pid: int
    what: str
    which: Hashable = None  # tells apart whatever has this pid


class _Answer:
    __slots__ = ("dropped", "error", "ready", "value")

    def __init__(self) -> None:
        self.ready = allocate_lock()  # free once the answer is there
        self.ready.acquire()
        self.value: Any = None
        self.error: Exception | None = None
        self.dropped = False


class Background:
    """
    Threads that read what may have to wait; they end when there is nothing more to read.

    Questions are asked by one thread alone.

    Args:
        patience_s: how long `ask` waits for an answer; None: until it is there.
        linger_s: how long a thread waits for the next question; None: for ever.
    """

    def __init__(self, patience_s: float | None = None, linger_s: float | None = _LINGER_S) -> None:
        self._patience_s = patience_s
        self._linger_s = linger_s
        self._left_s = float("inf")  # in the first look there is nothing to miss yet
        self._answers: dict[Question, _Answer] = {}
        self._ready = threading.Condition(threading.Lock())
        self._jobs: deque[tuple[_Answer, Callable[[], Any]]] = deque()
        self._threads = 0
        self._idle = 0  # of them
        self._closed = False

    @property
    def arrived(self) -> bool:
        """Whether an answer is ready and was not collected."""
        return any(not answer.ready.locked() for answer in self._answers.values())

    @property
    def spent(self) -> bool:
        """Whether this look has waited for as long as one may."""
        return self._left_s <= 0.0

    def over(self) -> None:
        """A look is over: the next one may wait again."""
        self._left_s = _LOOK_S

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
        answer = self._answers.get(question)
        if answer is None:
            answer = self._answers[question] = _Answer()
            if self._submit(answer, job):
                self._wait(answer)
        if answer.ready.locked():
            return None
        del self._answers[question]
        if answer.error is not None:
            raise answer.error
        value: T = answer.value
        return value

    def close(self) -> None:
        """Let the threads end that have nothing to read."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def keep(self, there: Container[int]) -> None:
        """Forget what was asked of others: they have ended."""
        for question in [each for each in self._answers if each.pid not in there]:
            self._answers.pop(question).dropped = True

    def forget(self, pid: int) -> None:
        """Forget what was asked of a process."""
        for question in [each for each in self._answers if each.pid == pid]:
            self._answers.pop(question).dropped = True

    def _wait(self, answer: _Answer) -> None:
        if self._patience_s is None:
            answer.ready.acquire()
        elif self._left_s <= 0.0:
            return
        else:
            began = monotonic()
            there = answer.ready.acquire(timeout=min(self._patience_s, self._left_s))
            self._left_s -= monotonic() - began
            if not there:
                return
        answer.ready.release()

    def _submit(self, answer: _Answer, job: Callable[[], Any]) -> bool:
        """Have it read; whether that begins at once."""
        with self._ready:
            self._jobs.append((answer, job))
            if self._idle >= len(self._jobs):
                self._ready.notify()
                return True
            if self._threads >= _MOST:
                return self._patience_s is None
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

    def _run(self, *, linger: bool = True) -> None:
        """In the thread: all that is waiting, and what comes soon after."""
        while True:
            with self._ready:
                while not self._jobs:
                    self._idle += 1
                    if linger and not self._closed:
                        self._ready.wait(self._linger_s)
                    self._idle -= 1
                    if not self._jobs:
                        self._threads -= 1
                        return
                answer, job = self._jobs.popleft()
            if not answer.dropped:
                try:
                    answer.value = job()
                except Exception as error:  # told to who asked
                    answer.error = error
            answer.ready.release()
