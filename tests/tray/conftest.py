"""A desktop with a private bus, and the tray program as its own process."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.fake_daemon import FakeDaemon
from support.waiting import until
from tray_desk import Panel, PrivateBus, Screen
from tray_readings import status

RECORDER = """#!/bin/sh
printf '%s\\n' "$(basename "$0")" "$@" >> "$0.log"
exit {code}
"""


class Desktop:
    """Everything around the tray program; each part starts on first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.programs = folder / "bin"
        for each in (self.home, self.programs):
            each.mkdir()
        self.bus = PrivateBus(folder)
        self.bus.start()
        self.daemon = FakeDaemon(folder / "run" / "daemon.sock", status())
        self._parts: list[Panel | Screen] = []
        self._companions: list[subprocess.Popen[str]] = []

    def panel(self) -> Panel:
        return self._keep(Panel(self.bus.address))

    def screen(self, mode: str = "markup") -> Screen:
        return self._keep(Screen(self.bus.address, mode))

    def program(self, name: str, code: int = 0) -> Path:
        """Put a program on PATH that records its arguments; return the file with the record."""
        path = self.programs / name
        path.write_text(RECORDER.format(code=code))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return self.programs / f"{name}.log"

    def env(self, **more: str) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("LANG", "LC_ALL") if key in os.environ}
        return {
            **kept,
            # Hides this machine's terminals and editors; a test adds its own.
            "PATH": f"{self.programs}:{self.folder}/tools",
            "HOME": str(self.home),
            "DBUS_SESSION_BUS_ADDRESS": self.bus.address,
            "WATCHDOG_RUNTIME_DIR": str(self.folder / "run"),
            "WATCHDOG_STATE_DIR": str(self.folder / "state"),
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "error",
            **more,
        }

    def companion(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """Start `watchdog tray`."""
        tools = self.folder / "tools"
        tools.mkdir(exist_ok=True)
        for name in ("sh", "basename"):
            if not (tools / name).exists():
                (tools / name).symlink_to(f"/bin/{name}" if name == "sh" else "/usr/bin/basename")
        process = subprocess.Popen(
            [sys.executable, "-m", "watchdog_app", "tray", *words],
            env=self.env(**env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._companions.append(process)
        return process

    def close(self) -> None:
        for process in self._companions:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for part in self._parts:
            part.close()
        self.daemon.stop()
        self.bus.stop()

    def _keep(self, part):
        self._parts.append(part)
        return part


@pytest.fixture
def desktop(tmp_path):
    """A desktop without any program on it."""
    made = Desktop(tmp_path)
    yield made
    made.close()


@pytest.fixture
def ended():
    """End a tray program as Ctrl-C does; return exit code and output."""

    def end(process: subprocess.Popen[str], number: int = signal.SIGINT) -> tuple[int, str]:
        process.send_signal(number)
        said, _ = process.communicate(timeout=20)
        return process.returncode, said

    return end


@pytest.fixture
def words_of():
    """Return the arguments of the recording program's last start."""

    def read(log: Path) -> list[str]:
        until(log.exists, f"{log.name} is written")
        time.sleep(0.1)  # the program may still be writing its arguments
        return log.read_text().splitlines()

    return read
