"""
The log of the daemon, and what does not work right now: said once in it, shown in the status.

Lines to standard error: `2026-11-03T02:13:05 warning journal is full path=/home/...`.

Under systemd the time is left to the journal and the urgency goes before the
line (sd-daemon(3)). A reader that does not read never stops the daemon: what
would block is dropped. The file that `watchdog start` gives is begun anew when it
is full. The logging package would cost a megabyte and take a lock.
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
_MOST_LINE_BYTES = 2048  # below PIPE_BUF: a pipe that is writable takes such a line whole
_MOST_FILE_BYTES = 1024 * 1024  # and as much once more of what was before
_CHECK_EVERY_BYTES = 64 * 1024


class Log:
    """
    Where the daemon says what it does.

    Args:
        path: where `fd` leads to this file, it is kept within a bound; nothing else is touched.
    """

    def __init__(self, verbose: bool = False, fd: int = 2, path: str | None = None) -> None:
        self.verbose = verbose
        self._fd = fd
        self._path = path
        self._unchecked_bytes = 0
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
        data = line.encode("utf-8", "backslashreplace")[: _MOST_LINE_BYTES - 1] + b"\n"
        try:
            if not select.select((), (self._fd,), (), 0)[1]:
                return
            os.write(self._fd, data)
        except (OSError, ValueError):  # the terminal is gone, or was closed before we came
            return
        self._unchecked_bytes += len(data)
        if self._path is not None and self._unchecked_bytes >= _CHECK_EVERY_BYTES:
            self._unchecked_bytes = 0
            try:
                _rotate(self._fd, self._path)
            except OSError:  # a full disk, or a folder that is not ours: as it is
                pass


def _rotate(fd: int, path: str) -> None:
    """Empty the log at `path`, if `fd` leads to it and it is full; a copy of it is kept."""
    here = os.fstat(fd)
    if here.st_size > _MOST_FILE_BYTES and os.path.samestat(here, os.stat(path)):
        with open(path, "rb") as file:
            write_atomic(f"{path}.1", file.read(), 0o600, durable=False)
        os.ftruncate(fd, 0)  # it was opened to append: whoever else writes to it begins anew, too


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


class Faults:
    """One fault a source, from the moment it is raised until it is cleared."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._daemon_faults: dict[str, Fault] = {}
        self._sensor_faults: dict[
            str, Fault
        ] = {}  # those of the sensors, as the last snapshot had them

    def put(self, source: str, message: str, remedy: str | None = None) -> None:
        """
        Something does not work; the same again is not logged again.

        Args:
            source: what does not work.
            message: why, and what that means.
            remedy: what to do; None: nothing is known.
        """
        before = self._daemon_faults.get(source)
        self._daemon_faults[source] = Fault(source, message, remedy)
        if before is None or before.message != message:
            self._log.warning(message, source=source)

    def clear(self, source: str) -> None:
        """It works again."""
        if self._daemon_faults.pop(source, None) is not None:
            self._log.info("works again", source=source)

    def update_sensor_faults(self, sensed: Iterable[Fault]) -> None:
        """Replace the faults of the sensors by those of the latest snapshot."""
        now = {fault.source: fault for fault in sensed}
        for source, fault in now.items():
            if source not in self._sensor_faults:
                self._log.warning(fault.message, source=source)
        for source in self._sensor_faults.keys() - now.keys():
            self._log.info("works again", source=source)
        self._sensor_faults = now

    def run_step(self, what: str, step: Callable[[], object]) -> None:
        """
        Run a step of the loop; an exception in it becomes a fault and is not raised.

        Args:
            what: names the step.
            step: may raise any exception.
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
            what: names the part.
            error: that it raised.
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
        """Those in force."""
        return [*self._daemon_faults.values(), *self._sensor_faults.values()]
