"""The messages of the daemon to systemd, whose unit it is."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from watchdog_app.daemon.instance import ServiceManager


def test_the_watchdog_interval_is_lengthened_under_pressure_and_set_back(
    tmp_path: Path, monkeypatch
):
    """Half the limit at rest; ten minutes while memory is short."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        manager = ServiceManager()

        said = []
        for at, pressed in ((0, False), (15, True), (30, True), (45, False), (95, False)):
            manager.heartbeat(float(at), pressed=pressed)
            said.append(channel.recv(1024).decode())

    assert [
        "WATCHDOG=1",
        "WATCHDOG_USEC=600000000\nWATCHDOG=1",
        "WATCHDOG=1",
        "WATCHDOG=1",
        "WATCHDOG_USEC=30000000\nWATCHDOG=1",
    ] == said
