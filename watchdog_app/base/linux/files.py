"""
Small kernel files read again and again, attributes of /sys, and their errors in our own words.

An attribute of /sys asks the device itself: a laptop's embedded controller takes milliseconds, a
disk that hangs takes for ever. Never ask in a thread that others wait for.

A kept descriptor of a file below /proc/PID or of a memory group belongs to
that very process or group: once it is gone the read fails, even when its pid
or its name is already used by another. It also saves the path walk: measured
on kernel 6.18, pread of a kept /proc/PID/statm costs 1.1 us, and open, read
and close together 4.9 us.
"""

from __future__ import annotations

import errno
import os
import stat

from watchdog_app.base.errors import Denied, Gone, SensorError, Unsupported

# ENODEV: a file of a memory group that was removed while we held it open.
_GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.ENOTDIR})
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_MAX_DIGITS = 19  # of a number in /sys
_PIECE_BYTES = 1 << 13
# Windows has neither flag; not to wait for a pipe's other end is worth it everywhere else.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


def sensor_error(error: OSError, what: str) -> SensorError:
    """
    The same failure as an error of ours; `what` names the thing that was read.

    Args:
        error: of the system.
        what: names the thing that was read.
    """
    reason = error.strerror or str(error)
    if error.errno in _GONE:
        return Gone(f"{what} is gone: {reason}")
    if error.errno in _DENIED:
        return Denied(f"{what} may not be read by this user: {reason}")
    return Unsupported(f"{what} cannot be read here: {reason}")


def read_bytes(path: str, limit: int = 1 << 16) -> bytes:
    """
    Content of a small file, at most `limit` bytes of it.

    Args:
        path: of a small file.
        limit: most bytes that are read.

    Raises:
        Gone, Denied, Unsupported: as `sensor_error` tells them apart.
    """
    try:
        fd = os.open(path, _FLAGS)
        try:
            pieces, left = [], limit
            # A /proc file gives at most a page a read; cmdline and environ can be longer.
            while left > 0 and (piece := os.read(fd, min(left, _PIECE_BYTES))):
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces)
        finally:
            os.close(fd)
    except OSError as error:
        raise sensor_error(error, path) from error


def read_or_empty(path: str, limit: int = 1 << 16) -> bytes:
    """
    Content of a small file; nothing where it is gone or may not be read.

    Args:
        path: of a small file.
        limit: most bytes that are read.
    """
    try:
        return read_bytes(path, limit)
    except SensorError:
        return b""


def write_bytes(path: str, data: bytes) -> None:
    """
    Write to a kernel file, in one write(2): a buffered file would tell of a refusal late or never.

    Args:
        path: of a file that is there.
        data: all of it.

    Raises:
        OSError: it is refused.
    """
    fd = os.open(path, os.O_WRONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def read_regular(path: str) -> bytes:
    """
    Content of a file whose path another process named: never a device, never a pipe.

    Opening those can do things, or wait for ever.

    Args:
        path: given by another process, so not trusted.

    Raises:
        Gone, Denied, Unsupported: as `sensor_error` tells them apart.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise sensor_error(error, path) from error
    if not stat.S_ISREG(mode):
        raise Unsupported(f"{path} is no regular file")
    return read_bytes(path)


def read_link(path: str) -> str:
    """
    Target of a symbolic link such as /proc/PID/exe.

    Raises:
        Gone, Denied, Unsupported: as `sensor_error` tells them apart.
    """
    try:
        return os.readlink(path)
    except OSError as error:
        raise sensor_error(error, path) from error


class KeptFile:
    """One small file that stays open from its first read on. Close it when it is not needed."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1

    def read(self, size: int = 8192) -> bytes:
        """
        The file's content now, from its start, at most `size` bytes.

        Raises:
            Gone, Denied, Unsupported: as `sensor_error` tells them apart; the file is closed then
            and opened anew by the next read.
        """
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, _FLAGS)
            return os.pread(self._fd, size, 0)
        except OSError as error:
            self.close()
            raise sensor_error(error, self.path) from error

    def close(self) -> None:
        """Give the descriptor back; a later read opens the file again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Mount:
    """
    One mounted file system, a line of /proc/PID/mountinfo.

    Attributes:
        device: major and minor number, as in `8:1`.
        root: the folder of it that is mounted.
        point: where it is mounted.
        kind: of the file system.
        options: of the file system.
    """

    __slots__ = ("device", "kind", "options", "point", "root")

    def __init__(self, mounted: list[bytes], filesystem: list[bytes]) -> None:
        self.device = mounted[2].decode("ascii", "replace")
        self.root = _unescape(mounted[3])
        self.point = _unescape(mounted[4])
        self.kind = os.fsdecode(filesystem[0])
        self.options = os.fsdecode(filesystem[2]).split(",")


def _unescape(field: bytes) -> str:
    """A field of mountinfo: blanks, tabs, newlines and backslashes stand as octal."""
    for code, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        field = field.replace(code, char)
    return os.fsdecode(field)


def parse_mounts(mountinfo: bytes) -> list[Mount]:
    """The mounts of /proc/PID/mountinfo, in its order; half lines are left out."""
    found = []
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(b" - ")
        mounted, filesystem = left.split(), right.split()
        if separator and len(mounted) > 4 and len(filesystem) > 2:
            found.append(Mount(mounted, filesystem))
    return found


def is_in_memory(path: str) -> bool:
    """Whether a folder lies in a file system that is memory itself, such as tmpfs."""
    try:
        device = os.stat(path).st_dev
    except OSError:
        return False
    mark = f"{os.major(device)}:{os.minor(device)}"
    for mount in parse_mounts(read_or_empty("/proc/self/mountinfo", 1 << 20)):
        if mount.device == mark:
            return mount.kind in ("tmpfs", "ramfs")
    return False


def sysfs_names(path: str) -> list[str]:
    """Names in a folder of devices, in the order of their numbers; none where it is missing."""
    try:
        return sorted(os.listdir(path), key=_number_key)
    except OSError:
        return []


def _number_key(name: str) -> tuple[str, int]:
    head = name.rstrip("0123456789")
    tail = name[len(head) :]
    return head, int(tail) if tail else -1


def parse_int(data: bytes) -> int | None:
    """The whole number that an attribute holds; None for `N/A`, nothing at all, or garbage."""
    word = data.strip()
    digits = word.removeprefix(b"-")
    return int(word) if digits.isdigit() and len(digits) <= _MAX_DIGITS else None


def sysfs_int(path: str) -> int | None:
    """The same of a file; None as well where it is missing or cannot be read (EIO, ENODATA)."""
    return parse_int(read_or_empty(path, 64))


def sysfs_text(path: str) -> str | None:
    """The text of an attribute, safe to show; None where there is none."""
    from watchdog_app.base.text.plain import clean

    text = read_or_empty(path, 256).decode("utf-8", "replace").strip("\0\n\r\t ")
    return clean(text) if text else None


def descriptor_limit() -> int:
    """
    How many files this process may have open; bounded also where the system sets no bound.

    They are shared out: a crowd of clients or of processes must not take the last one, without
    which the machine itself cannot be read.
    """
    import resource  # Unix alone

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if 0 < soft < 1 << 20 else 1 << 20


# The journal, the lock, /proc of the machine, groups, triggers, one file at a time.
_OWN_DESCRIPTORS = 48


def max_pidfds(most: int) -> int:
    """How many ends of processes may be waited for by a handle each, at most `most`; at least 1."""
    return max(1, min(most, (descriptor_limit() - _OWN_DESCRIPTORS) // 8))


def max_connections(most: int) -> int:
    """Clients that may be connected, two each for agents, at most `most`; at least 4."""
    return max(4, min(most, (descriptor_limit() - _OWN_DESCRIPTORS) // 4))
