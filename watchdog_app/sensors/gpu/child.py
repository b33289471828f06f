"""
The GPU reader as a child process of ours: requests go in, lines come out, nothing ever waits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, cast

_CHUNK = 1 << 16
_MOST_BYTES = 8 << 20  # an answer is some kilobytes; 16 cards with 1000 processes are one megabyte
_MOST_CHUNKS = 64
_PASSED_ON = frozenset(
    (
        "HOME",
        "LANG",
        "LD_LIBRARY_PATH",
        "PATH",
        "PROGRAMFILES",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONHOME",
        "PYTHONPATH",
        "SYSTEMROOT",
        "TMPDIR",
        "VIRTUAL_ENV",
        "WINDIR",
    )
)


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
        if name.upper() in _PASSED_ON or name.startswith(("WATCHDOG_", "LC_"))
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
        self._pipe = open_pipe(cast(IO[bytes], self._process.stdout))
        self._rest = b""

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
        data = self._rest + self._pipe.read()
        if len(data) > _MOST_BYTES:
            raise ValueError("an answer without an end")
        *lines, self._rest = data.split(b"\n")
        found = []
        for line in lines:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("an answer that is no object")  # noqa: TRY004 - a bad line
            found.append(message)
        return found

    def finish(self) -> None:
        """Ask it to end: it does so as soon as it waits for a request."""
        with suppress(OSError):
            self._requests.close()

    def kill(self) -> None:
        """End it now, even in a call that never returns. One in the kernel ends later, or never."""
        self.finish()
        with suppress(OSError):
            self._process.kill()
        self._pipe.close()

    def wait(self, seconds: float) -> bool:
        """Wait for its end, for the daemon's own end alone; whether it came."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        ended = self._process.poll() is not None
        if not ended:
            # Nobody can end it; Popen would warn that it still runs.
            self._process.returncode = -9
        return ended


class _Pipe:
    """Output of the child, read without waiting."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        os.set_blocking(stream.fileno(), False)

    def read(self) -> bytes:
        found = []
        for _ in range(_MOST_CHUNKS):
            try:
                chunk = os.read(self._stream.fileno(), _CHUNK)
            except (OSError, ValueError):
                break
            if not chunk:
                break
            found.append(chunk)
        return b"".join(found)

    def close(self) -> None:
        self._stream.close()


class _ThreadedPipe:
    """The same where a pipe cannot be read without waiting (Windows): a thread waits instead."""

    def __init__(self, stream: IO[bytes]) -> None:
        import threading

        self._stream = stream
        self._come: deque[bytes] = deque()
        self._thread = threading.Thread(target=self._pump, name="gpu-reader", daemon=True)
        self._thread.start()

    def _pump(self) -> None:
        with suppress(OSError, ValueError):
            while chunk := os.read(self._stream.fileno(), _CHUNK):
                self._come.append(chunk)
                while len(self._come) >= _MOST_CHUNKS:
                    time.sleep(0.1)  # nobody takes it: the child is to wait, not our memory to grow

    def read(self) -> bytes:
        return b"".join(self._come.popleft() for _ in range(len(self._come)))

    def close(self) -> None:
        # The thread holds the stream until the child is gone.
        self._come.clear()


def open_pipe(stream: IO[bytes], platform: str = sys.platform) -> _Pipe | _ThreadedPipe:
    """What reads the child's output without waiting on this platform: `read`, `close`."""
    return _ThreadedPipe(stream) if platform == "win32" else _Pipe(stream)
