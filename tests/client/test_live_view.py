"""One live view for each desktop: its lock, and the clicks that it follows."""

from __future__ import annotations

import subprocess
import sys

import pytest

from watchdog_app.client import live_view

VIEW = """
import signal, sys
from watchdog_app.client import live_view
signal.signal(signal.SIGUSR1, lambda *_: print(live_view.wanted_task(), flush=True))
live_view.hold_lock()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    runtime = tmp_path / "runtime"  # made by the first daemon or view
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(runtime))
    return runtime


def test_a_click_reaches_the_view_that_runs_and_no_other_process(folder):
    """The pid of a view that has ended is never signalled."""
    with subprocess.Popen(
        [sys.executable, "-c", VIEW], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as view:
        assert "ready\n" == view.stdout.readline()
        assert live_view.bring_forward(4711)
        assert "4711\n" == view.stdout.readline()
        assert live_view.bring_forward(None)
        assert "None\n" == view.stdout.readline()
        view.stdin.close()
    assert not live_view.bring_forward(4711)
    assert "" == (folder / "top.lock").read_text()
