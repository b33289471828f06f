"""
Stop the daemon and wait until it has ended. A task that watchdog has paused stays paused;
watchdog resume still resumes it. A daemon that does not answer within 5 s, has no free
connection or is of another version is ended with a signal.

examples:
  watchdog stop
  watchdog stop && watchdog start      restart it, for example after an update

exit codes: 0 it has ended, 1 failure, 2 usage, 3 it was not running
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from watchdog_app.base import paths
from watchdog_app.base.errors import (
    EXIT_OK,
    DaemonFull,
    DaemonNotRunning,
    ProtocolError,
    RequestError,
    WatchdogError,
)
from watchdog_app.cli import offline_status
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args
from watchdog_app.client.client import Client
from watchdog_app.client.jsonrpc import VERSIONS_DIFFER

_END_S = 15.0
_TERM_S = 3.0  # enough for a slow daemon; a stopped one does not handle SIGTERM
_POLL_S = 0.02


def run(args: Args, out: Output) -> int:  # noqa: ARG001 - every command has the same signature
    """Ask the daemon to end, and wait until it has ended."""
    try:
        with Client.connect() as daemon:
            pid = daemon.daemon_pid
            try:
                daemon.call("stop")
            except DaemonNotRunning:
                pass  # the daemon ended before it answered
    except ProtocolError as error:
        full = isinstance(error, DaemonFull)
        why = "served too many others" if full else "did not answer"
        return _kill_daemon(error, why, full, out)
    except RequestError as error:
        if error.code != VERSIONS_DIFFER:
            raise
        return _kill_daemon(error, "is of another version", True, out)
    with out.progress("waiting for its end"):
        if _wait_until(lambda: not _is_running(), _END_S):
            return _report_ended(f"The daemon (pid {pid}) has ended.", out)
    raise WatchdogError(
        f"The daemon (pid {pid}) was asked to end and has not within {_END_S:g} s. "
        f"End it with: kill {pid}"
    )


def _wait_until(condition: Callable[[], bool], wait_s: float) -> bool:
    """Wait until the condition holds; return False after `wait_s` seconds."""
    end_mono_s = time.monotonic() + wait_s
    while time.monotonic() < end_mono_s:
        if condition():
            return True
        time.sleep(_POLL_S)
    return False


def _report_ended(what: str, out: Output) -> int:
    out.lines(f"{what} Nothing is watched now.", *offline_status.paused_task_lines())
    return EXIT_OK


def _kill_daemon(error: WatchdogError, why: str, graceful: bool, out: Output) -> int:
    """
    Kill a daemon that cannot be asked: it hangs, has too many connections, or has another version.

    No data is lost by that.

    Args:
        error: raised if the daemon cannot be killed.
        why: why the daemon cannot be asked, for the message.
        graceful: the daemon can handle SIGTERM, and gets more time for it.
        out: output of the command.

    Raises:
        WatchdogError: the process that holds the lock is unknown; no process is killed.
    """
    from watchdog_app.daemon.instance import holder_pid, is_held_by

    lock = _lock_file()
    pid = holder_pid(lock)
    if not pid or not hasattr(os, "pidfd_open"):
        raise error
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        raise error from None
    try:
        # Check the holder after the handle was opened, so that the handle is of the checked
        # process.
        if not is_held_by(pid, lock):
            raise error
        for number, wait_s in (
            (signal.SIGTERM, _END_S if graceful else _TERM_S),
            (signal.SIGKILL, _END_S),
        ):
            signal.pidfd_send_signal(handle, number)
            if _wait_until(lambda: holder_pid(lock) is None, wait_s):
                return _report_ended(f"The daemon (pid {pid}) {why} and was ended.", out)
    except OSError as cause:
        raise error from cause
    finally:
        os.close(handle)
    raise error


def _is_running() -> bool:
    """Return whether a daemon listens or still holds the daemon's lock."""
    from watchdog_app.daemon.instance import holder_pid

    try:
        Client.connect(timeout_s=1.0).close()
    except DaemonNotRunning:
        return holder_pid(_lock_file()) is not None
    except WatchdogError:
        pass
    return True


def _lock_file() -> str:
    return os.path.join(paths.runtime_dir(), "daemon.lock")
