"""
The blocking client of the command line, the tray and the agents.

    with Client.connect() as daemon:
        print(daemon.call("status")["host"])

Use a client in one thread at a time. Importing this module costs no more than importing `socket`
and `json`.
"""

from __future__ import annotations

import time
from collections import deque

from watchdog_app import __version__
from watchdog_app.base import paths
from watchdog_app.base.errors import (
    NOT_FOUND,
    SEVERAL_FIT,
    DaemonFull,
    DaemonNotRunning,
    ProtocolError,
    RequestError,
    TaskNotFound,
    WatchdogError,
)
from watchdog_app.client import jsonrpc, transport
from watchdog_app.client.jsonrpc import LineDecoder, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from typing import Any, Self

    from watchdog_app.core.model.status import Status

_ANSWER_S = 5.0
_CHUNK_BYTES = 65536
_MOST_NOTIFICATIONS = 1000  # kept while a call waits for its answer; the oldest is dropped

_START = "Start it with: watchdog start"


class Client:
    """
    A connection to the daemon; open from `connect` to `close`.

    Args:
        connection: the connected socket; `close` closes it.
        timeout_s: time limit for each answer.
    """

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._socket = connection
        self._timeout_s = timeout_s
        self._decoder = LineDecoder()
        self._ready: deque[dict[str, Any]] = deque()  # received, not yet handled
        self._kept_notifications: deque[dict[str, Any]] = deque(maxlen=_MOST_NOTIFICATIONS)
        self._last_id = 0
        self.daemon_pid: int | None = None
        self.daemon_version: str | None = None

    @classmethod
    def connect(
        cls, path: str | None = None, role: str = "cli", timeout_s: float = _ANSWER_S
    ) -> Self:
        """
        A client whose hello the daemon has answered.

        Args:
            path: the socket; None: the socket of this user's daemon.
            role: "cli", "tray" or "agent".
            timeout_s: time limit for the connection and, later, for each answer.

        Raises:
            DaemonNotRunning: no process listens there.
            RequestError: the daemon speaks another version of the protocol.
            DaemonFull: the daemon runs, but accepts no more connections.
            ProtocolError: the listener belongs to another user or does not answer.
        """
        where = path or paths.socket_path()
        try:
            connection = transport.connect(where, timeout_s)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise DaemonNotRunning(f"The watchdog daemon is not running. {_START}") from error
        except PermissionError as error:
            raise ProtocolError(
                f"The socket {where} belongs to another user. Unset WATCHDOG_RUNTIME_DIR "
                "or let it name a folder of your own."
            ) from error
        except TimeoutError as error:
            raise ProtocolError(
                f"The watchdog daemon took no connection at {where} for {timeout_s:g} s; "
                "it may be stopped or overloaded. Restart it: watchdog stop; watchdog start"
            ) from error
        except OSError as error:
            raise DaemonNotRunning(
                f"The watchdog daemon cannot be reached at {where}: {error}. {_START}"
            ) from error
        try:
            _check_owner(connection, where)
            client = cls(connection, timeout_s)
            greeting = client._greet(role)
        except BaseException:
            connection.close()
            raise
        client.daemon_pid = greeting.get("pid")
        client.daemon_version = greeting.get("version")
        return client

    def call(self, method: str, /, *, reply_timeout_s: float | None = None, **params: Any) -> Any:
        """
        The result of a request. Notifications that arrive before it are kept.

        Args:
            method: a method of docs/protocol.md.
            reply_timeout_s: time limit for this answer; None: the limit given to `connect`.
            params: the parameters of the method.

        Raises:
            TaskNotFound: no task, or more than one, matches the name; see `candidates`.
            RequestError: the daemon refused; the message says why.
            DaemonNotRunning: the connection ended before the answer.
            ProtocolError: no answer within the time limit, or an invalid message.
        """
        self._last_id += 1
        wanted = self._last_id
        limit_s = self._timeout_s if reply_timeout_s is None else reply_timeout_s
        end = time.monotonic() + limit_s
        self._send(jsonrpc.request(wanted, method, params))
        while True:
            message = self._next_message(end)
            if message is None:
                raise ProtocolError(
                    f"The daemon did not answer {method} within {limit_s:g} s. "
                    "Look at what it wrote, or restart it: watchdog stop; watchdog start"
                )
            if "method" in message:
                self._kept_notifications.append(message)
            elif message.get("id") == wanted:
                if "error" in message:
                    raise _to_exception(message["error"])
                return message.get("result")
            elif message.get("id") is None and "error" in message:
                raise _ErrorWithoutId(str(_to_exception(message["error"])))
            # Another id belongs to a request whose caller no longer waits: skip it.

    def notify(self, method: str, /, **params: Any) -> None:
        """
        Send a message that gets no answer.

        Raises:
            DaemonNotRunning: the connection has ended.
        """
        self._send(jsonrpc.notification(method, params))

    def notifications(self, timeout_s: float | None) -> Iterator[dict[str, Any]]:
        """
        Iterate over the notifications, `{"method", "params"}`; end after `timeout_s` without one.

        Raises:
            DaemonNotRunning: the connection ended.
        """
        while True:
            if self._kept_notifications:
                yield self._kept_notifications.popleft()
                continue
            end = None if timeout_s is None else time.monotonic() + timeout_s
            message = self._next_message(end)
            if message is None:
                return
            if "method" in message:
                yield message

    def fileno(self) -> int:
        """File descriptor for a selector: readable when data has arrived."""
        return self._socket.fileno()

    def close(self) -> None:
        """End the connection. A second call does nothing."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _greet(self, role: str) -> Any:
        """Send hello and return its answer. A full daemon answers before it reads the hello."""
        try:
            try:
                return self.call(
                    "hello", protocol=jsonrpc.PROTOCOL_VERSION, role=role, version=__version__
                )
            except DaemonNotRunning:  # closed before our hello was sent: read its refusal
                message = self._next_message(time.monotonic())
                if message is None or "error" not in message or message.get("id") is not None:
                    raise
                raise _ErrorWithoutId(str(_to_exception(message["error"]))) from None
        except _ErrorWithoutId as error:
            raise DaemonFull(
                f"The watchdog daemon runs but does not serve this command: {error}"
            ) from error

    def _send(self, message: dict[str, Any]) -> None:
        line = encode(message)
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(line)
        except TimeoutError as error:
            raise ProtocolError(
                f"The daemon took nothing for {self._timeout_s:g} s; it may be stopped."
            ) from error
        except OSError as error:
            raise _connection_ended() from error

    def _next_message(self, end_mono_s: float | None) -> dict[str, Any] | None:
        """The next message, or None when `end_mono_s` has passed."""
        while not self._ready:
            left_s = None if end_mono_s is None else end_mono_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                # Zero would make the socket non-blocking. Read once more: data may have arrived.
                left_s = 0.0005
            try:
                self._socket.settimeout(left_s)
                data = self._socket.recv(_CHUNK_BYTES)
            except TimeoutError:
                return None
            except OSError as error:
                raise _connection_ended() from error
            if not data:
                raise _connection_ended()
            self._ready.extend(self._decoder.feed(data))
        return self._ready.popleft()


def request(method: str, /, *, wait_s: float = _ANSWER_S, **params: Any) -> Any:
    """
    The answer to one request, over a connection of its own, so that it may take long.

    Args:
        method: a method of docs/protocol.md.
        wait_s: time limit for the answer.
        params: the parameters of the method.

    Raises:
        WatchdogError: no daemon runs, or the daemon refused; the message says why.
    """
    with Client.connect(timeout_s=min(wait_s, _ANSWER_S)) as daemon:
        return daemon.call(method, reply_timeout_s=wait_s, **params)


def find_status(timeout_s: float = _ANSWER_S) -> Status | None:
    """
    Return the daemon's status; None if no daemon answers.

    Args:
        timeout_s: time limit for the connection and for the answer.
    """
    from watchdog_app.core.model.status import Status

    try:
        return Status.read(request("status", wait_s=timeout_s))
    except (WatchdogError, OSError):
        return None


def _check_owner(connection: socket.socket, where: str) -> None:
    owner = transport.peer(connection)
    if not owner.trusted:  # another user may have created the folder in /tmp first
        raise ProtocolError(
            f"The process that listens at {where} belongs to user {owner.uid}, not to you or root; "
            "nothing was said to it. Remove that folder or set WATCHDOG_RUNTIME_DIR."
        )


def _connection_ended() -> DaemonNotRunning:
    return DaemonNotRunning(f"The watchdog daemon has ended the connection. {_START}")


class _ErrorWithoutId(RequestError):
    """An error without an id: the daemon refused the connection before it read a request."""


def _to_exception(body: Any) -> RequestError:
    if not isinstance(body, dict):
        return RequestError("The daemon refused and did not say why.")
    message = str(body.get("message", "The daemon refused and did not say why."))
    code = body.get("code", jsonrpc.REFUSED)
    if code in (NOT_FOUND, SEVERAL_FIT):
        data = body.get("data")
        found = data.get("candidates", []) if isinstance(data, dict) else []
        return TaskNotFound(message, code, tuple(found))
    return RequestError(message, code if isinstance(code, int) else jsonrpc.REFUSED)
