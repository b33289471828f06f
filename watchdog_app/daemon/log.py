"""
The daemon's log, and its faults, which are logged once and shown in the status.

Lines to standard error: `2026-11-03T02:13:05 warning journal is full path=/home/...`.

Under systemd the journal adds the time, and the priority precedes the line (sd-daemon(3)). A reader
that does not read never blocks the daemon: lines that would block are dropped. The log file of
`watchdog start` is emptied when it is full. The logging package would take 1 MB and a lock.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterable

from watchdog_app.base.durable import write_atomic
from watchdog_app.core.model.machine import Fault

_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3}
_MOST_LINE_BYTES = 2048  # below PIPE_BUF: a writable pipe takes such a line whole
_MOST_FILE_BYTES = 1024 * 1024  # for the file, and again for the copy of its former content
_CHECK_EVERY_BYTES = 64 * 1024


class Log:
    """
    Writes what the daemon does.

    Args:
        path: the log file; limited in size if `fd` leads to it. No other file is changed.
    """

    def __init__(self, verbose: bool = False, fd: int = 2, path: str | None = None) -> None:
        self.verbose = verbose
        self._fd = fd
        self._path = path
        self._unchecked_bytes = 0
        self._systemd = _is_journal(fd)

    def debug(self, message: str, **values: object) -> None:
        """Log details; only with --verbose."""
        if self.verbose:
            self._write("debug", message, values)

    def info(self, message: str, **values: object) -> None:
        """Log an event that a person may want to read later."""
        self._write("info", message, values)

    def warning(self, message: str, **values: object) -> None:
        """Log that something does not work, while watching continues."""
        self._write("warning", message, values)

    def error(self, message: str, **values: object) -> None:
        """Log an error that should never happen, or the end of the daemon."""
        self._write("error", message, values)

    def _write(self, level: str, message: str, values: dict[str, object]) -> None:
        text = message + "".join(f" {key}={_quoted(value)}" for key, value in values.items())
        # Names come from users' files and may contain line breaks; a log entry must stay one line.
        text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
        if self._systemd:
            line = f"<{_PRIORITY[level]}>{text}"
        else:
            line = f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {level} {text}"
        data = line.encode("utf-8", "backslashreplace")[: _MOST_LINE_BYTES - 1] + b"\n"
        try:
            if not select.select((), (self._fd,), (), 0)[1]:
                return
            os.write(self._fd, data)
        except (OSError, ValueError):  # the terminal has closed, or was closed at the start
            return
        self._unchecked_bytes += len(data)
        if self._path is not None and self._unchecked_bytes >= _CHECK_EVERY_BYTES:
            self._unchecked_bytes = 0
            try:
                _rotate(self._fd, self._path)
            except OSError:  # full disk, or folder not writable: keep the file as it is
                pass


def _rotate(fd: int, path: str) -> None:
    """Empty the log at `path` if `fd` leads to it and it is full; keep a copy."""
    here = os.fstat(fd)
    if here.st_size > _MOST_FILE_BYTES and os.path.samestat(here, os.stat(path)):
        with open(path, "rb") as file:
            write_atomic(f"{path}.1", file.read(), 0o600, durable=False)
        os.ftruncate(fd, 0)  # opened to append: other writers start at 0, too


def _quoted(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if text and " " not in text and '"' not in text and "=" not in text:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _is_journal(fd: int) -> bool:
    """Whether standard error goes to the systemd journal (systemd.exec(5), JOURNAL_STREAM)."""
    stream = os.environ.get("JOURNAL_STREAM", "")
    if not stream or sys.platform != "linux":
        return False
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"


class Faults:
    """At most one fault per source, from `put` until `clear`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._daemon_faults: dict[str, Fault] = {}
        self._sensor_faults: dict[str, Fault] = {}  # faults of the sensors in the last snapshot

    def put(self, source: str, message: str, remedy: str | None = None) -> None:
        """
        Report a fault. The same message is logged once.

        Args:
            source: the part that does not work.
            message: the reason and the consequences.
            remedy: advice; None: unknown.
        """
        before = self._daemon_faults.get(source)
        self._daemon_faults[source] = Fault(source, message, remedy)
        if before is None or before.message != message:
            self._log.warning(message, source=source)

    def clear(self, source: str) -> None:
        """Report that the part works again."""
        if self._daemon_faults.pop(source, None) is not None:
            self._log.info("works again", source=source)

    def update_sensor_faults(self, sensed: Iterable[Fault]) -> None:
        """Replace the sensors' faults by those of the latest snapshot."""
        now = {fault.source: fault for fault in sensed}
        for source, fault in now.items():
            if source not in self._sensor_faults:
                self._log.warning(fault.message, source=source)
        for source in self._sensor_faults.keys() - now.keys():
            self._log.info("works again", source=source)
        self._sensor_faults = now

    def run_step(self, what: str, step: Callable[[], object]) -> None:
        """
        Run a step of the loop. An exception becomes a fault and is not raised.

        Args:
            what: name of the step.
            step: the function; may raise any exception.
        """
        try:
            step()
        except Exception as error:
            self.report_failure(what, error)
        else:
            self.clear(f"daemon.{what}")

    def report_failure(self, what: str, error: Exception) -> None:
        """
        Report an unexpected exception in a part of the daemon.

        Args:
            what: name of the part.
            error: the exception.
        """
        if self._log.verbose:
            import traceback

            for line in traceback.format_exception(error)[-3:]:
                self._log.debug(line.rstrip())
        self.put(
            f"daemon.{what}",
            f"A part of the daemon failed ({what}): {error!r}. The rest continues.",
            "Please report this with the daemon's log.",
        )

    def all(self) -> list[Fault]:
        """The faults in force."""
        return [*self._daemon_faults.values(), *self._sensor_faults.values()]
