"""One live view for each desktop: its lock, and the clicks that it follows."""

from __future__ import annotations

import subprocess
import sys
import time

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


def test_a_pid_that_another_process_has_by_now_is_not_signalled(folder):
    """A new view holds the lock, but the file still has the pid of an earlier view."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with subprocess.Popen(
        [sys.executable, "-c", VIEW], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as view:
        assert "ready\n" == view.stdout.readline()
        (folder / "top.lock").write_text(f"{other.pid}\n1\n")
        assert live_view.bring_forward(4711)
        view.stdin.close()
    time.sleep(0.2)  # the signal would end it
    assert other.poll() is None
    other.kill()
    other.wait()
