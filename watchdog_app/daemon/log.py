"""
Lines to standard error: `2026-11-03T02:13:05 warning journal is full path=/home/...`.

Under systemd the time is left to the journal and the urgency goes before the
line (sd-daemon(3)). A reader that does not read never stops the daemon: what
would block is dropped and counted. The logging package would cost a megabyte
and take a lock.
"""

from __future__ import annotations

import os
import select
import sys
import time

_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3}
_MOST_BYTES = 2048  # below PIPE_BUF: a pipe that is writable takes such a line whole


class Log:
    """Where the daemon says what it does."""

    def __init__(self, verbose: bool = False, fd: int = 2) -> None:
        self.verbose = verbose
        self.dropped = 0
        self._fd = fd
        self._systemd = _is_journal(fd)

    def debug(self, message: str, **values: object) -> None:
        """Said with --verbose alone."""
        if self.verbose:
            self._write("debug", message, values)

    def info(self, message: str, **values: object) -> None:
        """Something that a person may want to read later."""
        self._write("info", message, values)

    def warning(self, message: str, **values: object) -> None:
        """Something does not work; watching goes on."""
        self._write("warning", message, values)

    def error(self, message: str, **values: object) -> None:
        """Something that should never happen, or the end."""
        self._write("error", message, values)

    def _write(self, level: str, message: str, values: dict[str, object]) -> None:
        text = message + "".join(f" {key}={_quoted(value)}" for key, value in values.items())
        # Names come from users' files: a line stays one line.
        text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
        if self._systemd:
            line = f"<{_PRIORITY[level]}>{text}"
        else:
            line = f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {level} {text}"
        data = line.encode("utf-8", "backslashreplace")[: _MOST_BYTES - 1] + b"\n"
        try:
            if not select.select((), (self._fd,), (), 0)[1]:
                self.dropped += 1
                return
            os.write(self._fd, data)
        except (OSError, ValueError):  # the terminal is gone, or was closed before we came
            self.dropped += 1


def _quoted(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if text and " " not in text and '"' not in text and "=" not in text:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _is_journal(fd: int) -> bool:
    """Standard error goes to the systemd journal (systemd.exec(5), JOURNAL_STREAM)."""
    stream = os.environ.get("JOURNAL_STREAM", "")
    if not stream or sys.platform != "linux":
        return False
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"
