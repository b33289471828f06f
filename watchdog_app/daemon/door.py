"""
The socket that clients come to, and who of them is let in: nobody of another user's, and no
more of one process than would be left for others.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

from watchdog_app.daemon.connection import Connection
from watchdog_app.daemon.instance import private_folder
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.poller import READ, Poller
from watchdog_app.protocol import messages, transport
from watchdog_app.protocol.framing import encode
from watchdog_app.sensors import descriptors

_MOST_CONNECTIONS = 500
_ACCEPT_AT_ONCE = 32
_NO_FILES = "The daemon can open no more files, so it takes no connection. Try again later."

Welcome = Callable[[socket.socket, transport.Peer], None]


class Door:
    """
    Listens at `path`.

    Args:
        inside: the connections that there are.
        welcome: is handed whoever is let in; it does not block.
    """

    def __init__(
        self,
        poller: Poller,
        path: str,
        log: Log,
        inside: Mapping[int, Connection],
        welcome: Welcome,
    ) -> None:
        self._poller = poller
        self._path = path
        self._log = log
        self._inside = inside
        self._welcome = welcome
        self._listener: socket.socket | None = None
        self._inode: tuple[int, int] | None = None
        self._spare = -1  # given up for a moment when no descriptor is left: see _turn_away
        self._deaf = False  # nobody is accepted until `keep` finds a descriptor
        self._most = _MOST_CONNECTIONS

    def open(self) -> None:
        """
        Begin to listen.

        Raises:
            OSError: the folder cannot be written.
        """
        self._most = descriptors.connections(_MOST_CONNECTIONS)
        self._listener = transport.listen(self._path)
        self._inode = _inode(self._path)
        if self._spare < 0:
            self._spare = _reserve()
        self._deaf = False
        self._poller.add(self._listener.fileno(), READ, self._accept)

    def keep(self) -> None:
        """Listen anew where somebody removed or replaced the socket's file, or none was left."""
        if self._deaf and self._listener is not None:
            with suppress(OSError):
                self._spare = _reserve()
                self._deaf = False
                self._poller.add(self._listener.fileno(), READ, self._accept)
        if self._listener is None or _inode(self._path) == self._inode:
            return
        private_folder(os.path.dirname(self._path))  # it may be another one by now
        self._log.warning("the socket was removed; it is made again", path=self._path)
        self._poller.remove(self._listener.fileno())
        self._listener.close()
        self.open()

    def close(self) -> None:
        """Listen no longer."""
        if self._listener is not None:
            self._poller.remove(self._listener.fileno())
            self._listener.close()
            self._listener = None
            if _inode(self._path) == self._inode:  # not one that the next daemon made
                with suppress(OSError):
                    os.unlink(self._path)
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _accept(self, _: int) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            if self._listener is None:
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    self._log.error("accepting a connection failed", error=error)
                    return
                self._turn_away(self._listener)
                return
            self._judge(connection)

    def _turn_away(self, listener: socket.socket) -> None:
        """No descriptor is left: a client that nobody takes wakes us again and again."""
        try:
            os.close(self._spare)
            with suppress(OSError):
                self._refuse(listener.accept()[0], _NO_FILES)
            self._spare = _reserve()
        except OSError:  # somebody else was faster
            self._spare, self._deaf = -1, True
            self._poller.remove(listener.fileno())

    def _judge(self, connection: socket.socket) -> None:
        try:
            peer = transport.peer(connection)
        except OSError:
            connection.close()
            return
        if not peer.trusted:
            connection.close()
            return
        no_room = self._no_room(peer)
        if no_room is not None:
            self._refuse(connection, no_room)
            return
        connection.setblocking(False)
        self._welcome(connection, peer)

    def _no_room(self, peer: transport.Peer) -> str | None:
        """
        Why no more connections are taken from this process, None: they are.

        It may hold as many as would be left for others, so that there is room for another one
        however many it opens.
        """
        free = self._most - len(self._inside)
        if free <= 0:
            return (
                f"The daemon serves {self._most} connections already. Close some, then try again."
            )
        if peer.pid is None:  # of another container: who is who cannot be told
            return None
        held = sum(each.peer.pid == peer.pid for each in self._inside.values())
        if held < free:
            return None
        return (
            f"Process {peer.pid} holds {held} connections already; the {free} that are left are "
            "for others. Close some, then try again."
        )

    def _refuse(self, connection: socket.socket, text: str) -> None:
        connection.setblocking(False)
        with suppress(OSError):
            connection.send(encode(messages.error(None, messages.REFUSED, text)))
        connection.close()


def _reserve() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _inode(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        found = os.lstat(path)
        return found.st_dev, found.st_ino
    return None
