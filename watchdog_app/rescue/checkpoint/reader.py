"""A rescue on disk, opened for reading."""

from __future__ import annotations

import mmap
import os
import stat
import weakref
import zlib
from collections.abc import Callable, Mapping

from watchdog_app.base.durable import open_nonblocking
from watchdog_app.base.errors import RescueDamaged, RescueError
from watchdog_app.rescue.checkpoint import format, names
from watchdog_app.rescue.checkpoint.format import MANIFEST_FILE, STATE_FILE, TensorInfo

_READ_BYTES = 4 * 1024 * 1024


class LoadedRescue:
    """
    One complete rescue: `meta`, `tensors` by name, `read(name)`.

    The tensors are in a mapping of the file, which stays valid if the rescue is pruned meanwhile.
    """

    def __init__(self, path: str) -> None:
        """
        Open the rescue in folder `path`; does not read the contents of tensors yet.

        Raises:
            RescueDamaged: a file is missing, truncated, or does not match its manifest.
            RescueError: written by a newer version, or not readable by this user.
        """
        self.path = path
        try:
            where = os.path.join(path, MANIFEST_FILE)
            with open(where, "rb", opener=open_nonblocking) as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode):
                    raise RescueDamaged(f"{MANIFEST_FILE} is no regular file")
                # `read` allocates as much as it is asked for, perhaps at a memory limit.
                manifest_data = file.read(min(found.st_size, format.MOST_BYTES))
            manifest = self._manifest = format.read_manifest(manifest_data)
            self.format = manifest.format  # version 1 does not identify its program
            self.step = manifest.step  # saved after this step
            self.created_unix_s = manifest.created_unix_s
            self.meta = manifest.meta
            self.bytes = manifest.layout.file_bytes + len(manifest_data)  # of both files
            self.tensors = self._open_state()  # in the order of the file
            ranks = manifest.meta.get(format.RANKS)
            self.ranks = ranks if isinstance(ranks, int) else 1  # processes that wrote it
        except FileNotFoundError as error:
            raise RescueDamaged(f"{os.path.basename(error.filename)} is missing") from error
        except (NotADirectoryError, IsADirectoryError) as error:
            raise RescueDamaged("it is not a folder with two files") from error
        except OSError as error:
            raise RescueError(f"it cannot be read ({error.strerror or error})") from error

    def read(self, name: str) -> memoryview:
        """
        The raw bytes of one tensor, read-only, without a copy.

        Raises:
            KeyError: there is no such tensor.
        """
        info = self.tensors[name]
        return memoryview(self._map)[info.begin : info.end]

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """
        Read every tensor and compare it with its checksum.

        Args:
            progress: called with (bytes done, bytes in all) after each tensor.

        Raises:
            RescueDamaged: one does not match; the message names it.
            RescueError: the file cannot be read, at least for now.
        """
        # Read, not mapped: a bad sector then raises an error instead of a fatal signal.
        whole = self._manifest.layout.file_bytes
        buffer = memoryview(bytearray(min(_READ_BYTES, whole)))
        try:
            for info in self.tensors.values():
                if self._checksum(info.begin, info.end, buffer) != self._manifest.crc32[info.name]:
                    raise RescueDamaged(f"tensor {info.name!r} does not match its checksum")
                if progress is not None:
                    progress(info.end, whole)
        except OSError as error:
            raise RescueError(f"{STATE_FILE} cannot be read ({error.strerror})") from error
        for rank in range(1, self.ranks):
            with LoadedPart(self, rank) as part:
                part.verify(progress)

    def close(self) -> None:
        """Close the file; views that `read` returned stay valid. May be called twice."""
        self._close()

    def __enter__(self) -> LoadedRescue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<rescue of step {self.step}, {len(self.tensors)} tensors, {self.path}>"

    def _open_state(self) -> Mapping[str, TensorInfo]:
        layout = self._manifest.layout
        self._fd = open_nonblocking(os.path.join(self.path, STATE_FILE), os.O_RDONLY)
        self._close = weakref.finalize(self, os.close, self._fd)
        size = os.fstat(self._fd).st_size
        if size != layout.file_bytes:
            raise RescueDamaged(f"{STATE_FILE} is {size} bytes long, not {layout.file_bytes}")
        # The manifest determines the header.
        if os.pread(self._fd, len(layout.header), 0) != layout.header:
            raise RescueDamaged(f"the header of {STATE_FILE} does not fit {MANIFEST_FILE}")
        self._map = mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ)
        return layout.tensors()

    def _checksum(self, begin: int, end: int, buffer: memoryview) -> int:
        checksum = 0
        os.lseek(self._fd, begin, os.SEEK_SET)
        while begin < end:
            count = os.readv(self._fd, [buffer[: end - begin]])
            if count == 0:
                raise RescueDamaged(f"{STATE_FILE} became shorter while it was read")
            checksum = zlib.crc32(buffer[:count], checksum)
            begin += count
        return checksum


class LoadedPart(LoadedRescue):
    """What one process of several resumes from: its part, and what that does not hold of rank 0."""

    def __init__(self, whole: LoadedRescue, rank: int) -> None:
        """
        Raises:
            RescueDamaged, RescueError: see `LoadedRescue`.
        """
        super().__init__(os.path.join(whole.path, names.rank_name(rank)))
        if self.step != whole.step:
            raise RescueDamaged(f"the part of rank {rank} is of another step")
        self.path = whole.path
        self.ranks = 1
        self._whole = whole

    def read(self, name: str) -> memoryview:
        """See `LoadedRescue`."""
        return super().read(name) if name in self.tensors else self._whole.read(name)
