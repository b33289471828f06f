"""
The live view in a window of the desktop: at most one, which follows the clicks in the tray.

Its lock file has three lines: pid and start time of the view, and the pid of the task to choose.
"""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import suppress

from watchdog_app.base import runtime_dir
from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.linux import process

_FROM_TASKBAR = 2  # source of _NET_ACTIVE_WINDOW (EWMH): window managers obey at once


def hold_lock() -> None:
    """Make this process the live view, until it ends; without effect if there is one."""
    with suppress(OSError, WatchdogError):
        handle = _open()  # stays open: the lock ends with the process
        _lock(handle)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n{_start_time(os.getpid())}\n".encode(), 0)


def bring_forward(task: int | None) -> bool:
    """
    Let the running live view come forward.

    Args:
        task: pid of the task to choose; None: the chosen task stays chosen.

    Returns:
        False: no live view runs.
    """
    try:
        handle = _open()
    except (OSError, WatchdogError):
        return False
    try:
        _lock(handle)
        os.ftruncate(handle, 0)  # no pid of an earlier view stays
    except OSError:  # the view holds it
        view = _read_line(handle, 0)
        if view is None or _start_time(view) != _read_line(handle, 1):
            return True  # the view has just started, and has not written its own pid yet
        os.pwrite(handle, f"{view}\n{_start_time(view)}\n{task or ''}\n".encode(), 0)
        with suppress(OSError):
            os.kill(view, signal.SIGUSR1)
        return True
    finally:
        os.close(handle)
    return False


def wanted_task() -> int | None:
    """The pid of the task that the last click asked for; None: of no task."""
    try:
        handle = _open()
    except (OSError, WatchdogError):
        return None
    try:
        return _read_line(handle, 2)
    finally:
        os.close(handle)


def activate_window() -> None:
    """Ask the window manager to show the terminal of this process, if the terminal names it."""
    window = os.environ.get("WINDOWID", "")
    if not window.isdigit():
        return
    with suppress(Exception):  # no python-xlib, or no X server
        from Xlib import X, display, protocol

        server = display.Display()
        event = protocol.event.ClientMessage(
            window=int(window),
            client_type=server.intern_atom("_NET_ACTIVE_WINDOW"),
            data=(32, [_FROM_TASKBAR, X.CurrentTime, 0, 0, 0]),
        )
        mask = X.SubstructureRedirectMask | X.SubstructureNotifyMask
        server.screen().root.send_event(event, event_mask=mask)
        server.sync()  # the X server drops requests that it has not read when a client closes
        server.close()


def _open() -> int:
    folder = runtime_dir.make()
    runtime_dir.private_folder(folder)  # no daemon may have run yet
    path = os.path.join(folder, "top.lock")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _lock(handle: int) -> None:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _start_time(pid: int) -> int:
    """Start time of a process in ticks since boot; 0: no such process, or no /proc."""
    return process.start_time(pid) or 0


def _read_line(handle: int, number: int) -> int | None:
    lines = os.pread(handle, 64, 0).split(b"\n")
    text = lines[number] if number < len(lines) else b""
    return int(text) if text.isdigit() else None
