"""
Telling systemd how we are: sd_notify(3) in a few lines, silent where there is no systemd.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

_LONGER = 20  # times the interval of the unit, under pressure: ten minutes for 30 s
_CALM_S = 60.0


class ServiceManager:
    """The datagram socket that systemd named, or nothing."""

    def __init__(self) -> None:
        # Taken out: children of ours must not speak in our name.
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        limit_us = os.environ.pop("WATCHDOG_USEC", "")
        pid = os.environ.pop("WATCHDOG_PID", "")
        wanted = limit_us.isdigit() and (not pid or pid == str(os.getpid()))
        self.beat_s: float | None = int(limit_us) / 2e6 if wanted and int(limit_us) else None
        self._limit_us = int(limit_us) if self.beat_s is not None else 0
        self._pressed_mono_s: float | None = None  # when last, while the interval is lengthened

    def ready(self) -> None:
        """The daemon answers."""
        self._send("READY=1")

    def alive(self, now_mono_s: float, *, pressed: bool = False) -> None:
        """
        The loop turns; to be said every `beat_s` seconds.

        Under memory pressure a turn can take minutes: systemd is told to wait longer for the next
        word, until it has been calm for a minute. (EXTEND_TIMEOUT_USEC= is for start and stop.)
        """
        longer = self._pressed_mono_s is not None
        if pressed:
            self._pressed_mono_s = now_mono_s
        elif longer and now_mono_s - (self._pressed_mono_s or 0.0) >= _CALM_S:
            self._pressed_mono_s = None
        words = "WATCHDOG=1"
        if longer is not (self._pressed_mono_s is not None):
            factor = 1 if longer else _LONGER
            words = f"WATCHDOG_USEC={factor * self._limit_us}\n{words}"
        self._send(words)

    def stopping(self) -> None:
        """The end has begun."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        name = self._address
        where = "\0" + name[1:] if name.startswith("@") else name
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            channel.sendto(text.encode(), where)
