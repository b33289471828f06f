"""
Telling systemd how we are: sd_notify(3) in a few lines, silent where there is no systemd.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress


class ServiceManager:
    """The datagram socket that systemd named, or nothing."""

    def __init__(self) -> None:
        # Taken out: children of ours must not speak in our name.
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        limit_us = os.environ.pop("WATCHDOG_USEC", "")
        pid = os.environ.pop("WATCHDOG_PID", "")
        wanted = limit_us.isdigit() and (not pid or pid == str(os.getpid()))
        self.beat_s: float | None = int(limit_us) / 2e6 if wanted and int(limit_us) else None

    def ready(self) -> None:
        """The daemon answers."""
        self._send("READY=1")

    def alive(self) -> None:
        """The loop turns; to be said every `beat_s` seconds."""
        self._send("WATCHDOG=1")

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
