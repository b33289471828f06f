"""
Helpers for the tests in the virtual machine: the user `me`, their daemon, their programs.

Tests run as root. `me` is an ordinary user with a systemd instance, in which `Session` starts its
programs.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from watchdog_app.base.errors import RescueError, WatchdogError
from watchdog_app.client.client import Client
from watchdog_app.rescue.checkpoint import format

USER = "me"
UID = pwd.getpwnam(USER).pw_uid
HOME = Path(f"/home/{USER}")
RUNTIME = Path(f"/run/user/{UID}")
SOCKET = RUNTIME / "watchdog" / "daemon.sock"
PYTHON = "/opt/watchdog/bin/python"
PROGRAMS = HOME / "programs"
FIGURES = Path("/share/out/figures.txt")
# The machine is emulated on a busy host, so deadlines are long.
PATIENCE_S = 300.0
MB = 1_000_000

# There is no desktop, and a test enables pauses explicitly.
CONFIG = "[actions]\npause = false\n[notify]\ndesktop = false\nterminal = false\n"


class Training:
    """A test program in a separate scope."""

    def __init__(self, unit: str, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.unit = unit
        self.folder = folder
        self.started_unix_s = time.time()
        self._process = process

    @property
    def pid(self) -> int:
        """The pid of the program itself, which writes it at its start."""
        return int(until(lambda: self._read("pid"), f"{self.unit} begins"))

    @property
    def group(self) -> Path:
        """Its folder in the cgroup file system."""
        line = Path(f"/proc/{self.pid}/cgroup").read_text().strip()
        return Path(f"/sys/fs/cgroup{line.split('::', 1)[1]}")

    def steps(self) -> list[tuple[int, float]]:
        """(step, unix_s) of every finished step."""
        lines = self._read("steps").splitlines()
        return [(int(a), float(b)) for a, b in (line.split() for line in lines if " " in line)]

    def last_sign_unix_s(self) -> float:
        """The time of its last sign of work."""
        steps = self.steps()
        return steps[-1][1] if steps else self.started_unix_s

    def rescues(self) -> list[Path]:
        """The complete rescues, oldest first."""
        folder = self.folder / "rescues"
        return sorted(folder.glob("rescue-*")) if folder.is_dir() else []

    def saved_step(self) -> int:
        """The step of the newest complete rescue, 0 without one."""
        saved = [0]
        for path in self.rescues():
            with contextlib.suppress(OSError, RescueError):  # replaced by a newer one meanwhile
                saved.append(format.read_manifest((path / format.MANIFEST_FILE).read_bytes()).step)
        return max(saved)

    def ended(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for it; -9 or 137 if it was killed."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.unit} still runs after {timeout_s} s\n{self.log()}"
            ) from None

    def log(self) -> str:
        """Its output."""
        return self._read("log")[-3000:]

    def _read(self, name: str) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / name).read_text(errors="replace")
        return ""

    def close(self) -> None:
        """Kill the rest of it."""
        subprocess.run([*as_me(), "systemctl", "--user", "kill", "--signal=KILL", self.unit],
                       check=False, capture_output=True, timeout=PATIENCE_S)  # fmt: skip
        self._process.kill()
        self._process.wait(PATIENCE_S)


class Session:
    """The user's session: the daemon as a unit, programs as scopes; `close` ends all of it."""

    def __init__(self) -> None:
        self.folder = HOME / f"test-{time.monotonic_ns()}"
        self.folder.mkdir()
        os.chown(self.folder, UID, UID)
        self._client: Client | None = None
        self._trainings: list[Training] = []
        self._units: list[str] = []
        self._overridden = False
        swap_off()
        for state in ("watchdog", ".config/watchdog", ".local/state/watchdog"):
            subprocess.run(["rm", "-rf", str(HOME / state)], check=False)

    # Commands

    def run(self, *argv: str, check: bool = True, timeout_s: float = PATIENCE_S) -> str:
        """Run a command as the user in their session; return its output."""
        done = subprocess.run([*as_me(), *argv], check=False, timeout=timeout_s, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        assert not check or done.returncode == 0, (
            f"{argv} ended with {done.returncode}: {done.stdout}"
        )
        return done.stdout

    def systemctl(self, *words: str, check: bool = True) -> str:
        """Run `systemctl --user ...` as the user."""
        return self.run("systemctl", "--user", *words, check=check)

    def show(self, unit: str, name: str) -> str:
        """One property of a unit of the user."""
        return self.systemctl("show", "--value", f"--property={name}", unit).strip()

    # The daemon

    def start_daemon(self, config: str = CONFIG, override: str = "") -> Client:
        """
        Start the daemon under the user's systemd, from the packaged unit.

        Args:
            config: the text of the user's config.toml.
            override: lines for the `[Service]` section, as `systemctl edit` would add them.
        """
        folder = HOME / ".config" / "watchdog"
        self.run("mkdir", "-p", str(folder))
        (folder / "config.toml").write_text(config)
        os.chown(folder / "config.toml", UID, UID)
        if override:
            drop_in = Path("/etc/systemd/user/watchdog.service.d")
            drop_in.mkdir(parents=True, exist_ok=True)
            (drop_in / "test.conf").write_text(f"[Service]\n{override}")
            self._overridden = True
            self.systemctl("daemon-reload")
        self.systemctl("reset-failed", "watchdog.service", check=False)
        # Returns after READY=1.
        self.run("systemctl", "--user", "start", "watchdog.service")
        return self.client()

    def client(self) -> Client:
        """A new connection to the daemon, as the user."""
        if self._client is not None:
            self._client.close()

        def connect() -> Client | None:
            os.seteuid(UID)  # the kernel tells the daemon the user at connect(2)
            try:
                return Client.connect(str(SOCKET), timeout_s=60)
            except WatchdogError:
                return None
            finally:
                os.seteuid(0)

        self._client = until(connect, "the daemon listens")
        return self._client

    def status(self) -> dict[str, Any]:
        """The status object; reconnects if necessary."""
        try:
            assert self._client is not None
            return dict(self._client.call("status"))
        except (WatchdogError, OSError):
            return dict(self.client().call("status"))

    def task(self, pid: int) -> dict[str, Any] | None:
        """The status entry of a task, None while the daemon does not show it."""
        return next((dict(t) for t in self.status()["tasks"] if t["pid"] == pid), None)

    def history(self, *kinds: str, all_exits: bool = False) -> list[dict[str, Any]]:
        """Journal entries of these kinds, oldest first."""
        assert self._client is not None
        wanted = {"kinds": list(kinds), "all_exits": all_exits, "limit": 1000}
        entries = self._client.call("history", **wanted)["entries"]
        return sorted((dict(e) for e in entries), key=lambda e: e["unix_s"])

    def death(self, pid: int, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait for the entry of a task's end, not of one of its workers'."""

        def read() -> list[dict[str, Any]]:
            ends = self.history("exit", all_exits=True)
            return [e for e in ends if e["pid"] == pid and "worker" not in e]

        return dict(until(read, f"the end of {pid}", timeout_s)[0])

    def journal(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of the daemon's journal, read while the daemon runs."""
        path = f"file:{HOME}/.local/state/watchdog/journal.db?mode=ro"
        with contextlib.closing(sqlite3.connect(path, uri=True, timeout=60)) as db:
            return db.execute(query, values).fetchall()

    def first(self, kind: str) -> float | None:
        """The time of the first decision of a kind ("notify", "checkpoint", ...), unix_s."""
        times = [
            entry.get("first_unix_s", entry["unix_s"])  # a series of saves is one entry
            for entry in self.history("decision")
            if entry["decision_kind"] == kind
        ]
        return min(times, default=None)

    def daemon_pid(self) -> int:
        """As systemd knows it; 0 while none runs."""
        return int(self.show("watchdog.service", "MainPID"))

    def daemon_log(self) -> str:
        """The end of its log in the journal."""
        return self.run(
            "journalctl", "--user", "-u", "watchdog", "-n", "40", "--no-pager", check=False
        )

    # Programs

    def train(
        self, *words: str, name: str = "run", properties: Sequence[str] = (), service: bool = False
    ) -> Training:
        """
        Start programs/train.py in a scope or as a service of the user's systemd.

        Args:
            words: the program's arguments.
            name: the name of its folder and its unit.
            properties: properties of the unit, e.g. "MemoryMax=300M".
            service: start a service instead of a scope.
        """
        folder = self.folder / name
        self.run("mkdir", "-p", str(folder))
        unit = f"{name}-{time.monotonic_ns()}.{'service' if service else 'scope'}"
        kind = ["--wait"] if service else ["--scope"]
        argv = ["systemd-run", "--user", *kind, "--quiet", f"--unit={unit}"]
        argv += [f"--property={one}" for one in properties]
        argv += ["--", PYTHON, str(PROGRAMS / "train.py"), "--folder", str(folder), *words]
        with open(folder / "log", "ab") as log:
            process = subprocess.Popen(
                [*as_me(), *argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder,
                preexec_fn=ordinary, start_new_session=True,
            )  # fmt: skip
        training = Training(unit, process, folder)
        self._trainings.append(training)
        return training

    def until_watched(self, training: Training) -> dict[str, Any]:
        """Wait until its agent has reported a step and the daemon knows its save's cost."""

        def read() -> dict[str, Any] | None:
            assert training.ended() is None, training.log()
            task = self.task(training.pid)
            agent = (task or {}).get("agent") or {}
            return task if agent.get("step") and agent.get("state_bytes") else None

        return until(read, "the agent reports")

    def close(self) -> None:
        """End everything, including a stopped training."""
        for training in self._trainings:
            training.close()
        if self._client is not None:
            self._client.close()
        self.systemctl("stop", "watchdog.service", check=False)
        if self._overridden:
            Path("/etc/systemd/user/watchdog.service.d/test.conf").unlink()
            self.systemctl("daemon-reload", check=False)
        swap_off()
        subprocess.run(["rm", "-rf", str(self.folder)], check=False)


def as_me() -> list[str]:
    """The start of a command line: run as the user, with a login's environment."""
    return ["runuser", "-u", USER, "--", "env", f"HOME={HOME}", f"XDG_RUNTIME_DIR={RUNTIME}",
            f"DBUS_SESSION_BUS_ADDRESS=unix:path={RUNTIME}/bus",
            "PATH=/usr/local/bin:/usr/bin:/bin"]  # fmt: skip


def ordinary() -> None:
    """Give a started program an ordinary OOM score; the tests themselves are protected."""
    Path("/proc/self/oom_score_adj").write_text("200")


def until(what: Callable[[], Any], why: str, timeout_s: float = PATIENCE_S) -> Any:
    """Wait for something to become true and return it."""
    end = time.monotonic() + timeout_s
    while True:
        found = what()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"{why}: not within {timeout_s:g} s")
        time.sleep(0.2)


@contextlib.contextmanager
def service(name: str, *, settle_s: float = 2.0) -> Iterator[None]:
    """Run a system service for the duration of a test."""
    subprocess.run(["systemctl", "start", name], check=True, timeout=PATIENCE_S)
    time.sleep(settle_s)
    try:
        yield
    finally:
        subprocess.run(["systemctl", "stop", name], check=False, timeout=PATIENCE_S)


def system_log(*words: str) -> str:
    """The `journalctl` output of the machine since boot, with unix times."""
    done = subprocess.run(["journalctl", "--no-pager", "-o", "short-unix", *words], check=False,
                          capture_output=True, text=True, timeout=PATIENCE_S)  # fmt: skip
    return done.stdout


def swap_off() -> None:
    """Turn off all swap and delete its files."""
    subprocess.run(["swapoff", "-a"], check=False, timeout=PATIENCE_S)
    for path in Path("/").glob("swap-*"):
        path.unlink()


def swap_on(megabytes: int) -> None:
    """Add this much swap, in a file, until the test ends."""
    path = f"/swap-{time.monotonic_ns()}"
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, megabytes << 20)  # swapon refuses a file with holes
    os.chmod(path, 0o600)
    subprocess.run(["mkswap", path], check=True, capture_output=True, timeout=PATIENCE_S)
    subprocess.run(["swapon", path], check=True, timeout=PATIENCE_S)


def write_down(test: str, name: str, value: object) -> None:
    """Write a figure into /share/out, for people outside the machine."""
    FIGURES.parent.mkdir(exist_ok=True)
    with open(FIGURES, "a") as file:
        file.write(f"{test}\t{name}\t{json.dumps(value)}\n")


def kill(pid: int, number: signal.Signals) -> None:
    """Signal a process of any user."""
    os.kill(pid, number)
