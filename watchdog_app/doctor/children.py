"""
Programs that may hang or crash, run with a deadline.

A driver library that waits for its kernel module cannot be ended by anybody, so
nobody waits for it: the child is killed, and left to the system when even that
does not help.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watchdog_app.base.text.quantities import format_duration

_MOST_BYTES = 1 << 18  # of each stream; the rest is read and dropped
_AFTER_KILL_S = 0.5
_AFTER_END_S = 0.3  # what a child has left behind may hold its pipes open

_lock = threading.Lock()
_live: set[int] = set()  # groups that were started and not yet ended
_over = threading.Event()


@dataclass(frozen=True, slots=True)
class Ended:
    """What a child wrote, and how it ended."""

    stdout: str
    stderr: str
    code: int | None  # negative: the signal that ended it; None: it was killed at its deadline
    seconds: float

    @property
    def timed_out(self) -> bool:
        """Whether its deadline has passed."""
        return self.code is None

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        if self.code is None:
            return f"it did not end within {format_duration(self.seconds)}"
        if self.code < 0:
            try:
                return f"it was ended by {signal.Signals(-self.code).name}"
            except ValueError:
                return f"it was ended by signal {-self.code}"
        return f"it ended with status {self.code}"


def run(
    words: Sequence[str],
    timeout_s: float,
    env: Mapping[str, str],
    cwd: str | None = None,
) -> Ended:
    """
    Run a program to its end or to its deadline.

    Raises:
        OSError: it could not be started, or all of it is over.
    """
    begun = time.monotonic()
    # An interpreter on a dead network disk hangs in its very start: with vfork this whole process
    # would, and with the lock held so would its end.
    subprocess._USE_VFORK = False  # type: ignore[misc]
    if _over.is_set():
        raise OSError("the doctor was interrupted")
    child = subprocess.Popen(
        list(words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(env),
        cwd=cwd,
        start_new_session=True,  # so that its children are ended with it
        close_fds=True,
    )
    with _lock:
        _live.add(child.pid)
        if _over.is_set():
            _kill(child.pid)
    out, err = bytearray(), bytearray()
    try:
        done = _read(child, out, err, begun + timeout_s)
    finally:
        code = child.poll()
        # Also after a good end: what it started must not stay behind.
        with _lock:
            _kill(child.pid)
            _live.discard(child.pid)
        if code is None:
            try:
                child.wait(_AFTER_KILL_S)
            except subprocess.TimeoutExpired:
                pass  # it hangs in the kernel
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()
    return Ended(
        out.decode("utf-8", "replace"),
        err.decode("utf-8", "replace"),
        code if done else None,
        time.monotonic() - begun,
    )


def end_all() -> None:
    """
    Kill whatever still runs, and start nothing more: this process is about to end.

    A session of its own keeps Ctrl-C and a closed terminal from a child, and a framework that
    is half imported goes on for a minute and with a GiB.
    """
    with _lock:
        _over.set()
        for pid in _live:
            _kill(pid)


def _read(child: subprocess.Popen[bytes], out: bytearray, err: bytearray, end: float) -> bool:
    """Collect its output; whether it ended before the time `end`."""
    with selectors.DefaultSelector() as selector:
        for stream, kept in ((child.stdout, out), (child.stderr, err)):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, kept)
        ended: float | None = None
        while True:
            now = time.monotonic()
            if ended is None and child.poll() is not None:
                ended = now
            if ended is not None and (not selector.get_map() or now - ended > _AFTER_END_S):
                return True
            if now >= end:
                return ended is not None
            if not selector.get_map():
                time.sleep(0.01)
                continue
            # Short, since the end of a child whose own children hold its pipes is not an event.
            for key, _ in selector.select(min(0.1, end - now)):
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif len(key.data) < _MOST_BYTES:
                    key.data.extend(chunk)


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
