"""
The one place that knows what carries the messages: a stream to somebody whose user is known.

A platform is a module with `listen`, `connect` and `peer`; each connection is
a `socket.socket` or has its methods. `transport_unix` serves Linux and macOS.
The rest of the program never asks which.
"""

from __future__ import annotations

import os
import sys

from watchdog_app.base.errors import Unsupported

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

if sys.platform != "win32":
    from watchdog_app.client import transport_unix as _platform


class Peer:
    """Who is at the other end, as the kernel says and not as the messages say."""

    __slots__ = ("pid", "uid")

    def __init__(self, uid: int, pid: int | None) -> None:
        self.uid = uid
        self.pid = pid  # None where the system does not tell

    @property
    def trusted(self) -> bool:
        """It is this user or root: it may be believed and served."""
        return self.uid in (os.geteuid(), 0)


def listen(path: str, backlog: int = 64) -> socket.socket:
    """
    A non-blocking socket that listens at `path`, open to this user alone.

    Whatever lay at `path` is replaced: the caller holds the lock that makes it the only one.

    Raises:
        OSError: the folder cannot be written.
        Unsupported: this platform has no transport yet.
    """
    _need_platform()
    return _platform.listen(path, backlog)


def connect(path: str, timeout_s: float) -> socket.socket:
    """
    A connection to whoever listens at `path`, with `timeout_s` set on it.

    Raises:
        OSError: nobody listens (FileNotFoundError, ConnectionRefusedError), or TimeoutError.
        Unsupported: this platform has no transport yet.
    """
    _need_platform()
    return _platform.connect(path, timeout_s)


def peer(connection: socket.socket) -> Peer:
    """
    The process that was at the other end when the connection was made.

    Raises:
        OSError: the connection has ended.
        Unsupported: this platform has no transport yet.
    """
    _need_platform()
    uid, pid = _platform.credentials(connection)
    return Peer(uid, pid)


def _need_platform() -> None:
    if sys.platform == "win32":
        raise Unsupported(
            "The daemon cannot be reached on Windows itself yet. Inside WSL everything works."
        )
