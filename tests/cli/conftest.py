"""A daemon made of a socket and a table of answers, and the real command run against it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest


class Refusal(Exception):
    """What a handler raises to answer with an error."""

    def __init__(self, code: int, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.body = {"code": code, "message": message} | ({"data": data} if data else {})


class FakeDaemon:
    """Speaks the protocol's framing and nothing else; every answer is laid down by the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, Any] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._connections: list[socket.socket] = []
        self._listener: socket.socket | None = None

    def start(self) -> None:
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(8)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        if self._listener is not None:
            self.path.unlink(missing_ok=True)
            # A blocked accept() is not ended by close() alone.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._connections.clear()

    def called(self, method: str) -> list[dict[str, Any]]:
        return [params for name, params in self.calls if name == method]

    def push(self, method: str, **params: Any) -> None:
        """A notification to everybody who is connected."""
        line = json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()
        for connection in self._connections:
            with suppress(OSError):
                connection.sendall(line + b"\n")

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # Closing the stream writes what is left, to a client that may be gone.
        with suppress(OSError, ValueError), connection, connection.makefile("rwb") as stream:
            for line in stream:
                message = json.loads(line)
                if "id" not in message:
                    self.calls.append((message["method"], message.get("params", {})))
                    continue
                stream.write(self._answer(message) + b"\n")
                stream.flush()

    def _answer(self, message: dict[str, Any]) -> bytes:
        method, params = message["method"], message.get("params", {})
        self.calls.append((method, params))
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            if method == "hello":
                reply["result"] = {"protocol": 1, "version": "0.1.0", "pid": os.getpid()}
            else:
                answer = self.answers[method]
                reply["result"] = answer(params) if isinstance(answer, Callable) else answer
        except KeyError:
            reply["error"] = {"code": -32601, "message": f"There is no method {method}."}
        except Refusal as refusal:
            reply["error"] = refusal.body
        return json.dumps(reply).encode()


@pytest.fixture
def own_folders(tmp_path, monkeypatch):
    """The command's folders, all under `tmp_path`, and no colours from this environment."""
    for name, folder in (("RUNTIME_DIR", "run"), ("STATE_DIR", "state"), ("CONFIG", "config.toml")):
        monkeypatch.setenv(f"WATCHDOG_{name}", str(tmp_path / folder))
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def daemon(own_folders):
    """A fake daemon that listens where the command looks."""
    fake = FakeDaemon(own_folders / "run" / "daemon.sock")
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def refusal():
    """The error that a handler of the fake daemon raises."""
    return Refusal


@pytest.fixture
def watchdog(own_folders):
    """The real command in a process of its own; the finished process, output as text."""

    def run(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **more.pop("env", {})}
        return subprocess.run(
            [sys.executable, "-m", "watchdog_app", *words],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
            check=False,
            **more,
        )

    return run
