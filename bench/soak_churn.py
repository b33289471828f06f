"""
The churn of a soak: everything that starts and ends around a daemon, one thread for each kind.

It is random with a seed, so that a soak can be repeated.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from watchdog_app.base.errors import WatchdogError
from watchdog_app.client import jsonrpc
from watchdog_app.client.client import Client
from watchdog_app.client.jsonrpc import encode
from watchdog_app.guard.backends import create
from watchdog_app.guard.cgroup import Cgroup

PROGRAMS = Path(__file__).with_name("soak_programs.py")
LAST_PID = "/proc/sys/kernel/ns_last_pid"
GIB = 1024**3
CONFIG = """
[watch]
caution = "{caution}"
[stages]
warn_s = "{warn_s} s"
[notify]
desktop = false
command = ["/bin/sh", "-c", "wc -c >> {folder}/notices"]
[journal]
max_bytes = "1 MiB"
max_age_s = "1 h"
[actions]
pause = {pause}
"""


def write_config(folder: Path, pause: bool, caution: str = "normal", warn_s: int = 120) -> None:
    """
    Write the daemon's configuration: a notification command, and a journal that must be pruned.
    """
    values = {"caution": caution, "warn_s": warn_s, "folder": folder}
    (folder / "config.toml").write_text(CONFIG.format(pause=str(pause).lower(), **values))


class Churn:
    """
    The activity around one daemon, from `start` to `stop`.

    Args:
        folder: folder of the soak; it has the daemon's configuration.
        daemon: pid of the daemon.
        env: environment of the daemon.
        pace: factor of the speed; 2 is twice as fast.
        apart: True: the PID namespace is ours, so pids can be reused on purpose, and the daemon may
            pause any task.
        cards: GPUs of the stub driver, or None.
        seed: seed of the random numbers.
    """

    def __init__(
        self,
        folder: Path,
        daemon: int,
        env: dict[str, str],
        *,
        pace: float,
        apart: bool,
        cards: Any,
        seed: int = 7,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self._folder, self._daemon, self._env = folder, daemon, env
        self._pace, self._apart, self._cards = pace, apart, cards
        self._socket = str(folder / "run" / "daemon.sock")
        self._seed = seed
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._ended: list[int] = []  # pids to reuse
        self._lock = threading.Lock()
        self._groups = 0

    def start(self) -> None:
        """Start all kinds of activity."""
        kinds: list[tuple[Callable[[random.Random], None], float]] = [
            (self._short, 0.5),
            (self._grow, 3.0),
            (self._leak, 8.0),
            (self._fork, 6.0),
            (self._train, 2.5),
            (self._ask, 0.3),
            (self._follow, 4.0),
            (self._annoy, 1.5),
            (self._command, 10.0),
            (self._configure, 20.0),
            (self._pause, 12.0),
        ]
        if self._apart:
            kinds.append((self._again, 2.0))
        if self._cards is not None:
            kinds.append((self._card, 0.5))
        for number, (what, every_s) in enumerate(kinds):
            dice = random.Random(self._seed * 100 + number)
            thread = threading.Thread(target=self._repeat, args=(what, every_s, dice))
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop everything and leave nothing behind."""
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        with self._lock:
            running = list(self._running.values())
        for process in running:
            for number in (signal.SIGCONT, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)
            process.wait()

    def _repeat(
        self, what: Callable[[random.Random], None], every_s: float, dice: random.Random
    ) -> None:
        name = what.__name__.strip("_")
        while not self._over.wait(dice.expovariate(1.0) * every_s / self._pace):
            try:
                what(dice)
                self.counts[name] += 1
            except Exception as error:  # reported at the end; one failure does not end a soak
                if not self._over.is_set():
                    self.failures.append(f"{name}: {error!r}")

    # Processes

    def _spawn(self, argv: list[str], group: Cgroup | None = None) -> subprocess.Popen[bytes]:
        self._reap()
        process = subprocess.Popen(
            argv if group is None else group.command(argv),
            env=self._env,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with self._lock:
            self._running[process.pid] = process
        return process

    def _reap(self) -> None:
        with self._lock:
            for pid, process in list(self._running.items()):
                if process.poll() is not None:
                    del self._running[pid]
                    self._ended = [*self._ended[-50:], pid]

    def _program(self, kind: str, *words: object, group: Cgroup | None = None) -> int:
        if len(self._running) > 40 * self._pace:
            return 0
        argv = [sys.executable, str(PROGRAMS), kind, *map(str, words)]
        return self._spawn(argv, group).pid

    def _short(self, dice: random.Random) -> None:
        for _ in range(dice.randint(1, 4)):
            code = f"import time; time.sleep({dice.expovariate(4):.3f})"
            self._spawn([sys.executable, "-S", "-c", code])

    def _grow(self, dice: random.Random) -> None:
        most_mb = dice.uniform(5, 80)
        self._program("grow", most_mb / dice.uniform(1, 15), most_mb, dice.uniform(0, 15))

    def _leak(self, dice: random.Random) -> None:
        """Leak in a group of 150 MB: the daemon warns, saves or pauses, or the kernel kills."""
        self._groups += 1
        try:
            group = create(f"watchdog-soak-{os.getpid()}-{self._groups}", 150_000_000)
        except WatchdogError:
            return  # no group can be made here
        speed = dice.uniform(4, 20)
        try:
            if dice.random() < 0.5:
                folder = self._folder / "rescues" / str(dice.randint(0, 9))
                pid = self._program("train", folder, 40, "exit", speed, group=group)
            else:
                pid = self._program("grow", speed, 400, 0, group=group)
            end = time.monotonic() + 20
            while pid in self._running and time.monotonic() < end and not self._over.wait(0.5):
                self._reap()
        finally:
            group.close()

    def _fork(self, dice: random.Random) -> None:
        self._program("fork", dice.randint(1, 5), dice.uniform(1, 8))

    def _train(self, dice: random.Random) -> None:
        end = dice.choice(("well", "well", "exit", "error", "kill", "again"))
        folder = self._folder / "rescues" / str(dice.randint(0, 9))
        self._program("train", folder, dice.uniform(2, 20), end, dice.choice((0, 0, 0.5)))

    def _again(self, dice: random.Random) -> None:
        """Start a new Python with the pid of one that has just ended."""
        self._reap()
        with self._lock:
            free = [pid for pid in self._ended if not os.path.exists(f"/proc/{pid}")]
        if not free:
            return
        pid = dice.choice(free)
        with self._lock:  # start no other process in between
            Path(LAST_PID).write_text(str(pid - 1))
            process = subprocess.Popen(
                [sys.executable, "-S", "-c", "import time; time.sleep(3)"], cwd=self._folder
            )
            self._running[process.pid] = process
        self.counts["pid used again"] += process.pid == pid

    # Clients

    def _ask(self, dice: random.Random) -> None:
        with Client.connect(self._socket, timeout_s=20) as client:
            tasks = client.call("status")["tasks"]
            whom = str(dice.choice(tasks)["pid"]) if tasks else None
            method = dice.choice(("explain", "explain", "history", "series", "config", "status"))
            with suppress(WatchdogError):  # the task has ended since
                client.call(method, **({} if method in ("config", "status") else {"task": whom}))

    def _follow(self, dice: random.Random) -> None:
        with Client.connect(self._socket, "tray", timeout_s=20) as client:
            client.call("subscribe", topics=["status", "notifications"])
            self._over.wait(dice.expovariate(0.2))

    def _annoy(self, dice: random.Random) -> None:
        """Clients that send nothing, nonsense or half a request, or never read."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            client.connect(self._socket)
            hello = encode(
                jsonrpc.request(1, "hello", {"protocol": 2, "role": "cli", "version": "0"})
            )
            status = encode(jsonrpc.request(2, "status", {}))
            said = dice.choice((b"", b"\xff\0[[[\n" * 10, hello[:40], hello + status * 50))
            with suppress(OSError):
                client.sendall(said)
                self._over.wait(dice.random() * 3)

    def _command(self, dice: random.Random) -> None:
        words = dice.choice((["status"], ["status", "--json"], ["explain"], ["history"]))
        self._spawn([sys.executable, "-m", "watchdog_app", *words])

    def _configure(self, dice: random.Random) -> None:
        if dice.random() < 0.2:
            (self._folder / "config.toml").write_text("[watch]\ninterval_s = 'often'\n")
        else:
            caution = dice.choice(("low", "normal", "high"))
            write_config(self._folder, self._apart, caution, dice.randint(60, 240))
        os.kill(self._daemon, signal.SIGHUP)

    def _pause(self, dice: random.Random) -> None:
        if not self._apart:
            return
        with Client.connect(self._socket, timeout_s=20) as client:
            ours = [t for t in client.call("status")["tasks"] if "soak_programs" in t["name"]]
            if not ours:
                return
            with suppress(WatchdogError):
                client.call("task.pause", task=str(dice.choice(ours)["pid"]))
            self._over.wait(dice.random() * 4)
            with suppress(WatchdogError):
                client.call("task.resume", task=None)

    # GPUs

    def _card(self, dice: random.Random) -> None:
        stub, card = self._cards, dice.randrange(8)
        used = int((0.5 + 0.45 * dice.random()) * 20 * GIB)
        stub.set(
            card, used=used, temperature=dice.randint(40, 90), power_mw=dice.randint(30, 340) * 1000
        )
        with self._lock:
            pids = list(self._running)
        stub.processes(card, [(pid, used // 4) for pid in dice.sample(pids, min(3, len(pids)))])
        if dice.random() < 0.01:
            stub.xid(card, dice.choice((13, 31, 43)))
        if dice.random() < 0.005:
            stub.lose(card)
            self._over.wait(5)
            stub.find(card)
