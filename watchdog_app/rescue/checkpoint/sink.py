"""
A file that is written past the page cache.

The kernel charges the page cache to the writer's memory group: a normal write of 500 MB needs 500
MB of a limit that is used up. O_DIRECT needs none. If a file system refuses it, each window is
written back and dropped from the cache before the next one.

Sources: open(2) on O_DIRECT, sync_file_range(2), posix_fadvise(2).
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Callable
from contextlib import suppress

BLOCK_BYTES = 4096
_WINDOW_BYTES = 2 * 1024 * 1024  # maximum of dirty page cache, in addition to the current window

_RANGE_WRITE = 2
_RANGE_ALL = 7  # wait before, write, wait after

_Range = Callable[[int, int, int, int], int]
_sync_range: _Range | None = None


def load_sync_file_range() -> None:
    """Look up sync_file_range in the C library before memory gets short."""
    global _sync_range
    if _sync_range is not None or sys.platform != "linux":
        return
    import ctypes

    function = ctypes.CDLL(None, use_errno=True).sync_file_range
    function.argtypes = (ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong, ctypes.c_uint)
    function.restype = ctypes.c_int
    _sync_range = function


class Sink:
    """
    A new file, written front to back.

    `direct` says whether O_DIRECT is still in use.
    """

    def __init__(self, path: str) -> None:
        """
        Create the file.

        Raises:
            OSError: FileExistsError if it exists already.
        """
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._at = 0  # start of the next window
        self._bytes = 0  # size of the file, without padding
        self._pending: list[tuple[int, int]] = []  # windows whose write-back has begun
        self.direct = self._set_direct(True)

    def write(self, buffer: memoryview, nbytes: int) -> None:
        """
        Append the first `nbytes` of `buffer`.

        `buffer` begins on a page and its length is a multiple of 4096. Only the last write of a
        file may have an `nbytes` that is not a multiple of 4096.

        Raises:
            OSError: the disk did not take all of it.
        """
        length = nbytes
        if self.direct:
            length = -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
            buffer[nbytes:length] = bytes(length - nbytes)
        done = 0
        while done < length:
            with buffer[done:length] as rest:
                done += self._write_once(rest)
        self._bytes = self._at + nbytes
        self._start_writeback(self._at, length)
        self._at += length

    def finish(self) -> int:
        """Make the file durable and close it in any case; return its size in bytes."""
        try:
            if self._at != self._bytes:
                os.ftruncate(self._fd, self._bytes)
            os.fsync(self._fd)
            self._drop_cache(0, 0)
        finally:
            self.close()
        return self._bytes

    def close(self) -> None:
        """Close the file as it is; may be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _write_once(self, rest: memoryview) -> int:
        try:
            written = os.write(self._fd, rest)
        except OSError as error:
            # Some file systems accept the flag but refuse the write, or need bigger blocks.
            if error.errno != errno.EINVAL or not self.direct:
                raise
            self._set_direct(False)
            return 0
        if written == 0:
            raise OSError(errno.EIO, "the disk took no bytes and gave no reason")
        if written % BLOCK_BYTES and self.direct:
            self._set_direct(False)  # the rest no longer begins on a block
        return written

    def _set_direct(self, on: bool) -> bool:
        self.direct = False
        flag = getattr(os, "O_DIRECT", 0)
        if not flag:
            return False
        import fcntl

        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | flag if on else flags & ~flag)
        except OSError:
            return False
        return on

    def _start_writeback(self, begin: int, length: int) -> None:
        # Also with O_DIRECT: some file systems accept it but use the cache (ext4 data=journal,
        # btrfs with checksums). Without cached pages this costs two calls of microseconds.
        if _sync_range is None:
            return  # not Linux: the cache is charged to no group
        _sync_range(self._fd, begin, length, _RANGE_WRITE)
        self._pending.append((begin, length))
        while sum(size for _, size in self._pending[:-1]) >= _WINDOW_BYTES // 2:
            old_begin, old_length = self._pending.pop(0)
            _sync_range(self._fd, old_begin, old_length, _RANGE_ALL)
            self._drop_cache(old_begin, old_length)

    def _drop_cache(self, begin: int, length: int) -> None:
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):  # only advice
                os.posix_fadvise(self._fd, begin, length, os.POSIX_FADV_DONTNEED)


# madvise(2), Linux 4.14: a forked child gets zeros. Without it the fork of a data loader would
# share these pages. Writing or releasing them would then need new pages when memory is used up.
_MADV_WIPEONFORK = 18


def private_memory(size_bytes: int) -> mmap.mmap:
    """Zeroed, page-aligned memory of this process alone; every page is allocated."""
    # mmap's default is MAP_SHARED: parent and forked child would write into one buffer.
    memory = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with suppress(OSError):  # older kernel: a fork then shares the pages
            memory.madvise(_MADV_WIPEONFORK)
    for at in range(0, size_bytes, mmap.PAGESIZE):
        memory[at] = 0
    return memory


class Reserve:
    """Pages held in reserve, to release when memory is used up."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    @property
    def bytes(self) -> int:
        """Bytes held now."""
        return len(self._memory) if self._memory is not None else 0

    def hold(self, size_bytes: int) -> bool:
        """
        Hold at least this much; a larger reserve stays as it is.

        Returns:
            Whether that much is held. A limit on the address space may forbid it; the old reserve
            then stays.
        """
        if self.bytes < size_bytes:
            try:
                memory = private_memory(size_bytes)
            except (OSError, MemoryError):
                return False
            self.release()
            self._memory = memory
        return True

    def release(self) -> None:
        """Release all of it to the kernel."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
