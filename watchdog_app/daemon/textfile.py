"""Writes the metrics to a file for the textfile collector of node_exporter."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from watchdog_app.base.durable import write_atomic
from watchdog_app.base.threads import Worker
from watchdog_app.core.model.status import Status
from watchdog_app.daemon.log import Faults

_INTERVAL_S = 15.0
_LINGER_S = 1.0
_SOURCE = "metrics"
_READABLE = 0o644  # node_exporter runs as another user


class Textfile:
    """
    The metrics file. A thread writes it: the disk can block.

    Args:
        faults: shows why the file cannot be written.
        wake: the thread calls it when a write has ended.
    """

    def __init__(self, faults: Faults, wake: Callable[[], None]) -> None:
        self._faults = faults
        self._worker = Worker(wake, _LINGER_S)
        self._path = ""  # the file that was written
        self._writing = False
        self._next_mono_s = 0.0

    def close(self) -> None:
        """Remove the file: its figures are no longer true. Blocks a second at most."""
        self._remove()
        self._worker.close(_LINGER_S)

    def follow(self, path: str, status: Callable[[], Status], now_mono_s: float) -> None:
        """
        Write the file if it is due.

        Args:
            path: the file; empty: none is wanted.
            status: gives the status.
            now_mono_s: running time.
        """
        self._worker.collect()
        if self._writing:
            if now_mono_s >= self._next_mono_s:
                self._cannot("the disk does not answer")
            return
        if path != self._path:  # the settings were changed
            self._faults.clear(_SOURCE)
            self._next_mono_s = 0.0
            self._remove()
        if not path or now_mono_s < self._next_mono_s:
            return
        from watchdog_app.core.explain.metrics import metrics_text

        self._next_mono_s = now_mono_s + _INTERVAL_S
        content = metrics_text(status(), open_metrics=False).encode()
        self._path, self._writing = path, True

        def written(_: object, error: Exception | None) -> None:
            self._writing = False
            if error is None:
                self._faults.clear(_SOURCE)
            else:
                self._cannot(getattr(error, "strerror", None) or str(error))

        self._worker.submit(lambda: write_atomic(path, content, _READABLE, durable=False), written)

    def _cannot(self, why: str) -> None:
        self._faults.put(
            _SOURCE,
            f"The metrics cannot be written to {self._path}: {why}.",
            "Make that possible, or change [metrics] textfile: watchdog config edit",
        )

    def _remove(self) -> None:
        """Remove the file soon, before a later write."""
        if self._path:
            self._worker.submit(partial(os.unlink, self._path))
        self._path = ""
