"""
Start the daemon in the background and wait until it answers. It keeps running after you log
out, unless your system ends all your processes then. If it already runs, nothing happens.

examples:
  watchdog start && watchdog status

Its log is daemon.log in ~/.local/state/watchdog.

exit codes: 0 it runs, 1 failure, 2 the configuration holds a mistake
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping

from watchdog_app.base import children, paths
from watchdog_app.base.errors import (
    EXIT_FAILURE,
    EXIT_OK,
    EXIT_USAGE,
    DaemonNotRunning,
    WatchdogError,
)
from watchdog_app.base.text.terminal import counted, plain, wrap
from watchdog_app.cli.output import Output, type_program
from watchdog_app.cli.parser import Args
from watchdog_app.client.client import Client, find_status
from watchdog_app.core.explain.saving import next_start_command, saving_notes, unsaved_trainings

# usually 0.5 s; a loaded machine takes longer for the first sample of all processes
_READY_S = 20.0
_OTHER_START_S = 2.0
_POLL_S = 0.02
_MOST_NAMED = 3


def run(args: Args, out: Output) -> int:  # noqa: ARG001 - every command has the same signature
    """Start the daemon unless it runs."""
    try:
        with Client.connect() as daemon:
            out.lines(f"Already running (PID {daemon.daemon_pid}).")
            return EXIT_OK
    except DaemonNotRunning:
        pass
    path, fd = _open_log()
    begin = os.fstat(fd).st_size
    process = _spawn_daemon(fd)
    os.close(fd)
    with out.progress("waiting for the daemon"):
        pid = _wait_until_ready(process, path, begin)
    process.returncode = 0  # the daemon outlives this process: prevent Popen's warning
    out.lines(f"Started (PID {pid}). Log: {path}")
    for line in _watched_lines():
        out.lines(*wrap(line, out.columns))
    if not _shows_notifications(os.environ):
        text = (
            "No desktop here: read warnings with watchdog watch, or name a program that sends "
            "them: watchdog config set notify.command -- PROGRAM"
        )
        out.lines(*wrap(text, out.columns))
    return EXIT_OK


def _watched_lines() -> list[str]:
    """Return what the daemon watches now, and what cannot be saved; empty if it does not say so."""
    status = find_status()
    if status is None:
        return []
    lines = [f"It watches {counted(len(status.tasks), 'Python task')}. See them: watchdog status"]
    unsaved = unsaved_trainings(status.tasks)
    if unsaved:
        ways = [
            f"{plain(task.name or '?')} "
            f"({next_start_command(task.kind, task.name, task.python, type_program)})"
            for task in unsaved[:_MOST_NAMED]
        ]
        more = len(unsaved) - len(ways)
        ways += [f"{more} more (watchdog status)"] if more else []
        which = "1 seems to train" if len(unsaved) == 1 else f"{len(unsaved)} seem to train"
        lines.append(f"Of these, {which} and cannot be saved yet: {', '.join(ways)}.")
        lines += {note: None for task in unsaved for note in saving_notes(task.framework)}
    return lines


def _shows_notifications(env: Mapping[str, str]) -> bool:
    """Return whether a screen or the user's command shows notifications, or the user wants none."""
    if sys.platform != "linux" or env.get("DISPLAY") or env.get("WAYLAND_DISPLAY"):
        return True
    from watchdog_app import config
    from watchdog_app.doctor.desktop import has_notification_service

    settings, _ = config.load(env=env, warn=lambda _: None)
    if settings.notify.command or settings.notify.tables or not settings.actions.notify:
        return True
    return settings.notify.desktop and has_notification_service(env)


def _wait_until_ready(process: subprocess.Popen[bytes], path: str, begin: int) -> int | None:
    """
    Wait for the daemon to answer; return its PID.

    Raises:
        WatchdogError: the daemon ended or did not answer in time.
    """
    end_mono_s = time.monotonic() + _READY_S
    ended_mono_s: float | None = None
    while time.monotonic() < end_mono_s:
        try:
            with Client.connect() as daemon:
                return daemon.daemon_pid
        except DaemonNotRunning:
            pass
        if process.poll() is not None:
            ended_mono_s = ended_mono_s or time.monotonic()
            # Another `watchdog start` was faster: its daemon holds the lock and will answer soon.
            patience_s = _OTHER_START_S if process.returncode == EXIT_FAILURE else 0.0
            if time.monotonic() - ended_mono_s >= patience_s:
                raise _startup_error(path, begin, process.returncode)
        time.sleep(_POLL_S)
    process.returncode = 0
    raise WatchdogError(
        f"The daemon (pid {process.pid}) was started and has not answered within "
        f"{_READY_S:g} s. Look at {path}, then try: watchdog status"
    )


def _open_log() -> tuple[str, int]:
    """Open the daemon's log, or /dev/null if the home is full or read-only; return path and fd."""
    path = paths.daemon_log()
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        return os.devnull, os.open(os.devnull, os.O_WRONLY)


def _spawn_daemon(log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        children.watchdog_argv(["run"]),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",  # do not keep a file system from being unmounted
        env=_absolute_paths(os.environ),
        start_new_session=True,  # Ctrl-C and a hang-up of this terminal do not reach the daemon
    )


def _absolute_paths(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the paths of our own variables made absolute."""
    own = ("WATCHDOG_RUNTIME_DIR", "WATCHDOG_STATE_DIR", "WATCHDOG_CONFIG")
    return {
        key: os.path.abspath(text) if key in own and text else text for key, text in env.items()
    }


def _startup_error(path: str, begin: int, code: int) -> WatchdogError:
    log_text = ""
    try:
        with open(path, "rb") as file:
            file.seek(begin)
            log_text = file.read(65536).decode("utf-8", "replace").strip()
    except OSError:
        pass
    last = "\n  ".join(log_text.splitlines()[-10:])
    what = f"It said:\n  {last}" if last else f"It said nothing in {path}."
    error = WatchdogError(f"The daemon ended at once, with exit code {code}. {what}")
    error.exit_code = code if code in (EXIT_FAILURE, EXIT_USAGE) else EXIT_FAILURE
    return error
