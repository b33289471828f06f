"""
Pass the descriptors of a training's segment and memory to a process that watches it.

The agent opens its own memory (`/proc/self/mem`), which is always allowed. It sends this descriptor
and the segment's in one datagram to a watcher, which is the daemon or a guard's supervisor. So the
watcher needs no permission to trace the training, also with Yama's ptrace_scope. The kernel names
the sender of the datagram (SCM_CREDENTIALS in unix(7)); the message is the folder for rescues.

The agent never waits. If no watcher listens or its queue is full, the agent tries again later. A
supervisor also sends all descriptors into a socket pair that its standby has inherited. So the
standby has them after the supervisor was killed.
"""

from __future__ import annotations

import array
import os
import socket
import stat
import struct
import weakref
from contextlib import suppress

from watchdog_app.base import paths
from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.linux.process import innermost_pid, start_time
from watchdog_app.rescue.segment.segment import SegmentReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SOCKET = "segments.sock"  # name of the socket in the folder of a guard or a daemon

_MOST_MESSAGES = 1000  # taken at a time
_LONGEST_MESSAGE = 8192
_CREDENTIALS = struct.Struct("=iII")  # pid, uid, gid
_ANCILLARY_BYTES = 256  # for two descriptors and the credentials


# For the agent ------------------------------------------------------------------------------


def find_watcher(path: str) -> tuple[int, int] | None:
    """
    What distinguishes the watcher that listens at `path` from a later one at the same path.

    None: there is none, or another user may have put it there, who must not get our memory.
    """
    try:
        folder, found = os.stat(os.path.dirname(path)), os.lstat(path)
    except OSError:
        return None
    if paths.is_foreign(folder) or paths.is_writable_by_others(folder):
        return None
    if not stat.S_ISSOCK(found.st_mode) or paths.is_foreign(found):
        return None
    return found.st_ino, found.st_ctime_ns


def offer(path: str, directory: str, segment_fd: int) -> bool:
    """
    Send the segment and the memory of this process to the watcher at `path`; never waits.

    Args:
        path: of the watcher's socket.
        directory: folder for rescues.
        segment_fd: of the segment.

    Returns:
        False: this process may not read its own memory (it has changed its user, or forbidden
        dumps), so only the segment was sent.

    Raises:
        OSError: no watcher listens, it has not yet read earlier offers, or no more files can be
            opened.
    """
    fds = [segment_fd]
    with suppress(PermissionError):
        fds.append(os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC))
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.setblocking(False)
            with _Address(path) as address:
                line.connect(address)
            _send(line, os.fsencode(directory), fds)
    finally:
        for fd in fds[1:]:
            os.close(fd)
    return len(fds) > 1


# For watchers -------------------------------------------------------------------------------


class Offer:
    """
    What one training has handed over; its descriptors are closed with the last reference.

    Attributes:
        pid, start_time: of the process, as the kernel names it.
        directory: folder for rescues.
        segment: what it publishes.
        memory_fd: its memory; None: it may not be read.
    """

    __slots__ = ("__weakref__", "directory", "memory_fd", "pid", "segment", "start_time")

    def __init__(self, pid: int, start_time: int, directory: str, fds: list[int]) -> None:
        """
        Args:
            pid, start_time, directory: see above.
            fds: of the segment, and of the memory if it may be read. They belong to the offer from
                now on, even if this raises.

        Raises:
            OSError, SegmentDamaged: it is no segment.
        """
        weakref.finalize(self, _close, fds).atexit = False
        self.pid = pid
        self.start_time = start_time
        self.directory = directory
        self.segment = SegmentReader(fds[0])
        self.memory_fd = fds[1] if len(fds) > 1 else None

    @property
    def fds(self) -> list[int]:
        """The descriptors, in the order of the constructor."""
        return [self.segment.fd, *([] if self.memory_fd is None else [self.memory_fd])]

    @property
    def has_ended(self) -> bool:
        """Whether the training or its process has ended."""
        return self.segment.is_over or start_time(self.pid) != self.start_time


class Registry:
    """
    The offers of running trainings.

    Attributes:
        offers: by pid.
    """

    def __init__(self, most: int) -> None:
        """
        Args:
            most: offers at a time. Each takes two descriptors; later ones are not taken, and their
                agents offer them again.
        """
        self._most = most
        self.offers: dict[int, Offer] = {}
        self._socket: socket.socket | None = None
        self._pair: tuple[socket.socket, socket.socket] | None = None

    def listen(self, path: str) -> int:
        """
        Listen for offers at `path`; return the descriptor to wait for.

        Replaces any file at `path`, whose folder must belong to this user alone.

        Raises:
            OSError: the folder cannot be written.
        """
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            made.setblocking(False)
            with suppress(FileNotFoundError):
                os.unlink(path)
            with _Address(path) as address:
                made.bind(address)
            os.chmod(path, 0o600)
        except BaseException:
            made.close()
            raise
        self._socket = made
        return made.fileno()

    def receive(self) -> list[Offer]:
        """Take the offers that have arrived; a new one of a process replaces its earlier one."""
        if self._socket is None:
            return []
        found = []
        for message, fds, sender in _messages(self._socket):
            new = _read_offer(message, fds, sender)
            if new is None:
                continue
            if new.pid not in self.offers and len(self.offers) >= self._most:
                self.remove_ended()
            if new.pid in self.offers or len(self.offers) < self._most:
                self.offers[new.pid] = new
                new.segment.set_taken(True)
                found.append(new)
        if found:
            self._send_to_successor()
        return found

    def remove(self, pid: int) -> None:
        """Forget the offer of a process; if it is a running training, it offers itself again."""
        known = self.offers.pop(pid, None)
        if known is not None:
            known.segment.set_taken(False)
            self._send_to_successor()

    def remove_ended(self) -> None:
        """Forget the offers of trainings that have ended."""
        running = {pid: each for pid, each in self.offers.items() if not each.has_ended}
        if len(running) < len(self.offers):
            self.offers = running
            self._send_to_successor()

    def successor_fd(self) -> int:
        """
        The descriptor from which another process can `inherit` when this one has ended.

        Raises:
            OSError: no more files can be opened.
        """
        if self._pair is None:
            self._pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for each in self._pair:
                each.setblocking(False)
            self._send_to_successor()
        return self._pair[1].fileno()

    def inherit(self, fd: int) -> None:
        """Take the offers that an earlier process has sent to `successor_fd`, and close `fd`."""
        with socket.socket(fileno=fd) as pair:
            pair.setblocking(False)
            for message, fds, _ in _messages(pair):
                with suppress(OSError, ValueError, WatchdogError):
                    pid, began, directory = message.split(b" ", 2)
                    new = Offer(int(pid), int(began), os.fsdecode(directory), fds)
                    if not new.has_ended:
                        self.offers[new.pid] = new
        self._send_to_successor()

    def close(self) -> None:
        """Stop listening, and forget all offers."""
        self.offers = {}
        for each in (self._socket, *(self._pair or ())):
            if each is not None:
                each.close()
        self._socket = self._pair = None

    def _send_to_successor(self) -> None:
        """Replace the offers that wait for the successor by the present ones."""
        if self._pair is None:
            return
        ours, theirs = self._pair
        for _, fds, _ in _messages(theirs):
            _close(fds)
        for each in self.offers.values():
            message = b"%d %d %s" % (each.pid, each.start_time, os.fsencode(each.directory))
            with suppress(OSError):  # too many: a running training offers itself once more
                _send(ours, message, each.fds)


def _read_offer(message: bytes, fds: list[int], sender: tuple[int, int] | None) -> Offer | None:
    """The offer in a datagram; None: it is none, or of another user."""
    pid, uid = sender or (0, -1)
    began = start_time(pid) if pid > 0 and uid in (os.geteuid(), 0) else None
    good = 0 < len(fds) <= 2 and began is not None and message.startswith(b"/")
    if not good or b"\0" in message or not all(_is_memory_of(pid, each) for each in fds[1:]):
        _close(fds)
        return None
    try:
        return Offer(pid, began or 0, os.fsdecode(message), fds)
    except (OSError, WatchdogError):
        return None


def _is_memory_of(pid: int, fd: int) -> bool:
    """
    Whether a descriptor is of the memory of this process.

    It may be of another process, or of a file whose reads hang. A container has its own /proc.
    """
    try:
        name = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return False
    return name in (f"/proc/{pid}/mem", f"/proc/{innermost_pid(pid)}/mem")


def _send(line: socket.socket, message: bytes, fds: list[int]) -> None:
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
    line.sendmsg([message], [rights], socket.MSG_DONTWAIT)


def _messages(line: socket.socket) -> Iterator[tuple[bytes, list[int], tuple[int, int] | None]]:
    """The messages that wait: contents, descriptors, and pid and uid of the sender."""
    for _ in range(_MOST_MESSAGES):
        try:
            message, ancillary, flags, _ = line.recvmsg(
                _LONGEST_MESSAGE, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except OSError:  # none is left
            return
        fds, sender = array.array("i"), None
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
            elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                sender = _CREDENTIALS.unpack(data)[:2]
        if not message and not ancillary:  # the other end of a pair is closed
            return
        if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):  # no more files can be opened
            _close(fds.tolist())
        else:
            yield message, fds.tolist(), sender


def _close(fds: list[int]) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


class _Address:
    """An address of a socket that is never too long: its folder is named by a descriptor."""

    def __init__(self, path: str) -> None:
        self._folder, self._name = os.path.split(path)
        self._fd = -1

    def __enter__(self) -> str:
        self._fd = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._fd}/{self._name}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
