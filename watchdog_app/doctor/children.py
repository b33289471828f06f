"""
Run programs that may hang or crash, with a deadline.

A driver library that waits for its kernel module may not even end by SIGKILL. So the doctor kills
the child and does not wait for its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from watchdog_app.base.text.quantities import format_duration

_MAX_BYTES = 1 << 18  # of each stream; the rest is read and dropped
_AFTER_END_S = 0.5
_START_S, _POLL_S = 1.0, 0.01  # to start a child; a dead network disk may block it for ever

_lock = threading.Lock()
_running_groups: set[int] = set()  # process groups that have not ended yet
_starting: set[int] = set()  # ids of threads that are starting a child
_closed = threading.Event()


@dataclass(frozen=True, slots=True)
class ChildResult:
    """The output of a child, and how it ended."""

    stdout: str
    stderr: str
    code: int | None  # negative: the signal that ended it; None: killed at its deadline
    seconds: float

    @property
    def timed_out(self) -> bool:
        """Whether the child was killed at its deadline."""
        return self.code is None

    def objects(self, mark: str = "") -> Iterator[dict[str, Any]]:
        """Yield the JSON objects in the output, one per marked line; ignore all other lines."""
        for line in self.stdout.splitlines():
            try:
                said = json.loads(line.removeprefix(mark)) if line.startswith(mark) else None
            except ValueError:
                continue
            if isinstance(said, dict):
                yield said

    @property
    def end_text(self) -> str:
        """How the child ended, in words."""
        if self.code is None:
            return f"it did not end within {format_duration(self.seconds)}"
        if self.code < 0:
            try:
                return f"it was ended by {signal.Signals(-self.code).name}"
            except ValueError:
                return f"it was ended by signal {-self.code}"
        return f"it ended with status {self.code}"


def run(
    words: Sequence[str], timeout_s: float, env: Mapping[str, str], cwd: str | None = None
) -> ChildResult:
    """
    Run a program to its end or to its deadline.

    Raises:
        OSError: it cannot be started, or `kill_all` was called.
    """
    begun = time.monotonic()
    # An interpreter on a dead network disk hangs during its start. With vfork this whole process
    # would hang, too. Start it without the lock: otherwise `kill_all` would hang as well.
    subprocess._USE_VFORK = False  # type: ignore[misc]
    with _lock:
        if _closed.is_set():
            raise OSError("the doctor was interrupted")
        _starting.add(threading.get_ident())
    try:
        child = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,  # so that its own children are killed, too
            close_fds=True,
            bufsize=0,
        )
        with _lock:
            _running_groups.add(child.pid)
            if _closed.is_set():
                _kill(child.pid)
    finally:
        _starting.discard(threading.get_ident())
    kept = bytearray(), bytearray()
    readers = [
        threading.Thread(target=_drain, args=pair, daemon=True)
        for pair in zip((child.stdout, child.stderr), kept, strict=True)
    ]
    for reader in readers:
        reader.start()
    code: int | None = None
    try:
        with suppress(subprocess.TimeoutExpired):
            code = child.wait(timeout_s)
    finally:
        # Also after a normal end: processes that it started must not stay behind.
        with _lock:
            _kill(child.pid)
            _running_groups.discard(child.pid)
        with suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
            child.wait(_AFTER_END_S)
    for reader in readers:
        reader.join(_AFTER_END_S)  # a child that hangs in the kernel keeps its pipes open
    out, err = (bytes(each).decode("utf-8", "replace") for each in kept)
    return ChildResult(out, err, code, time.monotonic() - begun)


def kill_all() -> None:
    """
    Kill every running child and start no more: this process is about to end.

    Children have their own sessions, so neither Ctrl-C nor a closed terminal reaches them. Without
    this, a half-imported framework would run for another minute and use a GiB.
    """
    with _lock:
        _closed.set()
        for pid in _running_groups:
            _kill(pid)
    # A thread that is starting a child kills it, unless this process ends first.
    end_mono_s = time.monotonic() + _START_S
    while _starting and time.monotonic() < end_mono_s:
        time.sleep(_POLL_S)


def _drain(stream: IO[bytes], kept: bytearray) -> None:
    """Read a stream to its end; drop what exceeds the limit."""
    with stream:
        while chunk := stream.read(1 << 16):
            if len(kept) < _MAX_BYTES:
                kept.extend(chunk)


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
