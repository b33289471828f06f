"""A daemon made of a socket and a table of answers."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.waiting import until


class Refusal(Exception):
    """An exception that an answer raises to send an error."""

    def __init__(self, code: int, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.body = {"code": code, "message": message} | ({"data": data} if data else {})


class FakeDaemon:
    """
    A server that speaks only the protocol's framing; the test sets every answer.

    An answer is a result, a function of the parameters, or an exception. With a status, the fake
    returns it with the present time, does not record `status` calls, and answers other methods with
    {}.
    """

    def __init__(self, path: Path, status: dict[str, Any] | None = None) -> None:
        self.path = path
        self.status = status
        self.answers: dict[str, Any] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.reads = 0  # of the status
        self._connections: list[socket.socket] = []
        self._subscribed: list[socket.socket] = []
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
            # close() alone does not end a blocked accept().
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._connections.clear()
        self._subscribed.clear()

    def called(self, method: str) -> list[dict[str, Any]]:
        return [params for name, params in self.calls if name == method]

    def wait_call(self, method: str) -> dict[str, Any]:
        until(lambda: self.called(method), lambda: f"{method} is called; were: {self.calls[-6:]}")
        return self.called(method)[-1]

    def read_again(self) -> None:
        """Wait until a client has read the status once more."""
        seen = self.reads
        until(lambda: self.reads > seen, "the status is read")
        time.sleep(0.2)  # the client may still be receiving it

    def push(self, method: str, **params: Any) -> None:
        """Send a notification to every client."""
        self._send(self._connections, method, params)

    def tell(self, notice: dict[str, Any]) -> None:
        """Publish a notice once a client has subscribed."""
        until(lambda: self._subscribed, "a client subscribes")
        self._send(self._subscribed, "notification", notice)

    def acknowledged(self, id_: str) -> dict[str, Any]:
        return until(
            lambda: next(
                (each for each in self.called("notification.shown") if each["id"] == id_), {}
            ),
            f"notice {id_} is acknowledged",
        )

    @staticmethod
    def _send(clients: list[socket.socket], method: str, params: dict[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()
        for connection in clients:
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
        # Closing the stream flushes it, to a client that may be gone.
        with suppress(OSError, ValueError), connection, connection.makefile("rwb") as stream:
            for line in stream:
                message = json.loads(line)
                method, params = message["method"], message.get("params", {})
                if method != "status" or self.status is None:
                    self.calls.append((method, params))
                self.reads += method == "status"
                if "id" not in message:
                    continue
                reply = {"jsonrpc": "2.0", "id": message["id"], **self._answer(method, params)}
                stream.write(json.dumps(reply).encode() + b"\n")
                stream.flush()
                if method == "subscribe" and "notifications" in params["topics"]:
                    self._subscribed.append(connection)

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "hello":
            return {"result": {"protocol": 2, "version": "0.1.0", "pid": os.getpid()}}
        if method == "status" and self.status is not None:
            return {"result": {**self.status, "time_unix_s": time.time()}}
        if method not in self.answers and self.status is None:
            return {"error": {"code": -32601, "message": f"There is no method {method}."}}
        answer = self.answers.get(method, {})
        if isinstance(answer, Exception):
            return _error(answer)
        try:
            return {"result": answer(params) if callable(answer) else answer}
        except Exception as error:
            return _error(error)


def _error(error: Exception) -> dict[str, Any]:
    return {"error": getattr(error, "body", {"code": -32000, "message": str(error)})}
