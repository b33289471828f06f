"""The systemd unit is valid and hides nothing from the daemon; its messages to systemd."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from watchdog_app.daemon.instance import ServiceManager

UNIT = Path(__file__).parents[2] / "packaging/linux/share/systemd/user/watchdog.service"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_finds_no_fault_with_the_unit(tmp_path):
    """Every directive is known and has an accepted value."""
    found = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(UNIT)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    about_us = [line for line in found.stderr.splitlines() if "watchdog.service" in line]
    assert [] == about_us


def test_no_directive_makes_a_namespace():
    """In a separate namespace the daemon could not read the user's processes."""
    forbidden = r"^(Private|Protect|ReadOnly|ReadWrite|Inaccessible|RootDirectory|TemporaryFile)"
    assert [] == re.findall(forbidden, UNIT.read_text(), re.MULTILINE)


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
