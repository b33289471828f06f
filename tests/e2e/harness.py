"""
The World of one end-to-end test: real daemon, groups and trainings.

Everything lives in one temporary folder and ends with `World.close`.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.waiting import until

from watchdog_app.base.errors import DaemonNotRunning
from watchdog_app.client.client import Client
from watchdog_app.demo.story import Loss, read_losses
from watchdog_app.guard.backends import create
from watchdog_app.guard.cgroup import Cgroup

PROGRAMS = Path(__file__).parent / "programs"
NO_PAUSE = "[actions]\npause = false\n[notify]\ndesktop = false\n"
# Only this test's programs: the daemon also sees the other workers of the test run.
PAUSE = """\
[actions]
pause = false
[notify]
desktop = false
[[rule]]
task = "*/tests/e2e/programs/*"
pause = true
"""
PATIENCE_S = 150.0


@dataclass
class Training:
    """A running or finished test program."""

    process: subprocess.Popen[bytes]
    out: Path
    rescues: Path
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def losses(self) -> dict[int, Loss]:
        return read_losses(str(self.out))

    def final(self) -> str:
        return Path(f"{self.out}.final").read_text()

    def complete_rescues(self) -> list[Path]:
        if not self.rescues.is_dir():
            return []
        return sorted(p for p in self.rescues.iterdir() if p.name.startswith("rescue-"))

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s:\n{self.tail()}") from None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


class World:
    """One folder, one daemon, any number of groups and trainings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemon: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None
        self._groups: list[Cgroup] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self.env = dict(
            os.environ,
            WATCHDOG_RUNTIME_DIR=str(folder / "run"),
            WATCHDOG_STATE_DIR=str(folder / "state"),
            WATCHDOG_CONFIG=str(folder / "config.toml"),
            WATCHDOG_AGENT_STRICT="1",
            TF_CPP_MIN_LOG_LEVEL="3",
            # Two threads add the halves of a large product in varying order: with 500 MB of weights
            # two runs would differ in the last bit.
            OMP_NUM_THREADS="1",
            TF_NUM_INTRAOP_THREADS="1",
            TF_NUM_INTEROP_THREADS="2",
        )

    def start_daemon(self, config: str = NO_PAUSE) -> Client:
        (self.folder / "config.toml").write_text(config)
        log = open(self.folder / "daemon.log", "ab")
        self.daemon = subprocess.Popen(
            [sys.executable, "-m", "watchdog_app", "run", "--verbose"],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        log.close()
        self._forget_client()
        end = time.monotonic() + 30
        while time.monotonic() < end and self.daemon.poll() is None:
            try:
                self._client = Client.connect(str(self.folder / "run" / "daemon.sock"))
            except DaemonNotRunning:
                time.sleep(0.05)
            else:
                return self._client
        raise AssertionError("the daemon did not start:\n" + self.daemon_log())

    def _forget_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    def kill_daemon(self) -> None:
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()

    def daemon_log(self) -> str:
        path = self.folder / "daemon.log"
        return path.read_text(errors="replace")[-6000:] if path.exists() else ""

    def group(self, limit_mb: float, swap_mb: float = 0) -> Cgroup:
        name = f"watchdog-e2e-{os.getpid()}-{time.monotonic_ns()}"
        group = create(name, int(limit_mb * 1e6), int(swap_mb * 1e6))
        self._groups.append(group)
        return group

    def train(
        self,
        program: str,
        *arguments: str,
        name: str = "run",
        group: Cgroup | None = None,
        rescues: Path | None = None,
    ) -> Training:
        """Start `programs/PROGRAM`; runs of one name share their losses and rescues."""
        out = self.folder / f"{name}.csv"
        rescues = rescues or self.folder / f"{name}-rescues"
        log = self.folder / f"{name}.log"
        argv = [sys.executable, str(PROGRAMS / program), "--out", str(out)]
        argv += ["--rescues", str(rescues)]
        # Through the environment: other arguments would make it another training.
        told = {"TRAINING_WORDS": shlex.join(arguments)}
        return Training(self._start(argv, group, log, told), out, rescues, log)

    def start(self, program: str, *arguments: str, group: Cgroup | None = None) -> int:
        """Start a program that records nothing; return its PID."""
        argv = [sys.executable, str(PROGRAMS / program), *arguments]
        return self._start(argv, group, self.folder / f"{program}.log").pid

    def _start(
        self,
        argv: list[str],
        group: Cgroup | None,
        log: Path,
        told: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        if group is not None:
            argv = group.command(argv)
        with open(log, "ab") as file:
            process = subprocess.Popen(
                argv,
                env={**self.env, **(told or {})},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def task(self, pid: int) -> dict[str, Any] | None:
        """Return the status entry of a task, or None if the daemon does not list it."""
        for task in self.client.call("status")["tasks"]:
            if task["pid"] == pid:
                return dict(task)
        return None

    def history(self, *kinds: str) -> list[dict[str, Any]]:
        """Return journal entries of these kinds, newest first."""
        return list(self.client.call("history", kinds=list(kinds), limit=1000)["entries"])

    def until(self, what: Callable[[], Any], why: str, timeout_s: float = PATIENCE_S) -> Any:
        """Wait until a condition returns a true value, and return it."""
        return until(what, lambda: f"{why}\n{self.daemon_log()}", timeout_s, step_s=0.1)

    def close(self) -> None:
        self._forget_client()
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.terminate()
            try:
                self.daemon.wait(10)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()
                raise AssertionError("the daemon did not end on SIGTERM") from None
        for group in self._groups:
            group.close()


def state_letter(pid: int) -> str:
    """Return the process state as in /proc/PID/stat, '' if the process has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat[stat.rindex(")") + 2]
