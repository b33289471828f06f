"""
The daemon's socket: admission, turns, replies and subscriptions. Nothing here blocks.

Invalid messages are answered with an error. A client that sends without end, does not read, or
never greets is dropped. `methods` implements the requests.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from watchdog_app.base.errors import ProtocolError
from watchdog_app.base.linux.files import descriptor_share
from watchdog_app.base.runtime_dir import private_folder
from watchdog_app.client import jsonrpc, transport
from watchdog_app.client.jsonrpc import (
    BadLine,
    LineDecoder,
    LineTooLong,
    TooLongToSend,
    decode,
    encode,
)
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.poller import READ, WRITE, Poller

MAX_CONNECTIONS = 500
MAX_UNANSWERED = 8  # requests of one client without an answer yet
BURST = 2000.0  # requests that a client may send at once
RATE_PER_S = 200.0  # sustained limit for a client; an agent sends four a second at most
GREETING_S = 10.0  # a connection without a hello is closed after this time

_ACCEPT_AT_ONCE = 32
_ACCEPT_AGAIN_S = 1.0  # after descriptors or memory ran out
_CHUNK_BYTES = 16384  # parsing a chunk of two-byte lines takes a fraction of a turn
_TURN_S = 0.005  # for requests, before the rest of the loop
_SERVE_AT_ONCE = 4
_MIN_PAUSE_S = 0.05  # least pause of a client that exceeds the rate
_LINE_OVERHEAD_BYTES = 64  # of a waiting line: its object and its place
_MAX_UNREAD_BYTES = 4 * 1024 * 1024  # most output waiting for one client before it is dropped
_MAX_HELD_BYTES = 32 * 1024 * 1024  # unread answers and unserved lines of all clients
_CHECK_HELD_BYTES = 64 * 1024  # size of one client above which the sum is checked
_SKIP_UNREAD_BYTES = 64 * 1024  # with this much unread, no status is added

_ENCODE_ERRORS = (ProtocolError, TypeError, ValueError, RecursionError)

Fit = Callable[[dict[str, Any]], dict[str, Any]]


class Connection:
    """
    A connected client, agent or tray, with its unserved lines and unread output.

    `queued`: the daemon reads nothing from it until its next turn. It waits in the queue, or until
    `paused_until_mono_s` if it exceeded its rate.
    """

    def __init__(self, connection: socket.socket, peer: transport.Peer, now_mono_s: float) -> None:
        self.socket = connection
        self.fd = connection.fileno()
        self.peer = peer
        self.decoder = LineDecoder()
        self.opened_mono_s = now_mono_s
        self.greeted = False
        self.closed = False
        self.queued = False
        self.paused_until_mono_s: float | None = None
        self.protocol = jsonrpc.PROTOCOL_VERSION
        self.role = ""
        self.topics: frozenset[str] = frozenset()
        self.waiting: deque[bytes] = deque()
        self.unanswered = 0  # requests to be answered later
        self._waiting_bytes = 0
        self._tokens = BURST
        self._tokens_mono_s = now_mono_s
        self._out = bytearray()

    def add_lines(self, lines: list[bytes], blank: int = 0) -> None:
        """
        Queue received lines. Each blank line counts as a request, too.

        Args:
            lines: without their ends.
            blank: number of blank lines received with them.
        """
        self.waiting.extend(lines)
        if blank:  # a pause of some seconds at most
            self._tokens = max(self._tokens - blank, min(self._tokens, -BURST))
        self._waiting_bytes += sum(map(len, lines)) + _LINE_OVERHEAD_BYTES * len(lines)

    def next_line(self) -> bytes:
        """Take the oldest waiting line; there must be one."""
        line = self.waiting.popleft()
        self._waiting_bytes -= len(line) + _LINE_OVERHEAD_BYTES
        self._tokens -= 1.0
        return line

    def pause_s(self, now_mono_s: float) -> float:
        """Seconds until the client may send its next request; 0: now."""
        gained = (now_mono_s - self._tokens_mono_s) * RATE_PER_S
        self._tokens = min(BURST, self._tokens + gained)
        self._tokens_mono_s = now_mono_s
        return 0.0 if self._tokens >= 1.0 else (1.0 - self._tokens) / RATE_PER_S

    @property
    def held_bytes(self) -> int:
        """Memory in the daemon that this client takes."""
        return len(self._out) + self._waiting_bytes + self.decoder.pending_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes of output that the client has not read yet."""
        return len(self._out)

    def write(self, line: bytes) -> bool:
        """Send a line; False: the client must be dropped."""
        self._out += line
        return self.flush()

    def flush(self) -> bool:
        """Send as much as the socket takes; False: the client must be dropped."""
        while self._out:
            try:
                sent = self.socket.send(self._out)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                return False
            del self._out[:sent]
        return len(self._out) <= _MAX_UNREAD_BYTES


class Reply:
    """The answer to one request, given now or later. Only the first answer counts."""

    __slots__ = ("_id", "_server", "connection")

    def __init__(self, server: RpcServer, connection: Connection, id_: int | str | None) -> None:
        self._server = server
        self.connection = connection
        self._id = id_
        connection.unanswered += id_ is not None

    def __del__(self) -> None:
        """Release the place of a reply that was never used."""
        if self._id is not None:
            self.connection.unanswered -= 1

    @property
    def wanted(self) -> bool:
        """Whether the client still waits for it."""
        return self._id is not None and not self.connection.closed

    @property
    def client(self) -> str:
        """Role and pid of the client, for people."""
        pid = self.connection.peer.pid
        return f"the {self.connection.role}{f' (pid {pid})' if pid else ''}"

    def finish(self, value: Any, error: Exception | None) -> None:
        """Answer with the result of a job, or with its error."""
        if error is not None:
            self.error(jsonrpc.REFUSED, str(error))
        else:
            self.result(value)

    def result(self, value: Any, fit: Fit | None = None) -> None:
        """
        Answer with a result.

        Args:
            value: a value that JSON can represent.
            fit: shortens the value if it is too long for a message; None: it always fits.
        """
        if self._id is not None:
            self._send(jsonrpc.result(self._id, value), fit)

    def error(self, code: int, message: str, data: dict[str, Any] | None = None) -> None:
        """
        Answer with an error.

        Args:
            code: a JSON-RPC error code, or one of ours.
            message: the reason, for people.
            data: the reason, for programs.
        """
        if self._id is not None:
            self._send(jsonrpc.error(self._id, code, message, data))

    def _send(self, message: dict[str, Any], fit: Fit | None = None) -> None:
        self._id = None
        self.connection.unanswered -= 1
        self._server.send(self.connection, message, fit)


class Handler(Protocol):
    """Implements the requests."""

    def handle(self, method: str, params: dict[str, Any], reply: Reply) -> None:
        """
        Carry out a request or notification, now or later.

        Args:
            method: a method of docs/protocol.md.
            params: the parameters, unchecked.
            reply: answers the request.
        """

    def ready(self, connection: Connection) -> bool:
        """Whether a client's next request can be answered now; if not, the server asks again."""

    def connection_ended(self, connection: Connection) -> None:
        """Handle the end of a connection, for whatever reason. Called once."""


class RpcServer:
    """
    Listens at a path and serves clients in turn.

    Args:
        path: the file of the socket.
    """

    _handler: Handler  # set by `open`; before that there is no connection

    def __init__(self, poller: Poller, path: str, log: Log) -> None:
        self._poller = poller
        self._path = path
        self._log = log
        self._listener: socket.socket | None = None
        self._inode: tuple[int, int] | None = None
        self._accept_again_mono_s: float | None = None
        self._max_connections = MAX_CONNECTIONS
        self._connections: dict[int, Connection] = {}
        self._queue: deque[Connection] = deque()  # clients to serve in turn
        self._spent_s = 0.0  # time spent on requests since the last turn

    # Listening and admission

    def open(self, handler: Handler) -> None:
        """
        Start listening.

        Args:
            handler: handles all requests from now on.

        Raises:
            OSError: the folder is not writable.
        """
        self._handler = handler
        self._listen()

    def _listen(self) -> None:
        self._max_connections = descriptor_share(4, MAX_CONNECTIONS)
        self._listener = transport.listen(self._path)
        self._inode = _inode(self._path)
        self._accept_again_mono_s = None
        self._poller.add(self._listener.fileno(), READ, self._accept)

    def restore_socket(self) -> None:
        """Listen again if the file of the socket was removed or replaced."""
        if self._listener is None or _inode(self._path) == self._inode:
            return
        private_folder(os.path.dirname(self._path))  # the folder may have been replaced, too
        self._log.warning("the socket was removed; it is made again", path=self._path)
        self._stop_listening(self._listener)
        self._listen()

    def close(self) -> None:
        """Send as much output as possible now, then end all connections."""
        if self._listener is not None:
            self._stop_listening(self._listener)
            self._listener = None
            if _inode(self._path) == self._inode:  # else the next daemon created the file
                with suppress(OSError):
                    os.unlink(self._path)
        for connection in list(self._connections.values()):
            connection.flush()
            self.drop(connection)

    def _stop_listening(self, listener: socket.socket) -> None:
        if self._accept_again_mono_s is None:
            self._poller.remove(listener.fileno())
        listener.close()

    def _accept(self, _: int) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            if self._listener is None:
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor or memory left
                # Otherwise the waiting client would wake the loop again and again.
                self._log.debug("accepting a connection failed", error=error)
                self._poller.remove(self._listener.fileno())
                self._accept_again_mono_s = time.monotonic() + _ACCEPT_AGAIN_S
                return
            self._admit(connection)

    def _admit(self, connection: socket.socket) -> None:
        """Accept a client of this user, unless its process would leave no room for others."""
        try:
            peer = transport.peer(connection)
        except OSError:
            connection.close()
            return
        if not peer.trusted:
            connection.close()
            return
        connection.setblocking(False)
        refusal = self._refusal(peer)
        if refusal is not None:
            with suppress(OSError):
                connection.send(encode(jsonrpc.error(None, jsonrpc.REFUSED, refusal)))
            connection.close()
            return
        client = Connection(connection, peer, time.monotonic())
        self._connections[client.fd] = client
        self._poller.add(client.fd, READ, lambda events: self._on_events(client, events))

    def _refusal(self, peer: transport.Peer) -> str | None:
        """
        Why this process gets no further connection; None: it gets one.

        A process may hold as many connections as it leaves free, so there is always room for
        another process.
        """
        free = self._max_connections - len(self._connections)
        if free <= 0:
            return (
                f"The daemon serves {self._max_connections} connections already. "
                "Close some, then try again."
            )
        if peer.pid is None:  # in another container: its processes cannot be distinguished
            return None
        held = sum(each.peer.pid == peer.pid for each in self._connections.values())
        if held < free:
            return None
        return (
            f"Process {peer.pid} holds {held} connections already; the {free} that are left are "
            "for others. Close some, then try again."
        )

    # Sending

    def send(self, connection: Connection, message: dict[str, Any], fit: Fit | None = None) -> None:
        """
        Send a message to one client; a client that does not read is dropped.

        Args:
            connection: the recipient.
            message: the message.
            fit: shortens its result if it is too long.
        """
        if connection.closed:
            return
        try:
            line = _encode_fitting(message, "result", fit)
        except _ENCODE_ERRORS as error:
            self._log.error("an answer could not be written", error=error)
            if "id" not in message:
                return
            line = encode(jsonrpc.error(message["id"], jsonrpc.REFUSED, str(error)))
        self._write(connection, line)

    def publish(
        self, topic: str, method: str, params: dict[str, Any], fit: Fit | None = None
    ) -> int:
        """
        Send a notification to the subscribers of a topic; return the number of recipients.

        Args:
            topic: the topic.
            method: a method of docs/protocol.md.
            params: the parameters of the method.
            fit: shortens them if they are too long.
        """
        subscribers = [c for c in self._connections.values() if topic in c.topics]
        if not subscribers:
            return 0
        try:
            line = _encode_fitting(jsonrpc.notification(method, params), "params", fit)
        except _ENCODE_ERRORS as error:
            self._log.error("a notification could not be written", error=error)
            return 0
        count = 0
        for connection in subscribers:
            # A slow reader misses some statuses. It gets all notifications, or is dropped.
            if topic == "notifications" or connection.unread_bytes < _SKIP_UNREAD_BYTES:
                self._write(connection, line)
                count += not connection.closed
        return count

    def has_subscribers(self, topic: str, role: str | None = None) -> bool:
        """
        Whether a client, or one of this role, has subscribed to the topic.

        Args:
            topic: the topic of the subscription.
            role: the role of the client; None: any.
        """
        return any(topic in c.topics and role in (None, c.role) for c in self._connections.values())

    def drop(self, connection: Connection) -> None:
        """End a connection."""
        if connection.closed:
            return
        connection.closed = True
        self._connections.pop(connection.fd, None)
        self._poller.remove(connection.fd)
        connection.socket.close()
        self._handler.connection_ended(connection)

    def _write(self, connection: Connection, line: bytes) -> None:
        before = connection.unread_bytes
        if not connection.write(line):
            self._log.debug("a client that does not read was dropped", pid=connection.peer.pid)
            self.drop(connection)
        elif connection.unread_bytes > _CHECK_HELD_BYTES and not self._within_memory_limit():
            self.drop(connection)
        elif connection.unread_bytes and not before:
            self._update_events(connection)

    # Turns

    @property
    def busy(self) -> bool:
        """Whether clients wait for their turn, so that `serve` has something to do."""
        return bool(self._queue)

    def next_deadline_mono_s(self) -> float | None:
        """When to serve a paused client again, drop a silent one, or accept clients again."""
        clients = self._connections.values()
        due = [self._accept_again_mono_s, *(each.paused_until_mono_s for each in clients)]
        due += [each.opened_mono_s + GREETING_S for each in clients if not each.greeted]
        return min((each for each in due if each is not None), default=None)

    def serve(self) -> None:
        """Serve clients with many requests, each in turn, for a short time."""
        now = time.monotonic()
        self._spent_s = 0.0
        end = now + _TURN_S
        self._check_deadlines(now)
        while self._queue and time.monotonic() < end:
            connection = self._queue.popleft()
            if connection.closed:
                continue
            if connection.waiting:
                self._serve(connection, 1)
            else:
                self._read(connection, 1)

    def _check_deadlines(self, now: float) -> None:
        for connection in list(self._connections.values()):
            if not connection.greeted and now >= connection.opened_mono_s + GREETING_S:
                self.drop(connection)
            elif (
                connection.paused_until_mono_s is not None and now >= connection.paused_until_mono_s
            ):
                connection.paused_until_mono_s = None
                self._queue.append(connection)
        if self._accept_again_mono_s is not None and now >= self._accept_again_mono_s:
            self._accept_again_mono_s = None
            if self._listener is not None:
                self._poller.add(self._listener.fileno(), READ, self._accept)

    def _on_events(self, connection: Connection, events: int) -> None:
        if events & WRITE:
            if not connection.flush():
                self.drop(connection)
                return
            if not connection.unread_bytes:
                self._update_events(connection)
        if not events & ~WRITE:
            return
        if connection.queued:
            # not watched for input, so it has hung up
            if connection.paused_until_mono_s is not None:
                self.drop(connection)
        elif self._spent_s >= _TURN_S:
            # Many clients at once share one turn. The rest is read in the next turn, before new
            # clients: the poller reports them in the same order each time.
            self._queue.append(connection)
            self._pause_reading(connection)
        else:  # includes an error or a hang-up, which reading shows
            began = time.monotonic()
            self._read(connection, _SERVE_AT_ONCE)
            self._spent_s += time.monotonic() - began

    def _read(self, connection: Connection, most: int) -> None:
        """Read from a client, and serve at most `most` of its requests."""
        try:
            data = connection.socket.recv(_CHUNK_BYTES)
        except (BlockingIOError, InterruptedError):
            self._serve(connection, 0)
            return
        except OSError:
            data = b""
        if not data:
            self.drop(connection)
            return
        try:
            lines = connection.decoder.lines(data)
        except LineTooLong as error:
            self.send(connection, jsonrpc.error(None, jsonrpc.INVALID_REQUEST, str(error)))
            self.drop(connection)
            return
        connection.add_lines(lines, data.count(b"\n") - len(lines))
        if connection.held_bytes > _CHECK_HELD_BYTES and not self._within_memory_limit():
            self.drop(connection)
            return
        self._serve(connection, most)

    def _serve(self, connection: Connection, most: int) -> None:
        """Serve at most `most` requests; stop reading while some are left."""
        now = time.monotonic()
        pause_s = connection.pause_s(now)
        if pause_s:
            connection.paused_until_mono_s = now + max(pause_s, _MIN_PAUSE_S)
            self._pause_reading(connection)
            return
        for _ in range(most):
            if connection.closed or not connection.waiting or not self._handler.ready(connection):
                break
            self._receive(connection, connection.next_line())
        if connection.closed:
            return
        if connection.waiting:
            self._queue.append(connection)
            self._pause_reading(connection)
        elif connection.queued:
            connection.queued = False
            self._update_events(connection)

    def _receive(self, connection: Connection, line: bytes) -> None:
        try:
            message = decode(line)
            jsonrpc.check(message)
        except BadLine as error:
            self.send(connection, jsonrpc.error(None, error.code, str(error)))
            return
        if "method" not in message:
            return  # a response, although the daemon sends no requests
        reply = Reply(self, connection, message.get("id"))
        if reply.wanted and connection.unanswered > MAX_UNANSWERED:
            reply.error(
                jsonrpc.REFUSED,
                f"{MAX_UNANSWERED} of your requests wait for their answers. "
                "Read one, then ask again.",
            )
            return
        self._handler.handle(message["method"], message.get("params") or {}, reply)

    def _pause_reading(self, connection: Connection) -> None:
        """Read nothing from a client until its turn, or until its pause is over."""
        if not connection.queued:
            connection.queued = True
            self._update_events(connection)

    def _update_events(self, connection: Connection) -> None:
        """Wait for the events that concern a client now."""
        events = 0 if connection.queued else READ
        self._poller.change(connection.fd, events | (WRITE if connection.unread_bytes else 0))

    def _within_memory_limit(self) -> bool:
        """Whether all clients together take an acceptable amount of memory."""
        return sum(c.held_bytes for c in self._connections.values()) <= _MAX_HELD_BYTES


def _encode_fitting(message: dict[str, Any], part: str, fit: Fit | None) -> bytes:
    """Encode the message; if it is too long, shorten this part of it with `fit`."""
    try:
        return encode(message)
    except TooLongToSend:
        if fit is None:
            raise
        return encode({**message, part: fit(message[part])})


def _inode(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        found = os.lstat(path)
        return found.st_dev, found.st_ino
    return None
