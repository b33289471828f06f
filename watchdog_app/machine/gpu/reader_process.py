"""
Start, query, stop and restart the reader process, with a growing back-off. Never waits.

A GPU on which the driver hung or crashed is skipped for a while, so that the others are read.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from watchdog_app.base.line_child import Backoff, LineChild
from watchdog_app.core.model.hardware import GpuState
from watchdog_app.core.model.machine import Fault
from watchdog_app.machine.gpu.backend import BACKENDS, BackendRow, printable
from watchdog_app.machine.gpu.nvml_driver import NOT_WATCHED, READER

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 300.0
# After this time without failures, the next failure counts as the first.
_HEALTHY_S = 60.0
# How long a GPU is skipped at first. A hung call delays all other GPUs by its deadline.
_SKIP_CRASHED_S = 10.0
_SKIP_HUNG_S = 60.0
_SKIP_LAST_S = 1800.0
# On a stalled machine our own polls come late, and the driver is not hung. So require this many.
_MIN_SILENT_POLLS = 3
# Readers blocked in the kernel that SIGKILL does not end: starting more would not help.
_MAX_STUCK = 2
_CLOSE_S = 1.0
_MAX_MESSAGE_CHARS = 2000  # length limit of a message
_KILL_STATUSES = (-signal.SIGTERM, -signal.SIGKILL)
# Errors that parsing a damaged answer can raise; an intact reader's answers never do.
PARSE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_PASSED_VARIABLES = {
    "HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHOME",
    "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV",
}  # fmt: skip


def reader_env(env: Mapping[str, str], library_folder: str | None) -> dict[str, str]:
    """
    Build a plain environment for the reader, without the user's preloads and CUDA settings.

    Args:
        env: ours.
        library_folder: folder of the driver library if the loader does not search it.
    """
    kept = {
        name: value
        for name, value in env.items()
        if name in _PASSED_VARIABLES or name.startswith(("WATCHDOG_", "LC_"))
    }
    if library_folder is not None:
        before = kept.get("LD_LIBRARY_PATH")
        kept["LD_LIBRARY_PATH"] = f"{before}:{library_folder}" if before else library_folder
    return kept


class ReaderProcess:
    """The reader process, its back-off after failures, and the GPUs that it skips."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        deadline_s: float,
        start_s: float,
        *,
        row: BackendRow,
        root: str,
    ) -> None:
        """
        Args:
            argv: command line of the reader; our pid, the name of the row and the root follow.
            env: see `reader_env`.
            deadline_s: for one GPU, and for the driver as a whole.
            start_s: for the driver's own start, which takes seconds per GPU.
            row: the vendor to read.
            root: prefix of /sys and /proc for the reader.
        """
        self._argv = (*argv, str(os.getpid()), row.name, root)
        self._source = READER if row.name == BACKENDS[0].name else f"{READER}.{row.name}"
        self._driver = f"The {row.vendor} driver"
        self._remedy = (
            f"See what the driver says: sudo dmesg | grep -E '{row.log_words}'. If GPU programs "
            "fail too, restart."
        )
        self._env = env
        self._deadline_s = deadline_s
        self._start_s = start_s
        self._child: LineChild | None = None
        self._stopped: list[LineChild] = []  # killed readers that have not ended yet
        self._ready = False
        self._number = 0
        self._waiting = False  # for an answer, or for the reader to be ready
        self._progress_mono_s = 0.0
        self._silent_polls = 0  # polls without an answer since the reader last wrote
        self._current_index: int | None = None  # the GPU that the reader is reading
        self._retry = Backoff()
        self._healthy_since_mono_s: float | None = None
        self._skips: dict[int, Backoff] = {}  # by index of GPUs where the driver hung or crashed
        self._skipped_indices: frozenset[int] = frozenset()  # of the last request
        self._awake: frozenset[int] | None = None  # of the last request; None: all
        self._failed = False  # this reader has reported why it cannot continue
        self.started_mono_s: float | None = None  # of the last reader
        self.asked_mono_s: float | None = None
        self.fault: Fault | None = None  # since the last complete reading
        self.absent = False  # the fault does not count on a machine without a GPU
        self.driver_version: str | None = None

    @property
    def running(self) -> bool:
        """Whether a reader runs."""
        return self._child is not None

    @property
    def pid(self) -> int | None:
        """Pid of the reader process; None: not running."""
        return None if self._child is None else self._child.pid

    def skipped(self, now_mono_s: float) -> frozenset[int]:
        """Indices of the GPUs that are skipped for now."""
        return frozenset(i for i, skip in self._skips.items() if now_mono_s < skip.until_mono_s)

    def skipped_state(self, index: int) -> GpuState | None:
        """
        Return the state of a GPU that the last request left out; None: the request included it.

        Nothing is known about such a GPU: neither that it works nor that it is lost.
        """
        if index in self._skipped_indices:
            return GpuState.SILENT
        return GpuState.OK if self._awake is not None and index not in self._awake else None

    def reset_backoff(self) -> None:
        """Retry at once and stop skipping GPUs, because the driver has changed."""
        self._retry = Backoff()
        self._skips.clear()

    def clear_fault(self) -> None:
        """Clear the fault and the version of a driver that was removed."""
        self.fault, self.absent, self.driver_version = None, False, None

    def start(self, now_mono_s: float, library_folder: str | None) -> None:
        """
        Start a reader, unless it is too early after the last failure.

        Args:
            now_mono_s: monotonic time now.
            library_folder: folder that the loader does not search; None: it finds the library.
        """
        self._reap()
        if now_mono_s < self._retry.until_mono_s:
            return
        if len(self._stopped) >= _MAX_STUCK:
            message = f"{self._driver} hangs in the kernel: {_MAX_STUCK} readers cannot be ended."
            remedy = "Restart the machine: nothing less frees them."
            self._fail(now_mono_s, self._build_fault(message, remedy))
            return
        try:
            self._child = LineChild(self._argv, reader_env(self._env, library_folder))
        except OSError as error:
            message = f"The GPU reader cannot be started: {error.strerror or error}."
            self._fail(now_mono_s, self._build_fault(message, None))
            return
        self._ready = self._failed = False
        self._start_waiting(now_mono_s)
        self.started_mono_s = now_mono_s
        self._healthy_since_mono_s = None

    def ask(
        self, now_mono_s: float, every_s: float, awake: Sequence[tuple[int, str]] | None
    ) -> None:
        """
        Send the next request if it is due and none is running.

        Args:
            now_mono_s: monotonic time now.
            every_s: how long after the last request the next one is due.
            awake: index and PCI address of the GPUs that are not suspended; None: all are awake.
        """
        asked = self.asked_mono_s
        if self._child is None or self._waiting:
            return
        if asked is not None and now_mono_s - asked < every_s:
            return
        self._number += 1
        request: dict[str, Any] = {"id": self._number, "now": now_mono_s}
        self._skipped_indices = self.skipped(now_mono_s)
        if self._skipped_indices:
            request["skip"] = sorted(self._skipped_indices)
        self._awake = None
        if awake is not None:
            request["awake"] = list(awake)
            self._awake = frozenset(index for index, _ in awake)
        self._child.ask(request)
        self._start_waiting(now_mono_s)
        self.asked_mono_s = now_mono_s

    def collect(self, now_mono_s: float) -> list[dict[str, Any]]:
        """
        Return messages about GPUs, events and ends of readings; detect hung and ended readers.
        """
        self._reap()
        child = self._child
        if child is None:
            return []
        # check before reading, so that the last output of an ended reader is read, too
        status = child.status
        found: list[dict[str, Any]] = []
        try:
            for message in child.answers():
                self._progress_mono_s = now_mono_s
                self._silent_polls = 0
                if self._handle_message(message, now_mono_s):
                    found.append(message)
        except PARSE_ERRORS:
            self.restart_damaged(now_mono_s)
            return found
        if status is not None:
            self._handle_exit(status, now_mono_s)
        elif self._waiting:
            self._check_deadline(now_mono_s)
        return found

    def stop(self) -> None:
        """Kill the reader, if one runs; the next `start` starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            self._stopped.append(child)
        self._waiting = False
        self.asked_mono_s = None
        self._reap()

    def stop_for(self, now_mono_s: float, seconds: float, after_s: float = 0.0) -> None:
        """
        Stop the reader between two readings, and start none for some time.

        Args:
            now_mono_s: monotonic time now.
            seconds: until the next reader may start.
            after_s: only a reader at least this old is stopped.
        """
        started = self.started_mono_s
        old = started is not None and now_mono_s - started >= after_s
        if self._child is not None and self._ready and not self._waiting and old:
            self.stop()
            self._retry.until_mono_s = now_mono_s + seconds

    def restart_damaged(self, now_mono_s: float) -> None:
        """Stop a reader whose answers are malformed, and skip the GPU that it was reading."""
        self._skip_gpu(now_mono_s, _SKIP_CRASHED_S)
        message = "The GPU reader was damaged by the driver library and is started again."
        self._fail(now_mono_s, self._build_fault(message, self._remedy))

    def close(self) -> None:
        """End all readers; waits a second at most."""
        self.stop()
        for child in self._stopped:
            child.wait(_CLOSE_S / len(self._stopped))
        self._stopped.clear()

    def _start_waiting(self, now_mono_s: float) -> None:
        """Start the deadline of an answer."""
        self._waiting = True
        self._silent_polls = 0
        self._current_index = None
        self._progress_mono_s = now_mono_s

    def _handle_message(self, message: Mapping[str, Any], now_mono_s: float) -> bool:
        """Update the state by one message; return whether the caller needs the message, too."""
        if "failed" in message:
            failed = message["failed"]
            remedy, source = failed.get("remedy"), printable(failed["source"])
            self.fault = Fault(
                self._source if source == READER else source,
                printable(failed["message"], _MAX_MESSAGE_CHARS),
                None if remedy is None else printable(remedy, _MAX_MESSAGE_CHARS),
            )
            self.absent = bool(failed.get("absent"))
            self._failed = True
            return False
        if "ready" in message:
            driver = message["ready"]["driver"]
            self.driver_version = None if driver is None else printable(driver)
            self._ready, self._waiting = True, False
            # A crash fault stays until a complete reading.
            if self.fault is not None and (
                self.fault.source != self._source or self.fault == self._slow_start_fault()
            ):
                self.fault, self.absent = None, False
            return False
        if message["id"] != self._number:
            return False
        if "begin" in message:
            self._current_index = int(message["begin"])
            return False
        if "end" in message:
            self._waiting = False
            self._current_index = None
            self.fault, self.absent = None, False
            self._reset_failures(now_mono_s)
        return True

    def _handle_exit(self, status: int, now_mono_s: float) -> None:
        if not self._failed:
            self.absent = False
            self.fault = self._exit_fault(status, self._gpu_suffix(" while it asked about"))
            if status not in _KILL_STATUSES:
                self._skip_gpu(now_mono_s, _SKIP_CRASHED_S)
        self._fail(now_mono_s, self.fault)

    def _check_deadline(self, now_mono_s: float) -> None:
        self._silent_polls += 1
        if self._silent_polls < _MIN_SILENT_POLLS:
            return
        silent_s = now_mono_s - self._progress_mono_s
        deadline_s = self._deadline_s if self._ready else self._start_s
        if silent_s > deadline_s:
            self._skip_gpu(now_mono_s, _SKIP_HUNG_S)
            means = "This GPU is not watched for now; others are."
            about = self._gpu_suffix(" about")
            message = f"{self._driver} did not answer{about} within {deadline_s:g} s."
            means = NOT_WATCHED if self._current_index is None else means
            self._fail(now_mono_s, self._build_fault(message, self._remedy, means))
        elif silent_s > self._deadline_s and self.fault is None:
            self.fault = self._slow_start_fault()

    def _skip_gpu(self, now_mono_s: float, first_s: float) -> None:
        """Skip the GPU that the reader was reading for a while, longer each time."""
        if self._current_index is not None:
            skip = self._skips.setdefault(self._current_index, Backoff())
            skip.failed(now_mono_s, first_s, _SKIP_LAST_S)

    def _reset_failures(self, now_mono_s: float) -> None:
        if self._healthy_since_mono_s is None:
            self._healthy_since_mono_s = now_mono_s
        elif now_mono_s - self._healthy_since_mono_s >= _HEALTHY_S:
            self._retry.failures = 0
        for skip in self._skips.values():
            if now_mono_s >= skip.until_mono_s + _HEALTHY_S:
                skip.failures = 0

    def _fail(self, now_mono_s: float, fault: Fault | None) -> None:
        self.fault = fault
        self.stop()
        self._retry.failed(now_mono_s, FIRST_RETRY_S, LAST_RETRY_S)

    def _gpu_suffix(self, words: str) -> str:
        """Name the GPU that the reader was reading, if any."""
        return "" if self._current_index is None else f"{words} GPU {self._current_index}"

    def _reap(self) -> None:
        self._stopped = [child for child in self._stopped if child.status is None]

    # Faults

    def _build_fault(self, message: str, remedy: str | None, means: str = NOT_WATCHED) -> Fault:
        return Fault(self._source, f"{message} {means}", remedy)

    def _slow_start_fault(self) -> Fault:
        return self._build_fault(
            f"{self._driver} has not finished its initialisation within {self._deadline_s:g} s.",
            f"A machine with many GPUs needs longer: wait a minute. {self._remedy}",
        )

    def _exit_fault(self, status: int, where: str) -> Fault:
        """Build the fault of a reader that ended or was killed."""
        means = "It is started again; GPU figures are missing meanwhile."
        if status in _KILL_STATUSES:
            by = "by a person, or by the kernel when memory ran out"
            return self._build_fault(f"The GPU reader was killed: {by}.", None, means)
        if status >= 0:
            message = f"The GPU reader ended with status {status}{where}."
            return self._build_fault(message, self._remedy, means)
        name = signal.strsignal(-status) or f"signal {-status}"
        message = f"The driver library crashed ({name}){where}."
        return self._build_fault(message, self._remedy, means)
