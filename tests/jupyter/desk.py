"""
A real Jupyter server with real kernels and a daemon that watches them.

One kernel stays paused for a whole minute while the other tests run: one desk per session.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import NO_PAUSE, World
from lab_page import use_extension
from real_server import JupyterServer, Kernel
from support.finished import finished

from watchdog_app.base.jupyter import user_startup_file
from watchdog_app.install import trust

GROW = """
import time
held = []
for _ in range(60):
    held.append(b"x" * (2 << 20))
    time.sleep(0.1)
print("grown to", len(held))
"""


@dataclass
class Desk:
    """Server and daemon with the queries that the tests use."""

    world: World
    server: JupyterServer

    def task(self, pid: int) -> dict[str, Any] | None:
        return self.world.task(pid)

    def name(self, pid: int) -> str | None:
        return (self.task(pid) or {}).get("name")

    def until(self, what, why: str) -> Any:
        return self.world.until(what, why)

    def entries(self, kind: str, name: str) -> list[dict[str, Any]]:
        return [one for one in self.world.history(kind) if one["name"] == name]

    def restarted(self, kernel: Kernel, before: int, name: str) -> dict[str, Any]:
        """Wait until the daemon follows a kernel into its next process."""

        def found() -> dict[str, Any] | None:
            tasks = self.world.client.call("status")["tasks"]
            now = [one for one in tasks if one["kernel_id"] == kernel.id and one["pid"] != before]
            return dict(now[0]) if now and self.entries("restart", name) else None

        task: dict[str, Any] = self.until(found, f"{name} is restarted")
        kernel.reconnect()
        return task

    def watchdog(self, *words: str) -> str:
        """Return a command's output, errors included."""
        done = finished([sys.executable, "-m", "watchdog_app", *words], env=self.world.env)
        return done.stdout + done.stderr


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """
    The startup file loads the agent in kernels; the kernels of "limited" run in a memory group.
    """
    folder = tmp_path_factory.mktemp("desk")
    world = World(folder)
    own = Path(user_startup_file({"IPYTHONDIR": str(folder / "ipython")}))
    own.parent.mkdir(parents=True)
    own.write_bytes(trust.startup_file())
    use_extension(folder / "config", folder / "data")
    server = JupyterServer(folder, env=world.env)
    try:
        world.start_daemon(NO_PAUSE)
        server.wait()
        yield Desk(world, server)
    finally:
        server.close()
        world.close()


@dataclass
class Paused:
    """A paused kernel whose tab stays open."""

    kernel: Kernel
    pid: int
    cell: str
    since_mono_s: float

    def __post_init__(self) -> None:
        self._asked_for = threading.Event()
        self._tab = threading.Thread(target=self._listen, daemon=True)
        self._tab.start()

    def _listen(self) -> None:
        while not self._asked_for.wait(5.0):
            self.kernel.listen()

    def take_over(self) -> Kernel:
        """Stop the reader thread: from now on only the caller reads the kernel's messages."""
        self._asked_for.set()
        self._tab.join()
        return self.kernel


@pytest.fixture(scope="session")
def paused(desk: Desk) -> Iterator[Paused]:
    """A kernel paused during a computation while all other tests of this folder run."""
    kernel = desk.server.open("long.ipynb")
    pid = kernel.pid()
    desk.until(lambda: desk.name(pid) == "long.ipynb", "the notebook is seen")
    before = desk.task(pid)["ram_bytes"]
    cell = kernel.begin(GROW)
    desk.until(lambda: desk.task(pid)["ram_bytes"] > before + (12 << 20), "it grows")
    desk.world.client.call("task.pause", task="long.ipynb")
    found = Paused(kernel, pid, cell, time.monotonic())
    yield found
    found.take_over()
