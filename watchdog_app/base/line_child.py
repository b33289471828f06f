"""A child process that exchanges lines of JSON with its parent, and the pause after a failure."""

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

_CHUNK = 1 << 16
_MAX_CHUNKS = 64
# an answer takes some kilobytes; 16 GPUs with 1000 processes take one megabyte
_MAX_BYTES = 8 << 20


class LineChild:
    """One child process, from its start to its end."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """
        Start it; takes a millisecond or two.

        Args:
            argv: its command line.
            env: its whole environment.

        Raises:
            OSError: it cannot be started.
        """
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=dict(env),
            start_new_session=True,  # Ctrl-C in the daemon's terminal must not reach it
        )
        self._requests = cast(IO[bytes], self._process.stdin)
        self._output = cast(IO[bytes], self._process.stdout)
        os.set_blocking(self._output.fileno(), False)
        self._partial_line = b""

    @property
    def pid(self) -> int:
        """Pid of the process."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send one request. `status` and a deadline show an ended child or a full pipe."""
        with suppress(OSError, ValueError):
            self._requests.write(json.dumps(request, separators=(",", ":")).encode() + b"\n")

    def answers(self) -> list[dict[str, Any]]:
        """
        Return every complete answer received.

        Raises:
            ValueError: the output is not valid answers.
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
        """
        Kill it now, even in a call that never returns. One blocked in the kernel may never end.
        """
        with suppress(OSError):
            self._requests.close()
        with suppress(OSError):
            self._process.kill()
        self._output.close()

    def wait(self, seconds: float) -> None:
        """Wait for its end; only used when the daemon itself ends."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        if self._process.poll() is None:
            # SIGKILL cannot end it. Set the status, so that Popen does not warn that it still runs.
            self._process.returncode = -signal.SIGKILL

    def _read(self) -> bytes:
        chunks: list[bytes] = []
        with suppress(OSError, ValueError):
            while len(chunks) < _MAX_CHUNKS and (chunk := os.read(self._output.fileno(), _CHUNK)):
                chunks.append(chunk)
        return b"".join(chunks)


@dataclass(slots=True)
class Backoff:
    """When to retry after failures: later after each one."""

    until_mono_s: float = -math.inf
    failures: int = 0

    def failed(self, now_mono_s: float, first_s: float, last_s: float) -> None:
        """
        Record a failure: wait `first_s`, twice as long each time, at most `last_s`.

        Args:
            now_mono_s: monotonic time now.
            first_s: the first wait.
            last_s: the longest wait.
        """
        self.until_mono_s = now_mono_s + min(first_s * 2 ** min(self.failures, 16), last_s)
        self.failures += 1
