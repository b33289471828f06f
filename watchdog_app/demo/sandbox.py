"""
The sandbox of the demo and the examples: a folder, its own daemon, a limit, the training.

The user's daemon, journal and configuration are not touched: those of the sandbox are in its folder
and end with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec

from watchdog_app.base import children
from watchdog_app.base.errors import ActionError, DaemonNotRunning, WatchdogError
from watchdog_app.client.client import Client
from watchdog_app.guard.backends import create
from watchdog_app.guard.cgroup import Cgroup

_CONFIG = """\
# The demo lets the kernel kill, to show that nothing is lost. By default watchdog would
# pause the training at the last moment instead.
[actions]
pause = false

[notify]
desktop = false
"""


_DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train.py")
_START_TIMEOUT_S = 30.0
_TAIL_LINES = 12
_NAMES = {"tensorflow": "TensorFlow", "torch": "PyTorch"}


class AddressSpace(Cgroup):
    """A limit on the address space, if no memory group can be made; allocations fail at it."""

    kind = "address space limit"

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line below `ulimit -v`."""
        limit_kib = str(self.limit_bytes // 1024)
        return ["/bin/sh", "-c", 'ulimit -v "$0" && exec "$@"', limit_kib, *argv]

    def oom_kills(self) -> int | None:
        """Return None: the kernel kills nothing, allocations fail."""
        return None

    def close(self) -> None:
        """Do nothing: no group was made."""


class Sandbox:
    """
    Folder, environment and processes of one demo; `close` ends the processes.

    Args:
        folder: folder for the sandbox only; created if missing.
        source: training script to copy into it; default: the demo's own.
    """

    def __init__(self, folder: str, source: str = _DEMO) -> None:
        self.folder = folder
        self._source = source
        self._children: list[subprocess.Popen[bytes]] = []
        self._groups: list[Cgroup] = []
        self.env = dict(
            os.environ,
            WATCHDOG_RUNTIME_DIR=os.path.join(folder, "run"),
            WATCHDOG_STATE_DIR=os.path.join(folder, "state"),
            WATCHDOG_CONFIG=os.path.join(folder, "config.toml"),
            TF_CPP_MIN_LOG_LEVEL="3",
            # The order of additions decides the last bits, and two threads add in the order in
            # which they finish. Two runs could differ even without watchdog.
            OMP_NUM_THREADS="1",
            TF_NUM_INTRAOP_THREADS="1",
            TF_NUM_INTEROP_THREADS="2",
        )

    def prepare(self, framework: str = "tensorflow") -> None:
        """
        Create the folder and its files.

        Args:
            framework: module that the training needs.

        Raises:
            WatchdogError: the framework is not installed for this Python.
        """
        if find_spec(framework) is None:
            by_pipx = os.path.exists(os.path.join(sys.prefix, "pipx_metadata.json"))
            command = "pipx inject watchdog-app" if by_pipx else "pip install"
            raise WatchdogError(
                f"This trains a real network, and {_NAMES[framework]} is not installed for "
                f"{sys.executable}. Install it with: {command} {framework}"
            )
        os.makedirs(self.folder, exist_ok=True)
        shutil.copy(self._source, self.folder)
        with open(self.env["WATCHDOG_CONFIG"], "w") as file:
            file.write(_CONFIG)

    def start_daemon(self) -> Client:
        """
        Start a daemon for this demo only, and return a connection to it.

        Raises:
            WatchdogError: the daemon did not start; the message has the end of its log.
        """
        daemon = self._spawn(children.watchdog_argv(["run"]), "daemon.log")
        socket_path = os.path.join(self.env["WATCHDOG_RUNTIME_DIR"], "daemon.sock")
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                return Client.connect(socket_path)
            except DaemonNotRunning:
                if daemon.poll() is not None or time.monotonic() > deadline:
                    raise WatchdogError(
                        "The demo's daemon did not start. Its log ends:\n" + self.tail("daemon.log")
                    ) from None
                time.sleep(0.05)

    def train(
        self, log: str, *arguments: str, group: Cgroup | None = None, nice: int = 0
    ) -> subprocess.Popen[bytes]:
        """Start the training script, in a group or without; its output goes to a log file."""
        argv = [sys.executable, os.path.basename(self._source), *arguments]
        if group is not None:
            argv = group.command(argv)
        if nice:
            argv = ["nice", "-n", str(nice), *argv]
        return self._spawn(argv, log)

    def limit(self, limit_bytes: int, swap_bytes: int = 0) -> Cgroup:
        """Make a memory group; if impossible, return a limit on the address space."""
        name = f"watchdog-demo-{os.getpid()}-{len(self._groups)}"
        try:
            group: Cgroup = create(name, limit_bytes, swap_bytes)
        except ActionError:
            group = AddressSpace("", limit_bytes)
        self._groups.append(group)
        return group

    def tail(self, log: str) -> str:
        """Return the last lines of a log."""
        with suppress(OSError), open(os.path.join(self.folder, log), errors="replace") as file:
            return "".join(file.readlines()[-_TAIL_LINES:]).rstrip()
        return ""

    def close(self) -> None:
        """Kill every process started here and remove the groups."""
        for child in self._children:
            if child.poll() is None:
                child.kill()
                child.wait()
        for group in self._groups:
            group.close()

    def _spawn(self, argv: list[str], log: str) -> subprocess.Popen[bytes]:
        with open(os.path.join(self.folder, log), "ab") as output:
            child = subprocess.Popen(
                argv,
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal must reach only this process
            )
        self._children.append(child)
        return child
