"""
One client as the server holds it: what came and has not been served, what goes and was not taken.
"""

from __future__ import annotations

import socket
from collections import deque

from watchdog_app.protocol import transport
from watchdog_app.protocol.framing import LineDecoder

_MOST_UNREAD_BYTES = 4 * 1024 * 1024  # waiting for one client before it is dropped


class Connection:
    """One client, agent or companion."""

    __slots__ = (
        "_out",
        "closed",
        "decoder",
        "fd",
        "greeted",
        "held_off",
        "opened_mono_s",
        "peer",
        "pending",
        "role",
        "socket",
        "topics",
    )

    def __init__(self, connection: socket.socket, peer: transport.Peer, now_mono_s: float) -> None:
        self.socket = connection
        self.fd = connection.fileno()
        self.peer = peer
        self.decoder = LineDecoder()
        self.opened_mono_s = now_mono_s
        self.greeted = False
        self.closed = False
        self.held_off = False  # nothing is read from it for now
        self.role = ""
        self.topics: frozenset[str] = frozenset()
        self.pending: deque[bytes] = deque()  # lines that came and have not had their turn
        self._out = bytearray()

    @property
    def held_bytes(self) -> int:
        """Memory that this client makes us hold."""
        return len(self._out) + self.decoder.pending_bytes

    @property
    def unread_bytes(self) -> int:
        """Sent by us and not yet taken by the client."""
        return len(self._out)

    def write(self, line: bytes) -> bool:
        """Hand over a line; False: the client must be dropped."""
        self._out += line
        return self.flush()

    def flush(self) -> bool:
        """Hand over as much as is taken now; False: the client must be dropped."""
        while self._out:
            try:
                sent = self.socket.send(self._out)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                return False
            del self._out[:sent]
        return len(self._out) <= _MOST_UNREAD_BYTES
