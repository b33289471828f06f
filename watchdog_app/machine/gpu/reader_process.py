"""
Start, ask, stop and restart the reader process, with a growing back-off. Nothing here waits.

A GPU on which the driver hung or crashed is left out for a while, so that the others are read.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, cast

from watchdog_app.core.model.hardware import GpuState
from watchdog_app.core.model.machine import Fault
from watchdog_app.machine.gpu.backend import printable
from watchdog_app.machine.gpu.nvml_driver import CHECK_LOG_REMEDY, NOT_WATCHED, READER

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 300.0
# So long it has to go well for the next failure to count as a first one.
_HEALTHY_S = 60.0
# How long a GPU is left out at first: one whose call did not return costs all others its deadline.
_SKIP_CRASHED_S = 10.0
_SKIP_HUNG_S = 60.0
_SKIP_LAST_S = 1800.0
# On a machine that stalls we come late ourselves: it is not the driver that hangs.
_MIN_SILENT_POLLS = 3
# Readers that SIGKILL does not end, waiting in the kernel: more would help nobody.
_MAX_STUCK = 2
_CLOSE_S = 1.0
_MAX_MESSAGE_CHARS = 2000  # characters of a sentence
_CHUNK = 1 << 16
_MAX_CHUNKS = 64
_MAX_BYTES = 8 << 20  # an answer is some kilobytes; 16 GPUs with 1000 processes are one megabyte
_KILL_STATUSES = (-signal.SIGTERM, -signal.SIGKILL)
# What taking apart an answer raises that none of our readers gives: too deep, infinite, not there.
PARSE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_PASSED_VARIABLES = {
    "HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHOME",
    "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV",
}  # fmt: skip


def reader_env(env: Mapping[str, str], library_folder: str | None) -> dict[str, str]:
    """
    A plain environment: what the user preloads or sets for CUDA is not for the reader.

    Args:
        env: ours.
        library_folder: where the driver library lies if the loader does not look there.
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


class ReaderChild:
    """One reader, from its start to its end."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """
        Start it; takes a millisecond or two.

        Args:
            argv: command line of the reader; our pid follows.
            env: its whole environment.

        Raises:
            OSError: it cannot be started.
        """
        self._process = subprocess.Popen(
            [*argv, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=dict(env),
            start_new_session=True,  # Ctrl-C in the daemon's terminal is not for it
        )
        self._requests = cast(IO[bytes], self._process.stdin)
        self._output = cast(IO[bytes], self._process.stdout)
        os.set_blocking(self._output.fileno(), False)
        self._partial_line = b""

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it lives."""
        return self._process.poll()

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send one request. One that is gone, or whose pipe is full, is found out otherwise."""
        with suppress(OSError, ValueError):
            self._requests.write(json.dumps(request, separators=(",", ":")).encode() + b"\n")

    def answers(self) -> list[dict[str, Any]]:
        """
        Every whole line that has come.

        Raises:
            ValueError: what came is no answer of the reader's.
        """
        data = self._partial_line + self._read()
        if len(data) > _MAX_BYTES:
            raise ValueError("an answer without an end")
        *lines, self._partial_line = data.split(b"\n")
        found = []
        for line in lines:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("an answer that is no object")  # noqa: TRY004 - a bad line
            found.append(message)
        return found

    def kill(self) -> None:
        """End it now, even in a call that never returns. One in the kernel ends later, or never."""
        with suppress(OSError):
            self._requests.close()
        with suppress(OSError):
            self._process.kill()
        self._output.close()

    def wait(self, seconds: float) -> None:
        """Wait for its end, for the daemon's own end alone."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        if self._process.poll() is None:
            # Nobody can end it; Popen would warn that it still runs.
            self._process.returncode = -signal.SIGKILL

    def _read(self) -> bytes:
        chunks: list[bytes] = []
        with suppress(OSError, ValueError):
            while len(chunks) < _MAX_CHUNKS and (chunk := os.read(self._output.fileno(), _CHUNK)):
                chunks.append(chunk)
        return b"".join(chunks)


@dataclass(slots=True)
class _Backoff:
    """When what has failed is tried again: later after each further failure."""

    until_mono_s: float = -math.inf
    failures: int = 0

    def failed(self, now_mono_s: float, first_s: float, last_s: float) -> None:
        """
        It has failed once more: wait `first_s`, twice as long each time, at most `last_s`.

        Args:
            now_mono_s: when.
            first_s: the first wait.
            last_s: the longest.
        """
        self.until_mono_s = now_mono_s + min(first_s * 2 ** min(self.failures, 16), last_s)
        self.failures += 1


class ReaderProcess:
    """The reader process, its back-off after failures, and the GPUs that it skips."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], deadline_s: float, start_s: float
    ) -> None:
        """
        Args:
            argv: command line of the reader; our pid follows.
            env: see `reader_env`.
            deadline_s: for one GPU, and for the driver as a whole.
            start_s: for the driver's own start, which takes seconds a GPU.
        """
        self._argv = tuple(argv)
        self._env = env
        self._deadline_s = deadline_s
        self._start_s = start_s
        self._child: ReaderChild | None = None
        self._stopped: list[ReaderChild] = []  # killed or let go, not gone yet
        self._ready = False
        self._number = 0
        self._waiting = False  # for an answer, or for the reader to be ready
        self._progress_mono_s = 0.0
        self._silent_polls = 0  # in vain, since it last said something
        self._current_index: int | None = None  # the GPU that is being asked about
        self._started_mono_s: float | None = None
        self._retry = _Backoff()
        self._healthy_since_mono_s: float | None = None
        self._skips: dict[int, _Backoff] = {}  # by index of GPUs where the driver hung or crashed
        self._skipped_indices: frozenset[int] = frozenset()  # of the last request
        self._awake: frozenset[int] | None = None  # likewise; None: all are
        self._failed = False  # this reader said why it cannot go on
        self.asked_mono_s: float | None = None
        self.fault: Fault | None = None  # since the last complete reading
        self.absent = False  # that is no fault where there is no GPU
        self.driver_version: str | None = None

    @property
    def running(self) -> bool:
        """There is a reader."""
        return self._child is not None

    @property
    def pid(self) -> int | None:
        """Its process."""
        return None if self._child is None else self._child.pid

    def skipped(self, now_mono_s: float) -> frozenset[int]:
        """Indices of the GPUs that are not asked about for now."""
        return frozenset(i for i, skip in self._skips.items() if now_mono_s < skip.until_mono_s)

    def skipped_state(self, index: int) -> GpuState | None:
        """
        How a GPU counts of which the last request did not ask; None: it was asked.

        Nothing can be said of such a GPU: not that it is well, nor that it is gone.
        """
        if index in self._skipped_indices:
            return GpuState.SILENT
        return GpuState.OK if self._awake is not None and index not in self._awake else None

    def reset_backoff(self) -> None:
        """Retry at once and skip no GPU any more: the driver has changed."""
        self._retry = _Backoff()
        self._skips.clear()

    def clear_fault(self) -> None:
        """Forget the fault and the version of a driver that was removed."""
        self.fault, self.absent, self.driver_version = None, False, None

    def start(self, now_mono_s: float, library_folder: str | None) -> None:
        """
        Start a reader, unless it is too early after the last failure.

        Args:
            now_mono_s: now.
            library_folder: where the loader would not look by itself; None: it finds the library.
        """
        self._reap()
        if now_mono_s < self._retry.until_mono_s:
            return
        if len(self._stopped) >= _MAX_STUCK:
            said = f"The GPU driver hangs in the kernel: {_MAX_STUCK} readers cannot be ended."
            remedy = "Restart the machine: nothing less frees them."
            self._fail(now_mono_s, _reader_fault(said, remedy))
            return
        try:
            self._child = ReaderChild(self._argv, reader_env(self._env, library_folder))
        except OSError as error:
            said = f"The GPU reader cannot be started: {error.strerror or error}."
            self._fail(now_mono_s, _reader_fault(said, None))
            return
        self._ready = self._failed = False
        self._start_waiting(now_mono_s)
        self._started_mono_s = now_mono_s
        self._healthy_since_mono_s = None

    def ask(
        self, now_mono_s: float, every_s: float, awake: Sequence[tuple[int, str]] | None
    ) -> None:
        """
        Send the next request if it is due and none is under way.

        Args:
            now_mono_s: now.
            every_s: how long after the last request the next one is due.
            awake: index and PCI address of the GPUs that do not sleep; None: all are awake.
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
        """Messages with GPUs, events and ends of readings; finds out who hangs and who is gone."""
        self._reap()
        child = self._child
        if child is None:
            return []
        status = child.status  # before reading: what it said last is read all the same
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
        """Kill the reader, if one runs; the next `start` makes another."""
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
            now_mono_s: now.
            seconds: until the next reader may start.
            after_s: a reader that is younger goes on.
        """
        started = self._started_mono_s
        old = started is not None and now_mono_s - started >= after_s
        if self._child is not None and self._ready and not self._waiting and old:
            self.stop()
            self._retry.until_mono_s = now_mono_s + seconds

    def restart_damaged(self, now_mono_s: float) -> None:
        """Stop a reader whose answers make no sense, and skip the GPU that it was reading."""
        self._skip_gpu(now_mono_s, _SKIP_CRASHED_S)
        said = "The GPU reader was damaged by the driver library and is started again."
        self._fail(now_mono_s, _reader_fault(said))

    def close(self) -> None:
        """End everything; waits a second at most."""
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
        """Update the state by one message; whether the caller needs the message, too."""
        if "failed" in message:
            failed = message["failed"]
            remedy = failed.get("remedy")
            self.fault = Fault(
                printable(failed["source"]),
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
            # A crash is over once everything has been read again.
            if self.fault is not None and (
                self.fault.source != READER or self.fault == _slow_start_fault(self._deadline_s)
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
            self.fault = _exit_fault(status, self._gpu_suffix(" while it asked about"))
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
            said = f"The GPU driver did not answer{about} within {deadline_s:g} s."
            index = self._current_index
            self._fail(
                now_mono_s,
                _reader_fault(said, CHECK_LOG_REMEDY, NOT_WATCHED if index is None else means),
            )
        elif silent_s > self._deadline_s and self.fault is None:
            self.fault = _slow_start_fault(self._deadline_s)

    def _skip_gpu(self, now_mono_s: float, first_s: float) -> None:
        """The GPU that was asked about is left out for a while, longer each time."""
        if self._current_index is not None:
            skip = self._skips.setdefault(self._current_index, _Backoff())
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
        """Which GPU was being asked about, if one was."""
        return "" if self._current_index is None else f"{words} GPU {self._current_index}"

    def _reap(self) -> None:
        self._stopped = [child for child in self._stopped if child.status is None]


def _reader_fault(
    said: str, remedy: str | None = CHECK_LOG_REMEDY, means: str = NOT_WATCHED
) -> Fault:
    return Fault(READER, f"{said} {means}", remedy)


def _slow_start_fault(deadline_s: float) -> Fault:
    return _reader_fault(
        f"The GPU driver has not finished its initialisation within {deadline_s:g} s.",
        f"A machine with many GPUs needs longer: wait a minute. {CHECK_LOG_REMEDY}",
    )


def _exit_fault(status: int, where: str) -> Fault:
    """The reader ended by itself, or was ended by somebody."""
    means = "It is started again; GPU figures are missing meanwhile."
    if status in _KILL_STATUSES:
        by = "by a person, or by the kernel when memory ran out"
        return _reader_fault(f"The GPU reader was killed: {by}.", None, means)
    if status >= 0:
        return _reader_fault(
            f"The GPU reader ended with status {status}{where}.", CHECK_LOG_REMEDY, means
        )
    name = signal.strsignal(-status) or f"signal {-status}"
    said = f"The driver library crashed ({name}){where}."
    return _reader_fault(said, CHECK_LOG_REMEDY, means)
