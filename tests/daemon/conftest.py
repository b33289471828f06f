"""A real daemon in its own folders, and processes for it to watch."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.finished import finished
from support.waiting import until

from watchdog_app.base.errors import DaemonNotRunning
from watchdog_app.client import jsonrpc
from watchdog_app.client.client import Client
from watchdog_app.client.jsonrpc import LineDecoder, encode
from watchdog_app.core.model.settings import Settings
from watchdog_app.daemon.control import Control
from watchdog_app.daemon.instance import ServiceManager
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.loop import Loop
from watchdog_app.daemon.notify.dispatcher import Dispatcher
from watchdog_app.daemon.parts import Parts
from watchdog_app.guard.backends import create

# The daemon takes no action, because other tests run on the same machine.
QUIET = """
[actions]
notify = false
checkpoint = false
pause = false
[notify]
desktop = false
"""


class World:
    """Folders, a daemon in them, and processes; `close` ends all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = str(folder / "run" / "daemon.sock")
        self.config = folder / "config.toml"
        self.config.write_text(QUIET)
        self.process: subprocess.Popen[bytes] | None = None
        self.env = {
            **os.environ,
            "WATCHDOG_RUNTIME_DIR": str(folder / "run"),
            "WATCHDOG_STATE_DIR": str(folder / "state"),
            "WATCHDOG_CONFIG": str(self.config),
        }
        self._children: list[int] = []
        self._clients: list[Client] = []

    def start(self, limit_files: int | None = None, **env: str) -> Client:
        """Start the daemon and wait until it answers."""
        argv = [sys.executable, "-m", "watchdog_app", "run", "--verbose"]
        if limit_files is not None:
            argv = ["sh", "-c", f'ulimit -n {limit_files}; exec "$@"', "sh", *argv]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                argv, env={**self.env, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            try:
                return self.connect()
            except DaemonNotRunning:
                time.sleep(0.02)
        raise AssertionError("the daemon did not start:\n" + self.log())

    def connect(self, role: str = "cli") -> Client:
        self._clients.append(Client.connect(self.socket, role, timeout_s=20))
        return self._clients[-1]

    def command(self, *words: str, columns: int = 80) -> subprocess.CompletedProcess[str]:
        """Run a watchdog command, with or without the daemon, in a terminal of this width."""
        return finished(
            [sys.executable, "-m", "watchdog_app", *words],
            env={**self.env, "COLUMNS": str(columns), "PYTHONUTF8": "1"},
            stdin=subprocess.DEVNULL,
        )

    def problems(self) -> dict[str, str]:
        """The problems in the status: messages by source."""
        with self.connect() as client:
            return {e["source"]: e["message"] for e in client.call("status")["problems"]}

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(60)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def script(self, code: str, name: str = "job.py", group: Any = None) -> int:
        """
        Start a script without a parent, as a separate task, in a memory group; return its pid.
        """
        path = self.folder / name
        path.write_text(code)
        argv = [sys.executable, str(path)]
        argv = argv if group is None else group.command(argv)
        started = finished(
            ["sh", "-c", 'setsid "$@" >/dev/null 2>&1 </dev/null & echo $!', "sh", *argv],
            check=True,
            env=self.env,
            cwd=self.folder,
        )
        pid = int(started.stdout)
        self._children.append(pid)
        return pid

    def sleeper(self, name: str = "job.py") -> int:
        """Start a script that mostly sleeps, and wait until the daemon sees it; return its pid."""
        pid = self.script("import time\nwhile True: time.sleep(0.1)\n", name)
        self.seen(pid)
        return pid

    def task(self, pid: int) -> dict | None:
        with self.connect() as client:
            return next((t for t in client.call("status")["tasks"] if t["pid"] == pid), None)

    def ends(self, pid: int) -> list[dict]:
        """The history's entries about the end of a process."""
        with self.connect() as client:
            entries = client.call("history", kinds=["exit"], all_exits=True, limit=1000)["entries"]
        return [each for each in entries if each["pid"] == pid]

    def ended(self, pid: int) -> dict:
        """Wait until the history has its end."""
        return self.until(lambda: self.ends(pid), f"the end of {pid} is written down")[0]

    def seen(self, pid: int) -> dict:
        return self.until(lambda: self.task(pid), f"process {pid} is seen")

    @staticmethod
    def state_letter(pid: int) -> str:
        """The state letter of /proc/PID/stat; empty if the process is gone."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return ""
        return stat[stat.rindex(")") + 2]

    def until(self, what, why: str, timeout_s: float = 60):
        return until(what, lambda: f"{why}\n{self.log()}", timeout_s, step_s=0.05)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError("the daemon did not end on SIGTERM") from None
        for pid in self._children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


class Raw:
    """A connection that can send any bytes."""

    def __init__(self, path: str, greet: bool = True, role: str = "cli") -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(10)
        self.socket.connect(path)
        self.decoder = LineDecoder()
        self.waiting: list[dict] = []
        if greet:
            self.ask("hello", protocol=2, role=role, version="0")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def tell(self, method: str, **params) -> None:
        self.send(encode(jsonrpc.notification(method, params)))

    def ask(self, method: str, **params) -> dict:
        self.send(encode(jsonrpc.request(1, method, params)))
        return self.read()

    def read(self) -> dict:
        while not self.waiting:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self.waiting += self.decoder.feed(data)
        return self.waiting.pop(0)

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def world(tmp_path):
    """A world whose daemon is not started yet."""
    world = World(tmp_path)
    yield world
    world.close()


@pytest.fixture
def group():
    """A memory group of 150 MiB that the fixture removes after the test."""
    made = create(f"watchdog-test-daemon-{os.getpid()}-{time.monotonic_ns()}", 150 << 20)
    yield made
    made.close()


@pytest.fixture(scope="module")
def standing(tmp_path_factory):
    """A world whose daemon all tests of a module share, for requests that change nothing."""
    world = World(tmp_path_factory.mktemp("standing"))
    try:
        world.start()
        yield world
    finally:
        world.close()


@pytest.fixture
def raw_standing(standing):
    """Open raw connections to the shared daemon."""
    yield from _connections(standing)


@pytest.fixture
def raw(world):
    """Open raw connections to the daemon."""
    yield from _connections(world)


def _connections(world):
    opened = []

    def connect(greet: bool = True, role: str = "cli") -> Raw:
        opened.append(Raw(world.socket, greet, role))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def channels() -> list[Any]:
    """The channels to which the daemon of `parts` sends notifications."""
    return []


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channels: list[Any]):
    """The parts of a daemon, in the test's process."""
    keywords = {**(Dispatcher.__init__.__kwdefaults__ or {}), "opened": lambda _: channels}
    monkeypatch.setattr(Dispatcher.__init__, "__kwdefaults__", keywords)
    for variable in ("WATCHDOG_RUNTIME_DIR", "WATCHDOG_STATE_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    fd = os.open(os.devnull, os.O_WRONLY)
    made = Parts(Settings(), str(tmp_path), Log(False, fd=fd))
    made.journal.open()
    yield made
    for each in (made.server, made.exit_monitor, made.copies, made.observer):
        each.close()
    made.dispatcher.close(5)
    made.journal.close(5)
    made.waker.close()
    made.poller.close()
    os.close(fd)


@pytest.fixture
def control(parts: Parts, tmp_path: Path) -> Control:
    """The control object of these parts."""
    return Control(parts, {}, str(tmp_path / "config.toml"))


@pytest.fixture
def loop(parts: Parts, control: Control) -> Loop:
    """The loop of these parts."""
    lock = SimpleNamespace(reacquire=lambda: True)
    return Loop(parts, control, lock, ServiceManager())  # type: ignore[arg-type]
