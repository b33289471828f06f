"""
Read small kernel files, attributes of /sys and the kernel log, and translate their errors.

A read from /sys asks the device: a laptop's embedded controller takes milliseconds, and a disk that
hangs never answers. Never read /sys in a thread that others wait for.

An open descriptor of a file below /proc/PID or of a memory cgroup stays bound to that process or
group. After its end the read fails, even if another one reuses the pid or the name. It also saves
the path lookup: on kernel 6.18, pread of an open /proc/PID/statm takes 1.1 us; open, read and close
together take 4.9 us.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress

from watchdog_app.base.errors import Denied, Gone, SensorError, Unsupported

# ENODEV: an open file of a memory cgroup that was removed.
_GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.ENOTDIR})
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_MAX_DIGITS = 20  # digits of 2**64; int() raises above 4300 digits
_PIECE_BYTES = 1 << 13
# Windows has neither flag. O_NONBLOCK avoids a wait for the other end of a pipe.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
KERNEL_LOG = "/dev/kmsg"
_RECORD_BYTES = 8192  # bytes per read; the kernel limits records to 8 KiB
_MOST_RECORDS = 500  # per read


def sensor_error(error: OSError, what: str) -> SensorError:
    """
    Translate an OSError to a SensorError.

    Args:
        error: error of the operating system.
        what: name of the file or device, for the message.
    """
    reason = error.strerror or str(error)
    if error.errno in _GONE:
        return Gone(f"{what} is gone: {reason}")
    if error.errno in _DENIED:
        return Denied(f"{what} may not be read by this user: {reason}")
    return Unsupported(f"{what} cannot be read here: {reason}")


def read_bytes(path: str, limit: int = 1 << 16) -> bytes:
    """
    Content of a small file, at most `limit` bytes.

    Args:
        path: path of the file.
        limit: maximum number of bytes.

    Raises:
        Gone, Denied, Unsupported: see `sensor_error`.
    """
    try:
        fd = os.open(path, _FLAGS)
        try:
            pieces, left = [], limit
            # A read from /proc returns at most one page; cmdline and environ can be longer.
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
    Content of a small file; empty if it is missing or unreadable.

    Args:
        path: path of the file.
        limit: maximum number of bytes.
    """
    try:
        return read_bytes(path, limit)
    except SensorError:
        return b""


def write_bytes(path: str, data: bytes) -> None:
    """
    Write to a kernel file with one write(2), because a buffered file may hide an error.

    Args:
        path: path of an existing file.
        data: complete content.

    Raises:
        OSError: the kernel refused.
    """
    fd = os.open(path, os.O_WRONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def read_regular(path: str) -> bytes:
    """
    Content of a regular file; devices and pipes are refused.

    Opening a device or pipe can have side effects or block forever.

    Args:
        path: untrusted path from another process.

    Raises:
        Gone, Denied, Unsupported: see `sensor_error`.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise Unsupported(f"{path} is no regular file")
    return read_bytes(path)


class KeptFile:
    """
    A small file that stays open after its first read, until `close`.

    Args:
        path: path of the file.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1

    def read(self, size: int = 8192) -> bytes:
        """
        The current content from the start of the file, at most `size` bytes.

        Raises:
            Gone, Denied, Unsupported: see `sensor_error`. The file is closed then, and the next
                read opens it again.
        """
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, _FLAGS)
            return os.pread(self._fd, size, 0)
        except OSError as error:
            self.close()
            raise sensor_error(error, self.path) from error

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Mount:
    """
    One mounted file system, a line of /proc/PID/mountinfo.

    Attributes:
        device: major and minor number, such as `8:1`.
        root: mounted folder of the file system.
        point: mount point.
        kind: type of the file system.
        options: options of the file system.

    Args:
        mounted: fields of the line before the separator.
        filesystem: fields after it.
    """

    __slots__ = ("device", "kind", "options", "point", "root")

    def __init__(self, mounted: list[bytes], filesystem: list[bytes]) -> None:
        self.device = mounted[2].decode("ascii", "replace")
        self.root = _unescape(mounted[3])
        self.point = _unescape(mounted[4])
        self.kind = os.fsdecode(filesystem[0])
        self.options = os.fsdecode(filesystem[2]).split(",")


def _unescape(field: bytes) -> str:
    """Decode a mountinfo field; spaces, tabs, newlines and backslashes are octal there."""
    for code, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        field = field.replace(code, char)
    return os.fsdecode(field)


def parse_mounts(mountinfo: bytes) -> list[Mount]:
    """The mounts in /proc/PID/mountinfo, in its order; incomplete lines are left out."""
    found = []
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(b" - ")
        mounted, filesystem = left.split(), right.split()
        if separator and len(mounted) > 4 and len(filesystem) > 2:
            found.append(Mount(mounted, filesystem))
    return found


def is_in_memory(path: str) -> bool:
    """Whether a folder is on a file system in RAM, such as tmpfs."""
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
    """Names in a folder of devices, `hwmon2` before `hwmon10`; empty if the folder is missing."""
    try:
        return sorted(os.listdir(path), key=lambda name: (len(name), name))
    except OSError:
        return []


def parse_number(data: bytes) -> int | None:
    """A field or a whole kernel file as a number; None: not a number, or more than 64 bits."""
    return int(data) if data.isdigit() and len(data) <= _MAX_DIGITS else None


def sysfs_int(path: str) -> int | None:
    """The integer in a file; None also if it is `N/A`, missing or unreadable (EIO, ENODATA)."""
    word = read_or_empty(path, 64).strip()
    return None if parse_number(word.removeprefix(b"-")) is None else int(word)


def sysfs_text(path: str) -> str | None:
    """The text of an attribute, safe to show; None: missing or empty."""
    from watchdog_app.base.text.plain import clean

    text = read_or_empty(path, 256).decode("utf-8", "replace").strip("\0\n\r\t ")
    return clean(text) if text else None


def descriptor_limit() -> int:
    """
    The maximum number of open files of this process, at most 2**20.

    `descriptor_share` divides them: clients and processes must not use up the descriptors that the
    daemon needs to read the machine.
    """
    import resource  # Unix only

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if 0 < soft < 1 << 20 else 1 << 20


# Reserved for the journal, the lock, /proc, cgroups, triggers and one temporary file.
_OWN_DESCRIPTORS = 48


def descriptor_share(divisor: int, most: int) -> int:
    """
    The number of descriptors for one purpose, at least 4.

    Args:
        divisor: the purpose gets this part of the descriptors that are not reserved.
        most: maximum number.
    """
    return max(4, min(most, (descriptor_limit() - _OWN_DESCRIPTORS) // divisor))


def parse_log_record(record: bytes) -> tuple[str, float] | None:
    """
    Message and time (s since boot) of one record of /dev/kmsg; None: not from the kernel.

    The format is `priority,sequence,microseconds,flags;message`, followed by more lines.
    """
    head, semicolon, rest = record.partition(b";")
    fields = head.split(b",")
    if not semicolon or len(fields) < 3:
        return None
    # Only facility 0 is from the kernel. Root can write records of other facilities.
    try:
        priority, mono_s = int(fields[0]), int(fields[2]) / 1e6
    except (ValueError, OverflowError):
        return None
    if priority >> 3:
        return None
    return rest.split(b"\n", 1)[0].decode("utf-8", "replace"), mono_s


class KernelLog:
    """
    Reads new records of the kernel log, starting with the oldest that the kernel has.

    /dev/kmsg returns one record per read and does not block with O_NONBLOCK. Root may read it, and
    all users if kernel.dmesg_restrict is 0. Source: kernel, Documentation/ABI/testing/dev-kmsg.

    Args:
        path: path of the device.
        most: maximum number of records per `read`; the next `read` continues.
    """

    def __init__(self, path: str = KERNEL_LOG, most: int = _MOST_RECORDS) -> None:
        self._most = most
        self._fd: int | None = None
        with suppress(OSError):  # not allowed for this user, or missing
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def readable(self) -> bool:
        """Whether this user may read the log."""
        return self._fd is not None

    def read(self) -> Iterator[bytes]:
        """Yield the new records one by one, so that a long log is never in memory at once."""
        for _ in range(self._most):
            if self._fd is None:
                return
            try:
                record = os.read(self._fd, _RECORD_BYTES)
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EINVAL, errno.EINTR):
                    continue  # overwritten before it was read, or too long
                if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK):
                    self.close()
                return
            if not record:
                return
            yield record

    def close(self) -> None:
        """Close the log; `read` then yields nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
