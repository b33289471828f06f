"""
Those who were let in: their requests in turn, answers and notifications out, never blocking.

A client that sends nonsense is answered with an error, one that sends without
end or does not read is dropped. Who is let in is `door`, what a message means
is `methods`.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from watchdog_app.base.errors import ProtocolError
from watchdog_app.daemon.connection import ANSWER, REST, TURN, Connection
from watchdog_app.daemon.door import Door
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.poller import READ, WRITE, Poller
from watchdog_app.daemon.reply import Reply, Shorter
from watchdog_app.protocol import messages, transport
from watchdog_app.protocol.framing import BadLine, LineTooLong, TooLongToSend, decode, encode

_CHUNK_BYTES = 16384  # lines of two bytes in it take a fraction of a turn
_MOST_HELD_BYTES = 32 * 1024 * 1024  # unread answers and unfinished lines of all clients together
_CHECK_HELD_BYTES = 64 * 1024  # of one client, from which on the sum is looked at
_SKIP_UNREAD_BYTES = 64 * 1024  # a status is not added on top of this much
_TURN_S = 0.005  # for requests, before the loop looks after everything else
_REST_S = 0.05  # a client that asks faster than it may is heard again after so long at least
_GREETING_S = 10.0  # a connection that has not said hello by then is closed
_SERVE_AT_ONCE = 4


Handler = Callable[[Connection, str, dict[str, Any], Reply], None]


class Server:
    """
    Keeps the connections, behind its `door`.

    Args:
        path: of the socket.
        handler: called with each request and notification.
        on_close: called once for each connection that ended, however it ended.
        ready: whether a client's next request can be answered now; if not, at one of the next
            turns.
    """

    def __init__(
        self,
        poller: Poller,
        path: str,
        handler: Handler,
        on_close: Callable[[Connection], None],
        log: Log,
        *,
        ready: Callable[[Connection], bool],
    ) -> None:
        self._ready = ready
        self._poller = poller
        self._handler = handler
        self._on_close = on_close
        self._log = log
        self._connections: dict[int, Connection] = {}
        self._backlog: deque[Connection] = deque()
        self._resting: list[tuple[float, Connection]] = []  # until when; asked more than they may
        self._silent: deque[Connection] = deque()  # had not said hello, in the order they came
        self._spent_s = 0.0  # on requests, since the last turn
        self.door = Door(poller, path, log, self._connections, self._welcome)

    def send(
        self, connection: Connection, message: dict[str, Any], shorter: Shorter | None = None
    ) -> None:
        """A message to one client; one that does not read is dropped."""
        if connection.closed:
            return
        try:
            line = _line(message, "result", shorter)
        except (ProtocolError, TypeError, ValueError, RecursionError) as error:
            self._log.error("an answer could not be written", error=error)
            if "id" not in message:
                return
            line = encode(messages.error(message["id"], messages.REFUSED, str(error)))
        self._write(connection, line)

    def publish(
        self, topic: str, method: str, params: dict[str, Any], shorter: Shorter | None = None
    ) -> int:
        """A notification to every subscriber that has read what came before; how many."""
        subscribers = [c for c in self._connections.values() if topic in c.topics]
        if not subscribers:
            return 0
        try:
            line = _line(messages.notification(method, params), "params", shorter)
        except (ProtocolError, TypeError, ValueError, RecursionError) as error:
            self._log.error("a notification could not be written", error=error)
            return 0
        count = 0
        for connection in subscribers:
            # A slow reader of the status misses some; of notices it gets all or is dropped.
            if topic == "notices" or connection.unread_bytes < _SKIP_UNREAD_BYTES:
                self._write(connection, line)
                count += not connection.closed
        return count

    def has_subscribers(self, topic: str, role: str | None = None) -> bool:
        """Somebody wants notifications of this topic; with a role, somebody of that role."""
        return any(topic in c.topics and role in (None, c.role) for c in self._connections.values())

    def drop(self, connection: Connection) -> None:
        """End a connection."""
        if connection.closed:
            return
        connection.closed = True
        if connection.held == REST:
            self._resting = [item for item in self._resting if item[1] is not connection]
        self._connections.pop(connection.fd, None)
        self._poller.remove(connection.fd)
        connection.socket.close()
        self._on_close(connection)

    def answered(self, connection: Connection) -> None:
        """A request of this client waits no longer: what it asked next may have its turn."""
        if connection.held == ANSWER and not connection.closed and not connection.owed_much:
            self._hold(connection, TURN)

    def sweep(self, now_mono_s: float) -> None:
        """Drop whoever connected and never said hello."""
        for connection in list(self._connections.values()):
            if not connection.greeted and now_mono_s >= connection.opened_mono_s + _GREETING_S:
                self.drop(connection)
            self.answered(connection)  # what it waited for may have been forgotten

    def close(self) -> None:
        """Hand over what can be handed over now, then end everything."""
        self.door.close()
        for connection in list(self._connections.values()):
            connection.flush()
            self.drop(connection)

    @property
    def busy(self) -> bool:
        """Requests are waiting for their turn: `work` has something to do."""
        return bool(self._backlog)

    def next_deadline_mono_s(self) -> float | None:
        """When the next client that asked too much is heard again, or a silent one is dropped."""
        due = [until for until, _ in self._resting]
        while self._silent and (self._silent[0].greeted or self._silent[0].closed):
            self._silent.popleft()
        if self._silent:
            due.append(self._silent[0].opened_mono_s + _GREETING_S)
        return min(due, default=None)

    def work(self) -> None:
        """Serve clients that sent much at once, each in turn, for a short while."""
        now = time.monotonic()
        self._spent_s = 0.0
        end = now + _TURN_S
        if self._silent and now >= self._silent[0].opened_mono_s + _GREETING_S:
            self.sweep(now)
        if self._resting:
            rested = [each for until, each in self._resting if until <= now]
            self._resting = [item for item in self._resting if item[0] > now]
            for connection in rested:
                self._hold(connection, TURN)
        while self._backlog and time.monotonic() < end:
            connection = self._backlog.popleft()
            if connection.closed:
                continue
            if connection.pending:
                self._serve(connection, 1)
            else:
                self._read(connection, 1)

    def _welcome(self, connection: socket.socket, peer: transport.Peer) -> None:
        client = Connection(connection, peer, time.monotonic())
        self._connections[client.fd] = client
        self._silent.append(client)
        self._poller.add(client.fd, READ, lambda events: self._on_events(client, events))

    def _on_events(self, connection: Connection, events: int) -> None:
        if events & WRITE:
            if not connection.flush():
                self.drop(connection)
                return
            if not connection.unread_bytes:
                self._listen(connection)
        if not events & ~WRITE:
            return
        if connection.held in (REST, ANSWER):  # one that is not listened to: it has hung up
            self.drop(connection)
        elif self._spent_s >= _TURN_S:
            # Many that come at once are one turn, too. Who comes too late in it is read in the
            # next, before those who come then: the poller names them in the same order each time.
            if not connection.held:
                self._hold(connection, TURN)
        elif not connection.held:  # also an error or a hang-up: reading tells which
            began = time.monotonic()
            self._read(connection, _SERVE_AT_ONCE)
            self._spent_s += time.monotonic() - began

    def _read(self, connection: Connection, most: int) -> None:
        """What has come from a client, and some of the requests in it."""
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
            self.send(connection, messages.error(None, messages.INVALID_REQUEST, str(error)))
            self.drop(connection)
            return
        connection.take_in(lines, data.count(b"\n") - len(lines))
        if connection.held_bytes > _CHECK_HELD_BYTES and not self._affordable():
            self.drop(connection)
            return
        self._serve(connection, most)

    def _serve(self, connection: Connection, most: int) -> None:
        """Some of the requests of a client; nothing more is read from it while some are left."""
        now = time.monotonic()
        rest_s = connection.rest_s(now)
        for _ in range(0 if rest_s else most):
            if connection.closed or not connection.pending or connection.owed_much:
                break
            if not self._ready(connection):
                break
            self._receive(connection, connection.next_line())
        if connection.closed:
            return
        if rest_s:
            self._resting.append((now + max(rest_s, _REST_S), connection))
            self._hold(connection, REST)
        elif not connection.pending:
            self._hold(connection, "")
        else:
            self._hold(connection, ANSWER if connection.owed_much else TURN)

    def _hold(self, connection: Connection, why: str) -> None:
        """Read nothing from a client for now, or again where there is no reason."""
        if why == TURN:
            self._backlog.append(connection)
        changes = bool(why) != bool(connection.held)
        connection.held = why
        if changes:
            self._listen(connection)

    def _listen(self, connection: Connection) -> None:
        """Wait for what concerns a client now."""
        events = 0 if connection.held else READ
        self._poller.change(connection.fd, events | (WRITE if connection.unread_bytes else 0))

    def _affordable(self) -> bool:
        """What all clients together make us hold is within bounds."""
        return sum(c.held_bytes for c in self._connections.values()) <= _MOST_HELD_BYTES

    def _receive(self, connection: Connection, line: bytes) -> None:
        try:
            message = decode(line)
            kind = messages.kind(message)
        except BadLine as error:
            self.send(connection, messages.error(None, error.code, str(error)))
            return
        if kind == messages.RESPONSE:
            return  # the daemon asks nothing: nobody waits for it
        reply = Reply(self, connection, message.get("id"))
        self._handler(connection, message["method"], message.get("params") or {}, reply)
        if reply.wanted:
            connection.owe(reply)

    def _write(self, connection: Connection, line: bytes) -> None:
        before = connection.unread_bytes
        if not connection.write(line):
            self._log.debug("a client that does not read was dropped", pid=connection.peer.pid)
            self.drop(connection)
        elif connection.unread_bytes > _CHECK_HELD_BYTES and not self._affordable():
            self.drop(connection)
        elif connection.unread_bytes and not before:
            self._listen(connection)


def _line(message: dict[str, Any], part: str, shorter: Shorter | None) -> bytes:
    """The message as it is, or with its part made shorter where that is too long."""
    try:
        return encode(message)
    except TooLongToSend:
        if shorter is None:
            raise
        return encode({**message, part: shorter(message[part])})
