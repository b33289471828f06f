"""
Requests to a guard from `watchdog limit` or the daemon, and their answers.

    {"limit_bytes": 17179869184} | {"end": true} | {"unlimited": true}
        ->  {"ok": true, "text": "..."}
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from watchdog_app.base.errors import ActionError, TargetGone
from watchdog_app.client import transport

_MOST_BYTES = 4096
_MOST_CLIENTS = 16
_ANSWER_TIMEOUT_S = 10.0


def send_request(path: str, request: dict[str, Any]) -> str:
    """
    Send a request to the supervisor that listens at `path`; return its answer.

    Raises:
        TargetGone: no process listens: the guard or its supervisor has ended.
        ActionError: the supervisor refused, with its reason; or it did not answer.
    """
    try:
        with transport.connect(path, _ANSWER_TIMEOUT_S) as connection:
            if not transport.peer(connection).trusted:
                raise ActionError("A stranger listens in the place of the guard's supervisor.")
            connection.sendall(json.dumps(request).encode() + b"\n")
            found = b""
            while not found.endswith(b"\n") and (more := connection.recv(_MOST_BYTES)):
                found += more
            answer = json.loads(found or b"null")
    except (FileNotFoundError, ConnectionError) as error:
        raise TargetGone("There is no guard any more: the program has ended.") from error
    except (OSError, ValueError) as error:
        raise ActionError(f"The guard's supervisor did not answer: {error}") from error
    if not isinstance(answer, dict):
        raise ActionError("The guard's supervisor did not answer.")
    if not answer.get("ok"):
        raise ActionError(str(answer.get("text", "The guard's supervisor refused.")))
    return str(answer.get("text", ""))


class Listener:
    """
    Receives the requests to a supervisor.

    It never waits for a client: a client that connects and sends nothing delays no other.
    """

    def __init__(
        self,
        path: str,
        handle: Callable[[dict[str, Any]], str],
        watch: Callable[[int, Callable[[], None]], None],
        forget: Callable[[int], None],
    ) -> None:
        """
        Listen at `path`.

        Args:
            path: of the socket; its folder belongs to the user.
            handle: carries out a request and returns what was done; raises ActionError to refuse.
            watch, forget: of the loop that reports connections and data.

        Raises:
            OSError: the folder cannot be written.
        """
        self._socket = transport.listen(path, _MOST_CLIENTS)
        self._handle = handle
        self._watch = watch
        self._forget = forget
        self._received: dict[socket.socket, bytes] = {}  # in order of arrival
        watch(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening."""
        for connection in list(self._received):
            self._drop(connection)
        self._forget(self._socket.fileno())
        self._socket.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return
        self._received[connection] = b""
        connection.setblocking(False)
        self._watch(connection.fileno(), lambda: self._receive(connection))
        if not transport.peer(connection).trusted:
            self._drop(connection)
        elif len(self._received) > _MOST_CLIENTS:  # clients send at once: drop a silent one
            self._drop(next(iter(self._received)))

    def _receive(self, connection: socket.socket) -> None:
        try:
            more = connection.recv(_MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)
            return
        found = self._received[connection] = self._received[connection] + more
        if more and not found.endswith(b"\n") and len(found) < _MOST_BYTES:
            return
        with suppress(OSError):
            # Never waits: the answer is far smaller than the send buffer of an unused socket.
            connection.sendall(json.dumps(self._answer(found)).encode() + b"\n")
        self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        if self._received.pop(connection, None) is not None:
            self._forget(connection.fileno())
            connection.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict):
            return {"ok": False, "text": "That is no request."}
        try:
            return {"ok": True, "text": self._handle(request)}
        except ActionError as error:
            return {"ok": False, "text": str(error)}
