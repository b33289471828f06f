"""`watchdog status --watch` on a real terminal (a pty), and over restarts of the daemon."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from support.statuses import MIB, leaking, process, status


class Terminal:
    """The command on its own pty."""

    def __init__(self, *words: str, rows: int = 24, columns: int = 80) -> None:
        self._master, slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.text = ""
        self.command = subprocess.Popen(
            [sys.executable, "-m", "watchdog_app", "status", "--watch", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color"},
            process_group=0,
        )

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, text: str) -> None:
        """Read until `text` appears after the current position."""
        seen = ""
        end = time.monotonic() + 30
        while text not in seen:
            assert time.monotonic() < end, f"{text!r} not in {self.text[-2000:]!r}"
            if select.select([self._master], [], [], 0.2)[0]:
                piece = os.read(self._master, 65536).decode("utf-8", "replace")
                seen += piece
                self.text += piece

    def end(self) -> int:
        """Return the exit code; `text` gets the remaining output."""
        end = time.monotonic() + 30
        while self.command.poll() is None:
            assert time.monotonic() < end, "it did not end"
            self._drain()
        self._drain()
        self.after = termios.tcgetattr(self.slave)
        return self.command.returncode

    def close(self) -> None:
        if self.command.poll() is None:
            self.command.kill()
            self.command.wait()
        os.close(self._master)
        os.close(self.slave)

    def _drain(self) -> None:
        while select.select([self._master], [], [], 0.05)[0]:
            self.text += os.read(self._master, 65536).decode("utf-8", "replace")


@pytest.fixture
def terminal(daemon):
    """Start commands on ptys and close them."""
    opened = []

    def open_(*words: str, **size: int) -> Terminal:
        opened.append(Terminal("--interval", "100ms", *words, **size))
        return opened[-1]

    daemon.answers["status"] = lambda _: {**leaking(), "time_unix_s": time.time()}
    yield open_
    for one in opened:
        one.close()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_the_last_reading_stays_on_the_terminal(terminal, sent):
    """Ctrl-C ends the command, which does not use the alternate screen."""
    view = terminal()
    view.wait_for("CRITICAL")
    view.wait_for("CRITICAL")  # the second frame replaces the first

    view.command.send_signal(sent)

    assert (0 if sent == signal.SIGINT else -signal.SIGTERM) == view.end()
    assert view.before == view.after
    assert "\x1b[?1049h" not in view.text
    assert "CRITICAL" in view.text.rpartition("\x1b[H")[2]
    assert "Traceback" not in view.text


def test_a_frame_never_exceeds_the_terminal(terminal, daemon):
    """With sixty tasks on 24 lines a count replaces the rest, and nothing scrolls."""
    crowd = [process(n, f"notebook {n}.ipynb", n * MIB) for n in range(1, 61)]
    daemon.answers["status"] = lambda _: status(time_unix_s=time.time(), tasks=crowd)

    view = terminal("--count", "1")

    assert 0 == view.end()
    frame = view.text.split("\x1b[J")[0]
    assert frame.count("\r\n") <= 23
    assert "more lines" in frame


def test_the_view_survives_a_restart_of_the_daemon(terminal, daemon):
    """The view reports the missing daemon, keeps the last sample and continues."""
    view = terminal()
    view.wait_for("CRITICAL")

    daemon.stop()
    view.wait_for("Nothing new since")
    view.wait_for("train_r")
    daemon.answers["status"] = lambda _: status(time_unix_s=time.time())
    daemon.start()

    view.wait_for("OK: nothing is about to run out.")
    assert view.command.poll() is None
    assert "Traceback" not in view.text


def test_json_lines_survive_a_restart_of_the_daemon(daemon, own_folders):
    """Every line is a valid object; without a daemon its errors say so."""
    daemon.answers["status"] = lambda _: status(time_unix_s=time.time())
    command = subprocess.Popen(
        [sys.executable, "-m", "watchdog_app", "status", "-w", "--json", "-i", "20ms"],
        stdout=subprocess.PIPE,
        text=True,
    )

    def next_with(processes: int) -> dict:
        while True:
            found = json.loads(command.stdout.readline())
            if len(found["tasks"]) == processes:
                return found

    try:
        next_with(1)
        daemon.stop()
        assert "daemon" == next_with(0)["problems"][0]["source"]
        daemon.start()
        assert [] == next_with(1)["problems"]
    finally:
        command.send_signal(signal.SIGINT)
        command.stdout.close()
    assert command.wait(timeout=20) in (0, 141)
