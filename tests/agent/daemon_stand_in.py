"""A fake daemon on a real socket, with the behaviour that an agent can observe."""

from __future__ import annotations

import os
import selectors
import socket
import threading
from typing import Any

from support.waiting import until

from watchdog_app.client import jsonrpc, transport
from watchdog_app.client.jsonrpc import LineDecoder, encode


class StandIn:
    """
    Answers hello, accepts registrations and records.

    `received` holds (method, params) in order of arrival.
    """

    def __init__(
        self,
        path: str,
        *,
        refuses: bool = False,
        mute: bool = False,
        hasty: bool = False,
    ) -> None:
        self.path = path
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.places: list[Any] = []  # of each report
        self.connections: list[socket.socket] = []
        self.ended = 0  # connections that the agent closed
        self._refuses = refuses
        self._mute = mute
        self._hasty = hasty  # sends a rescue request together with the answer to a registration
        self._decoders: dict[int, LineDecoder] = {}
        self._stopping = False
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._server = transport.listen(path)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def methods(self) -> list[str]:
        return [method for method, _ in self.received]

    def last(self, method: str) -> dict[str, Any]:
        return [params for name, params in self.received if name == method][-1]

    def wait_for(self, method: str, count: int = 1, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait for the `count`th message of this method; return its parameters."""
        self.until(lambda: self.methods().count(method) >= count, timeout_s)
        return [params for name, params in self.received if name == method][count - 1]

    def until(self, condition, timeout_s: float = 60.0) -> None:
        until(condition, lambda: f"received: {self.received}", timeout_s, step_s=0.005)

    def ask(self, request: str = "r1", **params: Any) -> None:
        """Ask the agent that connected last for a rescue."""
        body = {"request": request, "reason": "memory", "deadline_s": 60, "then": "continue"}
        self.say(jsonrpc.notification("agent.checkpoint", {**body, **params}))

    def say(self, message: dict[str, Any]) -> None:
        self.connections[-1].sendall(encode(message))

    def drop_all(self) -> None:
        """Close every connection, as a killed daemon does."""
        for connection in self.connections:
            connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        self._selector.close()
        self._server.close()
        for connection in self.connections:
            connection.close()

    def _run(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(0.02):
                if key.fileobj is self._server:
                    connection, _ = self._server.accept()
                    connection.setblocking(True)
                    self._decoders[connection.fileno()] = LineDecoder()
                    self._selector.register(connection, selectors.EVENT_READ)
                    self.connections.append(connection)
                else:
                    self._read(key.fileobj)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            self.ended += 1
            self._selector.unregister(connection)
            del self._decoders[connection.fileno()]
            return
        for message in self._decoders[connection.fileno()].feed(data):
            if message["method"] == "agent.report":
                # The training's position differs from run to run.
                self.places.append(message["params"].pop("place", None))
            self.received.append((message["method"], message["params"]))
            if "id" in message and not self._mute:
                about = {"protocol": 2, "version": "0", "pid": 1}
                answer = jsonrpc.result(message["id"], about)
                if self._refuses and message["method"] == "agent.register":
                    answer = jsonrpc.error(message["id"], jsonrpc.REFUSED, "not today")
                line = encode(answer)
                if self._hasty and message["method"] == "agent.register":
                    body = {"request": "at once", "reason": "memory"}
                    line += encode(jsonrpc.notification("agent.checkpoint", body))
                connection.sendall(line)
