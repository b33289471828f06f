"""The real command, run against a fake daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from support.fake_daemon import FakeDaemon, Refusal
from support.finished import finished


@pytest.fixture
def own_folders(tmp_path, monkeypatch):
    """
    Put the command's folders under `tmp_path`, and remove colour settings from the environment.
    """
    for name, folder in (("RUNTIME_DIR", "run"), ("STATE_DIR", "state"), ("CONFIG", "config.toml")):
        monkeypatch.setenv(f"WATCHDOG_{name}", str(tmp_path / folder))
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def daemon(own_folders):
    """A fake daemon that listens where the command connects."""
    fake = FakeDaemon(own_folders / "run" / "daemon.sock")
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def refusal():
    """Return the error that a handler of the fake daemon raises."""
    return Refusal


@pytest.fixture
def watchdog(own_folders):
    """Run the real command in its own process; return the finished process with text output."""

    def run(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **more.pop("env", {})}
        return finished([sys.executable, "-m", "watchdog_app", *words], env=environment, **more)

    return run
