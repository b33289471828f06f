"""The live view in a real terminal, with a real daemon or without one."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys

import pytest
from support.finished import finished
from support.waiting import until

PATIENCE_S = 60.0
_NUMBERS = itertools.count()


@pytest.fixture
def env(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("[actions]\npause = false\n[notify]\ndesktop = false\n")
    return dict(
        os.environ,
        WATCHDOG_RUNTIME_DIR=str(tmp_path / "run"),
        WATCHDOG_STATE_DIR=str(tmp_path / "state"),
        WATCHDOG_CONFIG=str(config),
    )


class Terminal:
    """A tmux terminal: reads its screen and sends keys."""

    def __init__(self, name, env, columns, rows, term):
        self.name = name
        # The shell prints the program's exit status on the same screen.
        command = f"TERM={term} {sys.executable} -m watchdog_app top; echo code $?; sleep 600"
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), command,
            env=env,
        )  # fmt: skip

    def _tmux(self, *words, env=None):
        return finished(["tmux", "-L", self.name, *words], env=env, check=True).stdout

    def screen(self):
        return self._tmux("capture-pane", "-p")

    def type(self, *keys):
        self._tmux("send-keys", *keys)

    def until(self, text):
        self._until(lambda: text in self.screen(), f"{text!r} is shown")

    def until_row(self):
        """Wait for the row of this test's task: the machine runs other tasks too."""
        task = re.compile(r"^\s*\d+ +\S+.* [\d.]+[MG] ", re.MULTILINE)
        self._until(lambda: task.search(self.screen()), "a task is shown")

    def until_gone(self, text):
        self._until(lambda: text not in self.screen(), f"{text!r} is gone")

    def _until(self, condition, why):
        until(condition, lambda: f"{why}:\n{self.screen()}", PATIENCE_S, step_s=0.1)

    def close(self):
        self._tmux("kill-server")


@pytest.fixture
def terminal(env, tmp_path):
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: run packaging/setup.sh test")
    opened = []

    def make(columns=80, rows=24, term="screen"):
        # Never reuse a session name: the previous test's server may still be shutting down.
        name = f"wt{os.getpid()}-{next(_NUMBERS)}"
        opened.append(Terminal(name, env, columns, rows, term))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def watchdog(env, *words):
    subprocess.run([sys.executable, "-m", "watchdog_app", *words], env=env, check=True, timeout=60)


@pytest.mark.parametrize("term", ["screen", "screen-256color", "xterm"])
def test_it_waits_for_a_daemon_shows_it_and_ends_cleanly(env, terminal, term):
    """
    The view goes from "start it with" to the tasks of this machine.

    The q key restores the terminal.
    """
    view = terminal(term=term)
    view.until("watchdog start")

    watchdog(env, "start")
    try:
        view.until("RAM")
        view.until_row()
        view.type("?")
        view.until("Esc: close")
        view.type("Escape")
        view.until_gone("Esc: close")  # the terminal would read a key sent right after Esc as Alt-q
        view.type("q")
        view.until("code 0")
        assert "Traceback" not in view.screen()
    finally:
        watchdog(env, "stop")


def test_ctrl_c_ends_it(env, terminal):
    view = terminal(200, 60)
    view.until("watchdog start")

    view.type("C-c")

    view.until("code 0")
    assert "Traceback" not in view.screen()


def test_without_a_terminal_it_says_what_to_use(env):
    """The view cannot draw into a pipe, so the command names another command."""
    done = finished(
        [sys.executable, "-m", "watchdog_app", "top"], env=env, stdin=subprocess.DEVNULL
    )

    assert (2, "") == (done.returncode, done.stdout)
    assert "watchdog status --watch" in done.stderr
