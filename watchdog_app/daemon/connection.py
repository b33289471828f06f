"""
One client as the server holds it: what came and has not been served, what goes and was not taken.
"""

from __future__ import annotations

import socket
import weakref
from collections import deque
from typing import TYPE_CHECKING

from watchdog_app.protocol import transport
from watchdog_app.protocol.framing import LineDecoder

if TYPE_CHECKING:
    from watchdog_app.daemon.reply import Reply

_MOST_UNREAD_BYTES = 4 * 1024 * 1024  # waiting for one client before it is dropped
# Requests that a client may send at once, and a second for ever. An agent sends at most four.
_BURST = 2000.0
_RATE_PER_S = 200.0
_MOST_LATE = 8  # requests that are answered later; a person asks one at a time
_LINE_COST_BYTES = 64  # of a line that waits: the object and its place, beside what it holds


# Why nothing is read from a client for now; nothing: it is read as soon as something comes.
TURN = "turn"  # it is in the queue of those that are served one after the other
REST = "rest"  # it asked more than it may
ANSWER = "answer"  # as many of its requests as may be wait for their answers


class Connection:
    """
    One client, agent or companion.

    `held` says why nothing is read from it for now, "" where it is: see `TURN` and the others.
    """

    __slots__ = (
        "_allowance",
        "_allowed_mono_s",
        "_late",
        "_out",
        "_pending_bytes",
        "closed",
        "decoder",
        "fd",
        "greeted",
        "held",
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
        self.held = ""
        self.role = ""
        self.topics: frozenset[str] = frozenset()
        self.pending: deque[bytes] = deque()  # lines that came and have not had their turn
        self._pending_bytes = 0
        self._late: list[weakref.ref[Reply]] = []  # some of them may be answered by now
        self._allowance = _BURST
        self._allowed_mono_s = now_mono_s
        self._out = bytearray()

    def take_in(self, lines: list[bytes], blank: int = 0) -> None:
        """Lines that have come and wait for their turn, and how many blank ones came with them."""
        self.pending.extend(lines)
        if blank:  # each counts as a request, down to a debt of some seconds
            self._allowance = max(self._allowance - blank, min(self._allowance, -_BURST))
        self._pending_bytes += sum(map(len, lines)) + _LINE_COST_BYTES * len(lines)

    def next_line(self) -> bytes:
        """The oldest line that waits; to be asked where there is one."""
        line = self.pending.popleft()
        self._pending_bytes -= len(line) + _LINE_COST_BYTES
        self._allowance -= 1.0
        return line

    def rest_s(self, now_mono_s: float) -> float:
        """Seconds until it may ask for something again; 0: now."""
        gained = (now_mono_s - self._allowed_mono_s) * _RATE_PER_S
        self._allowance = min(_BURST, self._allowance + gained)
        self._allowed_mono_s = now_mono_s
        return 0.0 if self._allowance >= 1.0 else (1.0 - self._allowance) / _RATE_PER_S

    def owe(self, reply: Reply) -> None:
        """A request is answered later. One that is forgotten unanswered counts no more."""
        self._late.append(weakref.ref(reply))

    @property
    def owed_much(self) -> bool:
        """It waits for as many answers as it may."""
        if len(self._late) < _MOST_LATE:
            return False
        self._late = [each for each in self._late if (reply := each()) and reply.wanted]
        return len(self._late) >= _MOST_LATE

    @property
    def held_bytes(self) -> int:
        """Memory that this client makes us hold."""
        return len(self._out) + self._pending_bytes + self.decoder.pending_bytes

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
