"""Kernels of real servers and programs have the right names, however they were started."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from jupyter_server.auth import passwd
from real_server import EMPTY, JupyterServer
from support.waiting import until

from watchdog_app.core.model.machine import ProcessInfo, ProcessKey, Task, TaskKind
from watchdog_app.core.model.tasks import group_processes
from watchdog_app.machine.sensors.machine import LinuxMachine

WORKERS = """
import multiprocessing, subprocess, sys, time
children = [multiprocessing.get_context(how).Process(target=time.sleep, args=(600,))
            for how in ("fork", "forkserver", "spawn")]
for child in children:
    child.start()
children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
import pathlib, threading
pathlib.Path("shelled.py").write_text("import time; time.sleep(600)")
threading.Thread(target=get_ipython().system, args=(sys.executable + " shelled.py",)).start()
print(" ".join(str(child.pid) for child in children))
"""
END_WORKERS = """
for child in children:
    child.kill()
    child.wait() if hasattr(child, "wait") else child.join()
"""


class Sight:
    """The tasks that the sensors find, one sample after the other."""

    def __init__(self) -> None:
        # Only the kernels reveal where servers put their descriptions.
        self.machine = LinuxMachine()
        self._infos: Mapping[ProcessKey, ProcessInfo] = {}

    def tasks(self) -> tuple[Task, ...]:
        """Return the current tasks."""
        now = self.machine.sample(time.monotonic(), time.time())
        self._infos = now.infos
        return group_processes(now.processes, now.infos)

    def infos(self, task: Task) -> list[ProcessInfo]:
        """Return the process infos of a task's members in the last sample."""
        return [self._infos[member.key] for member in task.members]

    def task(self, fits: Callable[[Task], bool]) -> Task | None:
        """Return the matching task."""
        return next((task for task in self.tasks() if fits(task)), None)

    def until(self, fits: Callable[[Task], bool], why: str) -> Task:
        """Wait for the matching task."""
        found: Task = until(lambda: self.task(fits), why, 120)
        return found


@pytest.fixture
def sight() -> Iterator[Sight]:
    """A sensor of the test's own, without a daemon."""
    seen = Sight()
    yield seen
    seen.machine.close()


def host_address() -> str:
    """Return an address of this machine that others can reach, else the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[JupyterServer]]:
    """Four servers in one runtime folder, each with another kind of access and address."""
    ways: list[tuple[tuple[str, ...], str | None]] = [
        (("--ip=0.0.0.0",), None),
        ((f"--ip={host_address()}", "--ServerApp.base_url=/user/me/"), None),
        (("--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True"), None),
        ((f"--PasswordIdentityProvider.hashed_password={passwd('pw', 'sha1')}",), "pw"),
    ]
    with ExitStack() as stack:
        started = []
        for number, (options, password) in enumerate(ways):
            server = JupyterServer(
                tmp_path / str(number), *options, runtime=tmp_path / "runtime", password=password
            )
            stack.callback(server.close)
            started.append(server)
        for server in started:
            server.wait()
        yield started
        for server in started:
            server.end()


def test_notebooks_of_four_servers_at_once_keep_their_names_through_renames(
    servers: list[JupyterServer], sight: Sight
):
    """
    The servers use a token, a base_url or no token.

    Behind a password a notebook keeps its first name.
    """
    kernels = [server.open(f"nb{number}.ipynb") for number, server in enumerate(servers)]
    for number, kernel in enumerate(kernels):
        sight.until(
            lambda task, id_=kernel.id, name=f"nb{number}.ipynb": (
                task.info.kernel_id == id_ and task.name == name
            ),
            "it has its first name",
        )

    for number, (server, kernel) in enumerate(zip(servers, kernels, strict=True)):
        server.rename(kernel, f"nb{number}.ipynb", f"renamed{number}.ipynb")

    for number, (server, kernel) in enumerate(zip(servers[:-1], kernels[:-1], strict=True)):
        path = str(server.root / f"renamed{number}.ipynb")
        sight.until(
            lambda task, id_=kernel.id, path=path: (
                task.info.kernel_id == id_ and task.info.notebook == path
            ),
            f"the rename behind {server.about['url']} is seen",
        )
    names = {task.info.kernel_id: task.name for task in sight.tasks()}
    assert [*(f"renamed{number}.ipynb" for number in range(3)), "nb3.ipynb"] == [
        names[kernel.id] for kernel in kernels
    ]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[JupyterServer]:
    """A server with default options."""
    started = JupyterServer(tmp_path)
    try:
        yield started.wait()
    finally:
        started.close()


def test_whatever_a_notebook_starts_belongs_to_it(server: JupyterServer, sight: Sight):
    """These are workers by fork, forkserver and spawn, and a program."""
    kernel = server.open("workers.ipynb")
    root, pids = kernel.pid(), {int(pid) for pid in kernel.run(WORKERS).split()}
    try:
        task = sight.until(
            lambda task: task.key.pid == root and pids <= {m.key.pid for m in task.members},
            "the workers are seen",
        )
        shelled = sight.until(
            lambda task: any("shelled.py" in info.argv for info in sight.infos(task)),
            "what was started by ! is seen",
        )
        others = [other for other in sight.tasks() if other.key.pid in pids]
    finally:
        kernel.run(END_WORKERS)
        for other in sight.tasks():
            for info in sight.infos(other):
                if "shelled.py" in info.argv:
                    os.kill(info.key.pid, 9)

    assert ("workers.ipynb", []) == (task.name, others)
    assert root == shelled.key.pid
    alone = sum(member.rss_bytes for member in task.members)
    assert task.rss_bytes < 0.8 * alone  # pages that processes share count once


def test_kernel_that_a_notebook_starts_is_no_part_of_it_and_not_called_by_its_name(
    server: JupyterServer, sight: Sight
):
    """nbclient, papermill's Python API and ipyparallel start kernels so."""
    kernel = server.open("outer.ipynb")
    root = kernel.pid()
    inner = int(
        kernel.run(
            "from jupyter_client.manager import KernelManager\n"
            "inner = KernelManager()\n"
            "inner.start_kernel()\n"
            "print(inner.provisioner.process.pid)"
        )
    )
    try:
        found = sight.until(lambda task: task.key.pid == inner, "the inner kernel is seen")
        outer = sight.until(lambda task: task.key.pid == root, "the outer kernel is seen")
    finally:
        kernel.run("inner.shutdown_kernel(now=True)")

    assert (TaskKind.KERNEL, "kernel in root") == (found.kind, found.name)
    assert "outer.ipynb" == outer.name


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["nbconvert", "--to", "notebook", "--execute", "sub/a.ipynb"], "sub/a.ipynb"),
        (["execute", "a.ipynb"], "a.ipynb"),
        (["kernel"], "kernel in programs"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_kernels_of_programs_without_a_server(
    command: list[str], expected: str, tmp_path: Path, sight: Sight
):
    """The parent's command line names the notebook; otherwise the folder does."""
    folder = tmp_path / "programs"
    cell = {
        "cell_type": "code",
        "id": "c",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
        "source": "import time; time.sleep(600)",
    }
    spec = {"kernelspec": {"name": "python3", "display_name": "p", "language": "python"}}
    for path in (folder / "a.ipynb", folder / "sub" / "a.ipynb"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**EMPTY, "cells": [cell], "metadata": spec}))
    env = {**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path), "IPYTHONDIR": str(tmp_path)}
    launcher = Path(sys.executable).with_name(f"jupyter-{command[0]}")
    process = subprocess.Popen(
        [sys.executable, str(launcher), *command[1:]],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        kernel = sight.until(
            lambda task: (
                task.info.ppid == process.pid and task.kind in (TaskKind.KERNEL, TaskKind.NOTEBOOK)
            ),
            "its kernel is seen",
        )
        launched = sight.until(lambda task: task.key.pid == process.pid, "itself is seen")
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        until(
            lambda: sight.task(lambda task: task.key == kernel.key) is None or _end(kernel), "", 120
        )

    if expected.endswith(".ipynb"):
        assert str(folder / expected) == kernel.info.notebook
    assert os.path.basename(expected) == kernel.name
    assert kernel.key not in {member.key for member in launched.members}


def _end(task: Task) -> bool:
    """End the kernel that some launchers leave behind."""
    os.kill(task.key.pid, 9)
    return False
