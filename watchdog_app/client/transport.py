"""
Unix sockets whose peer the kernel identifies (Linux, macOS).

Sources: unix(7) for the length of paths and SO_PEERCRED; macOS <sys/un.h> and <sys/ucred.h> for
LOCAL_PEERCRED and LOCAL_PEERPID.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from watchdog_app.base.errors import Unsupported

_LINUX: bool = sys.platform == "linux"  # annotated: makes the type checker read both branches
_PATH_BYTES = 107 if _LINUX else 103  # size of sun_path without the final zero
_RETRY_WAIT_S = 0.01

# macOS: arguments of getsockopt(SOL_LOCAL, ...). Python does not define them.
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 0x001
_LOCAL_PEERPID = 0x002


class Peer:
    """
    The process at the other end, as the kernel identifies it. Messages may lie about it.

    Args:
        uid: effective uid of the process.
        pid: of the process; None: the system does not report it.
    """

    __slots__ = ("pid", "uid")

    def __init__(self, uid: int, pid: int | None) -> None:
        self.uid = uid
        self.pid = pid

    @property
    def trusted(self) -> bool:
        """True for this user and root: the daemon may trust and serve them."""
        return self.uid in (os.geteuid(), 0)


def listen(path: str, backlog: int = 64) -> socket.socket:
    """
    A non-blocking socket that listens at `path`, accessible to this user only.

    Replaces any file at `path`. The caller must hold the lock of the only daemon.

    Args:
        path: the file of the socket.
        backlog: maximum number of waiting connections.

    Raises:
        OSError: the folder is not writable.
        Unsupported: this platform has no transport yet.
    """
    _require_unix()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        # bind(2) creates the file with the umask, so that other users cannot connect at any moment.
        # The umask belongs to the whole process; the daemon has one thread at this point.
        old = os.umask(0o177)
        try:
            with _bindable_address(path) as address:
                server.bind(address)
        finally:
            os.umask(old)
        server.listen(backlog)
        server.setblocking(False)
    except BaseException:
        server.close()
        raise
    return server


def connect(path: str, timeout_s: float) -> socket.socket:
    """
    A connection to the process that listens at `path`.

    Args:
        path: the file of the socket.
        timeout_s: time limit for the connection; stays set on the socket.

    Raises:
        OSError: no process listens (FileNotFoundError, ConnectionRefusedError), or TimeoutError.
        Unsupported: this platform has no transport yet.
    """
    _require_unix()
    end = time.monotonic() + timeout_s
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        client.settimeout(timeout_s)
        with _bindable_address(path) as address:
            while True:
                try:
                    client.connect(address)
                    break
                except BlockingIOError:
                    # connect(2): on a Unix socket a full backlog gives EAGAIN at once, without
                    # waiting.
                    if time.monotonic() >= end:
                        raise TimeoutError("too many others are waiting to be served") from None
                    time.sleep(_RETRY_WAIT_S)
    except BaseException:
        client.close()
        raise
    return client


def peer(connection: socket.socket) -> Peer:
    """
    The process that was at the other end when the connection was made.

    Raises:
        OSError: the connection has ended.
    """
    if _LINUX:
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, uid, _ = struct.unpack("=iII", data)
        return Peer(uid, pid or None)  # 0: the process is in a pid namespace that we cannot see
    data = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76)
    uid = struct.unpack_from("=II", data)[1]
    process: int | None = None
    with suppress(OSError):
        process = struct.unpack("=i", connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, 4))[0]
    return Peer(uid, process)


def _require_unix() -> None:
    if sys.platform == "win32":
        raise Unsupported(
            "The daemon cannot be reached on Windows itself yet. Inside WSL everything works."
        )


@contextmanager
def _bindable_address(path: str) -> Iterator[str]:
    """An address that fits sun_path. A long path is reached through a descriptor of its folder."""
    if len(os.fsencode(path)) <= _PATH_BYTES or not _LINUX:
        yield path  # on other systems bind and connect report that the path is too long
        return
    folder, name = os.path.split(path)
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{name}"
    finally:
        os.close(handle)
