"""
The Jupyter servers behind the watched kernels, asked in a thread of their own.

The loop never waits for a server: it hands out questions and picks up answers
at a later tick. A server is asked every 3 s at most, more seldom while it does
not answer or takes its time, and at once when a notebook is gone from where it
was: a rename is seen at the next look.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from watchdog_app.base.errors import SensorError
from watchdog_app.base.threads import Worker
from watchdog_app.machine.sensors.kernels import Witnesses
from watchdog_app.machine.sensors.notebook_files import NotebookFiles
from watchdog_app.machine.sensors.notebooks import Session

_EVERY_S = 3.0
_COST_FACTOR = 300.0  # an answer that took 20 ms is asked for again after 6 s
_SLOW_EVERY_S = 30.0  # at most, however long an answer takes
_SILENT_S = 10.0  # ... and twice as long after each further silence
_SILENT_EVERY_S = 300.0  # at most, once a server does not answer
_TIMEOUT_S = 2.0
_AGAIN_S = 60.0  # until the description of a process that had none is looked for again
_FILES_EVERY_S = 1.0
# A rename is two requests of the browser's: the file, then the session.
_HURRY_S = 5.0
_HURRIED_EVERY_S = 0.5

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
        self._worker = Worker()
        self._now_mono_s = 0.0
        self._changed = False  # by what came in at this look
        self._files = NotebookFiles()  # the thread's alone
        self._files_due_mono_s: float | None = 0.0  # None: they are being looked at
        self._hurry_until_mono_s = float("-inf")
        self.moved: Mapping[str, str] = {}  # notebooks by where they were at the look before

    def of(self, kernel_id: str | None) -> Sequence[Session]:
        """Documents of a kernel, as its server said last; empty: nothing is known."""
        for server in self._servers.values():
            if kernel_id is not None and kernel_id in server.sessions:
                return server.sessions[kernel_id]
        return ()

    def look(
        self, kernels: Iterable[Witnesses], now_mono_s: float, notebooks: Collection[str] = ()
    ) -> bool:
        """
        Pick up what came in, ask what is due; whether a name may have changed. Never waits.

        Args:
            kernels: all there are.
            now_mono_s: of this look.
            notebooks: paths of those that kernels are shown by now.
        """
        self.moved = {}
        self._changed = False
        self._now_mono_s = now_mono_s
        self._worker.collect()
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
                server.asked = True
                # Loaded with the first server: it takes memory.
                from watchdog_app.machine.sensors import jupyter_rest

                ask = partial(_ask, jupyter_rest.ask, self._is_alive, pid, server.path)
                self._worker.submit(ask, partial(self._answered, pid))
        due_mono_s = self._files_due_mono_s
        due = due_mono_s is not None and now_mono_s >= due_mono_s
        if due and notebooks and self._servers:
            self._files_due_mono_s = None
            # On a network's disk that does not answer it is this thread that waits.
            self._worker.submit(partial(self._files.follow, frozenset(notebooks)), self._moved)
        return self._changed

    def _moved(self, paths: dict[str, str | None] | None, _: Exception | None) -> None:
        """Take in which notebooks are gone from where they were, and where they are now."""
        self._files_due_mono_s = self._now_mono_s + _FILES_EVERY_S
        if paths:
            self._hurry(self._now_mono_s)
            found = {before: now for before, now in paths.items() if now is not None}
            self.moved = {**self.moved, **found}
            self._changed = self._changed or bool(found)

    def _answered(
        self, pid: int, answer: tuple[_ByKernel | None, float] | None, _: Exception | None
    ) -> None:
        server = self._servers.get(pid)
        if server is None:
            return
        sessions, took_s = answer or (None, 0.0)
        server.asked = False
        # After a refusal or a silence: 20 s, 40 s, ... What was known stays.
        server.silences = 0 if sessions is not None else server.silences + 1
        server.due_mono_s = self._now_mono_s + self._pause_s(server, took_s, self._now_mono_s)
        if sessions is not None and sessions != server.sessions:
            server.sessions = sessions
            self._changed = True

    def _pause_s(self, server: _Server, took_s: float, now_mono_s: float) -> float:
        if server.silences:
            return min(_SILENT_S * (1 << min(server.silences, 8)), _SILENT_EVERY_S)
        if now_mono_s < self._hurry_until_mono_s:
            return _HURRIED_EVERY_S
        return min(max(_EVERY_S, _COST_FACTOR * took_s), _SLOW_EVERY_S)

    def _hurry(self, now_mono_s: float) -> None:
        """A notebook is not where it was: its server may know more."""
        self._hurry_until_mono_s = now_mono_s + _HURRY_S
        for server in self._servers.values():
            if not server.silences:
                server.due_mono_s = now_mono_s

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
        self._missing[(pid, connection_file)] = now_mono_s + _AGAIN_S
        return False

    def close(self) -> None:
        """End the thread, once its question has run out; that is not waited for."""
        self._worker.close()


def _ask(
    ask: Callable[[str, float], _ByKernel], is_alive: Callable[[int], bool], pid: int, path: str
) -> tuple[_ByKernel | None, float]:
    """In the thread: what a server says, None: nothing to us; and how long that took."""
    began_s = time.monotonic()
    sessions = None
    # The file of a server that was killed stays behind, and its port is free for anyone.
    if is_alive(pid):
        with suppress(SensorError):  # the other witnesses have to do
            sessions = ask(path, _TIMEOUT_S)
    return sessions, time.monotonic() - began_s


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
