"""
Notifications by a user's own command: a mail, a message to a phone, a light.

The command is a list of arguments and never goes through a shell, so that a file name cannot become
a command. It gets the notification as one JSON object on standard input, and the same in variables
named WATCHDOG_*.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from watchdog_app.base import children
from watchdog_app.base.text.plain import clean
from watchdog_app.core.model.status import Notification
from watchdog_app.daemon.notify import Channel, Delivery

TIMEOUT_S = 10.0
_MOST_OUTPUT_CHARS = 300  # of the output of a failed command


class CommandChannel(Channel):
    """
    Runs `argv` for each notification and waits for it.

    Args:
        argv: program and arguments; a `~` at the start of the program is the home folder.
        timeout_s: time limit, after which the command and all its children are killed.
    """

    name = "command"

    def __init__(self, argv: Sequence[str], timeout_s: float = TIMEOUT_S) -> None:
        self._argv = [os.path.expanduser(argv[0]), *argv[1:]]
        self._timeout_s = timeout_s

    def send(self, notification: Notification) -> Delivery:
        """Run the command; delivered if it ends with status 0 in time."""
        # A file instead of a pipe: a background process that the command started keeps a pipe open,
        # and reading would wait for that process.
        import tempfile  # takes 1 MB, and few users configure a command

        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **variables(notification)},
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                return self._failure(f"it could not be started: {error}")
            children.reset_priority(process.pid)
            atexit.register(_kill, process)  # the daemon may end first
            try:
                process.communicate(json.dumps(notification.to_json()).encode(), self._timeout_s)
            except subprocess.TimeoutExpired:
                _kill(process)
                return self._failure(f"it did not end within {self._timeout_s:g} s and was ended")
            finally:
                atexit.unregister(_kill)
            if process.returncode == 0:
                return Delivery(True)
            output.seek(0)
            output_text = clean(
                output.read(4 * _MOST_OUTPUT_CHARS).decode("utf-8", "replace"), _MOST_OUTPUT_CHARS
            )
            return self._failure(f"it ended with status {process.returncode}: {output_text}")

    def _failure(self, why: str) -> Delivery:
        return Delivery(False, f"{clean(self._argv[0], 100)} of notify.command: {why}")


def variables(notification: Notification) -> dict[str, str]:
    """The notification as environment variables, without NUL characters, which they cannot hold."""
    values = {
        "WATCHDOG_NOTIFICATION": notification.id or "",
        "WATCHDOG_INCIDENT": notification.incident,
        "WATCHDOG_STAGE": notification.stage,
        "WATCHDOG_URGENCY": notification.urgency,
        "WATCHDOG_TITLE": notification.title,
        "WATCHDOG_BODY": notification.body,
        "WATCHDOG_TASK": "" if notification.task is None else str(notification.task),
    }
    return {
        key: value.replace("\0", "").encode("utf-8", "replace").decode()
        for key, value in values.items()
    }


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and all of its session that did not leave the process group."""
    # it has just ended, or belongs to another user
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
