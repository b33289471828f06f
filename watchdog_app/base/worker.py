"""
A thread for what may take seconds: stopping a task, showing a notice. Started when first needed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

Done = Callable[[Any, Exception | None], None]

_STACK_BYTES = 512 * 1024


class Worker:
    """Runs jobs one after the other; `done` is called in `collect`, by who calls that."""

    def __init__(self, wake: Callable[[], None], name: str) -> None:
        self._wake = wake
        self._name = name
        self._ready = threading.Condition()
        self._jobs: deque[tuple[Callable[[], Any], Done]] = deque()
        self._finished: deque[tuple[Done, Any, Exception | None]] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False

    def submit(self, job: Callable[[], Any], done: Done) -> None:
        """
        Run `job` soon; then `done(value, None)` or `done(None, error)`.

        Args:
            job: called in the worker's thread.
            done: called by `collect` in the caller's thread.
        """
        with self._ready:
            self._jobs.append((job, done))
            if self._thread is None:
                old = threading.stack_size(_STACK_BYTES)
                try:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
                finally:
                    threading.stack_size(old)
            self._ready.notify()

    @property
    def waiting(self) -> int:
        """Jobs that have not begun."""
        return len(self._jobs)

    def collect(self) -> None:
        """Call back what has finished."""
        while self._finished:
            done, value, error = self._finished.popleft()
            done(value, error)

    def close(self, timeout_s: float) -> None:
        """Finish what was submitted, as far as that takes no longer than `timeout_s`."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)
        self.collect()

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._jobs and not self._closing:
                    self._ready.wait()
                if not self._jobs:
                    return
                job, done = self._jobs.popleft()
            error: Exception | None = None
            value = None
            try:
                value = job()
            except Exception as cause:  # told to who asked; the thread lives on
                error = cause
            self._finished.append((done, value, error))
            self._wake()
