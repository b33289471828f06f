"""
The Jupyter servers behind the watched kernels, asked in a thread of their own.

The loop never waits for a server: it hands out questions and picks up answers
at a later tick. A server is asked every 10 s at most, and more seldom while it
does not answer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue

from watchdog_app.errors import SensorError
from watchdog_app.sensors.jupyter_rest import ask
from watchdog_app.sensors.kernels import Witnesses
from watchdog_app.sensors.notebooks import Session

_EVERY_S = 10.0
_SILENT_EVERY_S = 300.0  # at most, once a server does not answer
_TIMEOUT_S = 2.0
# The usual 8 MB would all be resident in a daemon that locks its memory.
_STACK_BYTES = 512 * 1024

_ByKernel = dict[str, tuple[Session, ...]]


class _Server:
    """One server as we know it."""

    __slots__ = ("asked", "due_mono_s", "path", "sessions", "silences")

    def __init__(self, path: str) -> None:
        self.path = path
        self.due_mono_s = 0.0
        self.asked = False  # and the answer is still out
        self.silences = 0
        self.sessions: _ByKernel = {}


class JupyterServers:
    """Who serves which kernel, as the servers themselves said last."""

    def __init__(self, runtime_dirs: Sequence[str] | None, is_alive: Callable[[int], bool]) -> None:
        """
        Args:
            runtime_dirs: where servers describe themselves, besides the folder of a kernel's
                connection file; None: the usual ones of this user.
            is_alive: whether a pid is in use, asked before a server's token is used.
        """
        self._is_alive = is_alive
        self._dirs = tuple(usual_runtime_dirs() if runtime_dirs is None else runtime_dirs)
        self._servers: dict[int, _Server] = {}  # by pid
        self._missing: dict[tuple[int, str | None], float] = {}  # when to look for a file again
        self._questions: SimpleQueue[tuple[int, str] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[int, _ByKernel | None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def of(self, kernel_id: str | None) -> Sequence[Session]:
        """Documents of a kernel, as its server said last; empty: nothing is known."""
        for server in self._servers.values():
            if kernel_id is not None and kernel_id in server.sessions:
                return server.sessions[kernel_id]
        return ()

    def look(self, kernels: Iterable[Witnesses], now_mono_s: float) -> bool:
        """
        Pick up what came in, ask what is due; whether a name may have changed. Never waits.
        """
        changed = self._collect(now_mono_s)
        wanted = set()
        for kernel in kernels:
            for pid in kernel.server_pids:
                if pid in self._servers or self._find(pid, kernel.connection_file, now_mono_s):
                    wanted.add(pid)
                    break
        for pid in self._servers.keys() - wanted:
            del self._servers[pid]  # its kernels are gone
        for pid, server in self._servers.items():
            if not server.asked and now_mono_s >= server.due_mono_s:
                self._ask(pid, server)
        return changed

    def _collect(self, now_mono_s: float) -> bool:
        changed = False
        while True:
            try:
                pid, sessions = self._answers.get_nowait()
            except Empty:
                return changed
            server = self._servers.get(pid)
            if server is None:
                continue
            server.asked = False
            # After a refusal or a silence: 20 s, 40 s, ... What was known stays.
            server.silences = 0 if sessions is not None else server.silences + 1
            pause_s = min(_EVERY_S * 2 ** min(server.silences, 8), _SILENT_EVERY_S)
            server.due_mono_s = now_mono_s + pause_s
            if sessions is not None and sessions != server.sessions:
                server.sessions = sessions
                changed = True

    def _find(self, pid: int, connection_file: str | None, now_mono_s: float) -> bool:
        """Whether this process has described itself as a server."""
        if now_mono_s < self._missing.get((pid, connection_file), 0.0):
            return False
        own = (os.path.dirname(connection_file),) if connection_file else ()
        for folder in (*own, *self._dirs):
            for name in (f"jpserver-{pid}.json", f"nbserver-{pid}.json"):
                path = os.path.join(folder, name)
                if os.path.exists(path):
                    self._servers[pid] = _Server(path)
                    return True
        if len(self._missing) > 1000:
            self._missing.clear()  # pids of long ago
        self._missing[(pid, connection_file)] = now_mono_s + 6 * _EVERY_S
        return False

    def _ask(self, pid: int, server: _Server) -> None:
        if self._thread is None:
            before = threading.stack_size(_STACK_BYTES)
            try:
                self._thread = threading.Thread(
                    target=self._work, name="jupyter-servers", daemon=True
                )
                self._thread.start()
            finally:
                threading.stack_size(before)
        server.asked = True
        self._questions.put((pid, server.path))

    def _work(self) -> None:
        while (question := self._questions.get()) is not None:
            pid, path = question
            sessions = None
            # The file of a server that was killed stays behind, and its port is free for anyone.
            if self._is_alive(pid):
                try:
                    sessions = ask(path, _TIMEOUT_S)
                except SensorError:
                    sessions = None  # the other witnesses have to do
            self._answers.put((pid, sessions))

    def close(self) -> None:
        """End the thread; it may take until its question has run out, and nobody waits for it."""
        if self._thread is not None:
            self._questions.put(None)
            self._thread = None


def usual_runtime_dirs(environ: os._Environ[str] | dict[str, str] = os.environ) -> list[str]:
    """
    Jupyter's runtime folders of this user, whether they exist or not.

    Source: jupyter_core, paths.py.
    """
    if environ.get("JUPYTER_RUNTIME_DIR"):
        return [environ["JUPYTER_RUNTIME_DIR"]]
    home = os.path.expanduser("~")
    data = environ.get("JUPYTER_DATA_DIR")
    if data:
        return [os.path.join(data, "runtime")]
    share = environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share")
    found = [os.path.join(share, "jupyter", "runtime")]
    if environ.get("XDG_RUNTIME_DIR"):  # releases before 2020, and VS Code
        found.append(os.path.join(environ["XDG_RUNTIME_DIR"], "jupyter", "runtime"))
    found.append(os.path.join(home, "Library", "Jupyter", "runtime"))
    if environ.get("APPDATA"):
        found.append(os.path.join(environ["APPDATA"], "jupyter", "runtime"))
    return found
