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

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


class Terminal:
    """The command on a pty of its own."""

    def __init__(self, *words: str, rows: int = 24, columns: int = 80) -> None:
        self._master, slave = pty.openpty()
        self.resize(rows, columns, tell=False)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.text = ""
        self.command = subprocess.Popen(
            [sys.executable, "-m", "watchdog_app", "status", "--watch", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color"},
            # Not a session of its own: in one without a shell nothing can be stopped by Ctrl-Z.
            process_group=0,
        )

    def resize(self, rows: int, columns: int, tell: bool = True) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if tell:
            self.command.send_signal(signal.SIGWINCH)

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def wait_for(self, text: str) -> None:
        """Read until `text` has been shown from here on."""
        seen = ""
        end = time.monotonic() + 30
        while text not in seen:
            assert time.monotonic() < end, f"{text!r} not in {self.text[-2000:]!r}"
            if select.select([self._master], [], [], 0.2)[0]:
                piece = os.read(self._master, 65536).decode("utf-8", "replace")
                seen += piece
                self.text += piece

    def wait_for_stop(self) -> None:
        """Until the process is stopped by a signal."""
        end = time.monotonic() + 30
        while os.waitpid(self.command.pid, os.WUNTRACED | os.WNOHANG) == (0, 0):
            assert time.monotonic() < end, "it was not stopped"
            time.sleep(0.01)

    def end(self) -> int:
        """Exit code, with everything that was still shown in `text`."""
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
    """Opens commands on ptys and closes them."""
    opened = []

    def open_(*words: str, **size: int) -> Terminal:
        opened.append(Terminal("--interval", "100ms", *words, **size))
        return opened[-1]

    daemon.answers["status"] = lambda _: {**leaking(), "time_unix_s": time.time()}
    yield open_
    for one in opened:
        one.close()


@pytest.mark.parametrize("how", ["q", "\x04", "\x03", "SIGTERM"])
def test_the_terminal_is_given_back_as_it_was(terminal, how):
    """However the view ends: normal screen, cursor, echo, exit code 0, last reading kept."""
    view = terminal()
    view.wait_for("q quit")

    if how == "SIGTERM":
        view.command.send_signal(signal.SIGTERM)
    elif how == "\x03":
        view.command.send_signal(signal.SIGINT)  # a session without a controlling terminal
    else:
        view.press(how)

    assert 0 == view.end()
    assert view.before == view.after
    screen, _, rest = view.text.rpartition(LEAVE)
    assert ENTER in screen
    assert HIDE_CURSOR in screen
    assert view.text.rfind(SHOW_CURSOR) > view.text.rfind(HIDE_CURSOR)
    assert "CRITICAL" in rest
    assert "q quit" not in rest


def test_a_frame_never_exceeds_the_terminal(terminal, daemon):
    """With sixty tasks on 24 lines the rest is counted, and nothing scrolls."""
    crowd = [process(n, f"notebook {n}.ipynb", n * MIB) for n in range(1, 61)]
    daemon.answers["status"] = lambda _: status(time_unix_s=time.time(), tasks=crowd)

    view = terminal("--count", "1")

    assert 0 == view.end()
    frame = view.text.split("\x1b[H")[1].split("\x1b[J")[0]
    assert frame.count("\r\n") <= 23
    assert "more tasks" in frame


def test_a_change_of_size_is_drawn_at_once(terminal, daemon):
    """A wide terminal gets the wide table without waiting for the next reading."""
    view = terminal("--interval", "1h")
    view.wait_for("q quit")

    view.resize(50, 200)

    view.wait_for("train_resnet_with_a_very_long_name_v2_final.ipynb  ")
    assert view.command.poll() is None


def test_keys_change_the_view(terminal):
    """a lists all, s sorts differently."""
    view = terminal("--interval", "1h", rows=50, columns=200)
    view.wait_for("by urgency")

    view.press("s")
    view.wait_for("by ram")
    assert "networkd-dispatcher" not in view.text
    view.press("a")
    view.wait_for("networkd-dispatcher")


def test_ctrl_z_gives_the_terminal_to_the_shell(terminal):
    """And after fg the view goes on."""
    view = terminal()
    view.wait_for("q quit")

    view.command.send_signal(signal.SIGTSTP)
    view.wait_for(LEAVE)
    view.wait_for_stop()
    view.command.send_signal(signal.SIGCONT)

    view.wait_for(ENTER)
    view.wait_for("q quit")
    assert 2 == view.text.count(ENTER)


def test_the_view_survives_a_restart_of_the_daemon(terminal, daemon):
    """It says that nobody answers, keeps the last reading, and goes on."""
    view = terminal()
    view.wait_for("q quit")

    daemon.stop()
    view.wait_for("Nothing new since")
    view.wait_for("train_r")
    daemon.answers["status"] = lambda _: status(time_unix_s=time.time())
    daemon.start()

    view.wait_for("OK: nothing is about to run out.")
    assert view.command.poll() is None
    assert "Traceback" not in view.text


def test_json_lines_survive_a_restart_of_the_daemon(daemon, own_folders):
    """Every line is a valid object; while nobody answers its errors say so."""
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
