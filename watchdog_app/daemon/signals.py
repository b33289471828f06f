"""What the daemon does on signals: end, or read its configuration anew."""

from __future__ import annotations

import signal
from collections.abc import Callable

from watchdog_app.base import own_process
from watchdog_app.daemon.log import Log


def catch(wake_fd: int, end: Callable[[], None], reload: Callable[[], None], log: Log) -> None:
    """
    From now on SIGTERM and SIGINT call `end`, SIGHUP `reload`, in the main thread.

    Args:
        wake_fd: written to at each signal: ends the wait of the loop.
    """

    def on_end(number: int, _: object) -> None:
        log.info("told to end", signal=signal.Signals(number).name)
        end()

    def on_hangup(_: int, __: object) -> None:
        if own_process.terminal_is_gone():
            end()  # it ran in the foreground of a terminal that was closed
        else:
            reload()

    signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, on_end)
    signal.signal(signal.SIGINT, on_end)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, on_hangup)
