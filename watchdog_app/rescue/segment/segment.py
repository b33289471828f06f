"""
The segment in which a training publishes itself, for a reader while the training is stopped.

It is a file in memory without a name (memfd). The agent makes it, allocates all of it, and seals
its size, so that no process can shorten it. It sends the descriptor to a watcher (daemon or guard),
see `exchange`. The agent maps the file. A watcher reads it with pread, because a mapping of another
process's file could end this one.

The agent writes a new snapshot into one of two areas. Only after that it sets the number of the
valid area, and then the sequence number. A kill or a freeze between any two instructions leaves the
old snapshot or the new one.

    slot (of 8 bytes, little-endian)     written by
    0  version of this layout            the agent
    1  sequence: odd inside a step       the agent
    2  which area is valid               the agent
    3  step at this sequence             the agent
    4  bytes of the reason               the agent, if there is no snapshot
    5  publish after every batch         the watcher
    6  spend more time on publishing     the watcher, if nothing refuses a jump
    7  a watcher has the segment         the watcher; the agent clears it before an offer
    8  area 0: stamp, length, CRC-32, step, bytes of the state
    13 the training is over              the agent
    16 area 1: the same

The reason, as text, begins at byte 256. The areas share the bytes from 4096 on.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import weakref
import zlib
from contextlib import suppress

from watchdog_app.base.errors import WatchdogError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

SEGMENT_BYTES = 4 * 1024 * 1024
MOST_BYTES = 256 * 1024 * 1024
ENVIRONMENT = "WATCHDOG_GUARD"  # the folder of the guard that `watchdog exec` made

VERSION = 5
BASE = 4096
REASON_AT, REASON_BYTES = 256, 1024

(VERSION_AT, SEQUENCE, WHICH, STEP, REASON, ASK, EAGER, TAKEN) = range(8)
AREAS = (8, 16)
OVER = 13
STAMP, LENGTH, CRC, AT_STEP, STATE = range(5)
_SLOTS = struct.Struct("<32Q")


class SegmentDamaged(WatchdogError):
    """A segment has contents that this layout does not allow. The message says which."""


class RawSnapshot:
    """A snapshot in a segment; its checksum is correct."""

    __slots__ = ("body", "sequence", "state_bytes", "step")

    def __init__(self, sequence: int, step: int, state_bytes: int, body: bytes) -> None:
        self.sequence = sequence
        self.step = step
        self.state_bytes = state_bytes
        self.body = body


class SegmentReader:
    """A segment that another process publishes to. Nothing in it is trusted."""

    def __init__(self, fd: int) -> None:
        """
        Args:
            fd: of the segment; it stays the caller's.

        Raises:
            OSError: it is no file in memory.
            SegmentDamaged: its size is not sealed, or it is not a segment of this layout.
        """
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or not _is_sealed(fd):
            raise SegmentDamaged("it is no file in memory of a fixed size")
        if not BASE < found.st_size <= MOST_BYTES or found.st_size % 4096:
            raise SegmentDamaged(f"it is {found.st_size} bytes long, which no segment is")
        self.fd = fd
        self._area = _area_bytes(found.st_size)
        if self._slot(VERSION_AT) != VERSION:
            raise SegmentDamaged("it is a segment of another version of watchdog")

    def ask_every_batch(self, on: bool) -> None:
        """Ask the agent to publish after every batch, because a limit is near."""
        self._set_slot(ASK, int(on))

    def ask_eagerly(self, on: bool) -> None:
        """Ask the agent to spend more time on publishing, because memory can jump at any time."""
        self._set_slot(EAGER, int(on))

    def set_taken(self, on: bool) -> None:
        """Tell the agent whether a watcher has the segment; if not, the agent offers it again."""
        self._set_slot(TAKEN, int(on))

    @property
    def is_over(self) -> bool:
        """Whether the training has ended; its process may begin another one."""
        return bool(self._slot(OVER))

    @property
    def sequence(self) -> int:
        """How often the training has come to a boundary or left one: odd inside a step."""
        return self._slot(SEQUENCE)

    @property
    def step(self) -> int:
        """Steps that were complete at the last boundary."""
        return self._slot(STEP)

    @property
    def reason(self) -> str | None:
        """Why there is no snapshot, in the agent's words: untrusted."""
        length = self._slot(REASON)
        if not 0 < length <= REASON_BYTES:
            return None
        return os.pread(self.fd, length, REASON_AT).decode("utf-8", "replace")

    def newest(self) -> RawSnapshot | None:
        """
        The newest complete snapshot, which may be stale: compare its sequence with `sequence`.

        Raises:
            OSError: memory is short.
            SegmentDamaged: lengths or checksum are wrong.
        """
        slots = self._slots()
        which = slots[WHICH]
        if which > 1:
            raise SegmentDamaged(f"there is no area {which}")
        at = AREAS[which]
        stamp, length, crc, step, state = slots[at : at + 5]
        if stamp == 0:
            return None
        if not 0 < length <= self._area or stamp % 2:
            raise SegmentDamaged(f"a snapshot of {length} bytes, stamped {stamp}")
        body = os.pread(self.fd, length, BASE + which * self._area)
        if zlib.crc32(body) != crc:
            raise SegmentDamaged("the snapshot does not match its checksum")
        return RawSnapshot(stamp, step, state, body)

    @property
    def fresh(self) -> bool:
        """Whether the snapshot belongs to this boundary; does not check the snapshot itself."""
        slots = self._slots()
        sequence, which = slots[SEQUENCE], slots[WHICH]
        if sequence % 2 or which > 1:
            return False
        return slots[AREAS[which] + STAMP] == sequence

    @property
    def state_bytes(self) -> int:
        """Bytes that a save would write, from the newest snapshot; 0: there is none."""
        slots = self._slots()
        at = AREAS[slots[WHICH] & 1]
        return slots[at + STATE] if slots[at + STAMP] else 0

    def _slots(self) -> tuple[int, ...]:
        return _SLOTS.unpack(os.pread(self.fd, _SLOTS.size, 0))

    def _slot(self, number: int) -> int:
        return self._slots()[number]

    def _set_slot(self, number: int, value: int) -> None:
        with suppress(OSError):  # memory is short, or the agent has sealed it against writing
            os.pwrite(self.fd, value.to_bytes(8, "little"), 8 * number)


class Segment:
    """The segment of a training in this process, mapped for writing."""

    def __init__(self, size_bytes: int = SEGMENT_BYTES) -> None:
        """
        Make a segment with all its pages allocated, so that publishing never waits for memory.

        Raises:
            OSError: memory is short, or no more files can be opened.
        """
        import fcntl  # missing on Windows, where there are no segments

        self.fd = os.memfd_create("watchdog-segment", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(self.fd, 0, size_bytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _seals())
            self._memory = mmap.mmap(self.fd, size_bytes)
        except BaseException:
            os.close(self.fd)
            raise
        self._close = weakref.finalize(self, os.close, self.fd)
        self._close.atexit = False
        self._bytes = memoryview(self._memory)
        self._slots = self._bytes[:BASE].cast("Q")
        self._area = _area_bytes(size_bytes)
        self._slots[VERSION_AT] = VERSION
        self._slots[SEQUENCE] = 1  # odd, and no snapshot has it

    def close(self) -> None:
        """Unmap and close the segment; may be called twice. A watcher keeps it."""
        self._slots.release()
        self._bytes.release()
        self._memory.close()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def sequence(self) -> int:
        """How often the training has come to a boundary or left one: odd inside a step."""
        return int(self._slots[SEQUENCE])

    @property
    def asked(self) -> bool:
        """Whether the watcher wants a snapshot after every batch."""
        return bool(self._slots[ASK])

    @property
    def eager(self) -> bool:
        """Whether the agent must spend more time on publishing, see `ask_eagerly`."""
        return bool(self._slots[EAGER])

    @property
    def is_taken(self) -> bool:
        """Whether a watcher has taken the last offer."""
        return bool(self._slots[TAKEN])

    def begin_offer(self) -> None:
        """Call this before an offer, so that `is_taken` is about that one."""
        self._slots[TAKEN] = 0

    def end(self) -> None:
        """Mark that the training is over, so that a watcher drops the segment."""
        self.step_begins()
        self.set_reason("its training is over")
        self._slots[OVER] = 1

    def step_begins(self) -> None:
        """Mark the start of a large change: until the next boundary no snapshot is valid."""
        slots = self._slots
        slots[SEQUENCE] |= 1

    def boundary(self, step: int) -> None:
        """Mark a boundary without a snapshot; an earlier snapshot becomes stale."""
        slots = self._slots
        slots[SEQUENCE] |= 1
        slots[STEP] = max(0, step)
        slots[SEQUENCE] += 1

    def publish(
        self, step: int, state_bytes: int, length: int, write: Callable[[memoryview], int]
    ) -> bool:
        """
        Mark a boundary with a snapshot.

        Args:
            step: complete steps.
            state_bytes: of the tensors in the snapshot.
            length: of the snapshot.
            write: fills a view of that length and returns its CRC-32.

        Returns:
            False if the snapshot is too long: the boundary is then one without a snapshot.
        """
        slots = self._slots
        slots[SEQUENCE] |= 1
        if length > self._area:
            self.boundary(step)
            return False
        which = 1 - (slots[WHICH] & 1)
        at = AREAS[which]
        slots[at] = 0
        begin = BASE + which * self._area
        with self._bytes[begin : begin + length] as view:
            crc = write(view)
        stamp = slots[SEQUENCE] + 1
        slots[at + LENGTH], slots[at + CRC] = length, crc
        slots[at + AT_STEP], slots[at + STATE] = max(0, step), state_bytes
        slots[at] = stamp
        slots[WHICH] = which
        slots[STEP] = max(0, step)
        slots[SEQUENCE] = stamp
        return True

    def set_reason(self, why: str | None) -> None:
        """Set why there is no snapshot; None clears it."""
        text = b"" if why is None else why.encode("utf-8", "replace")[:REASON_BYTES]
        self._bytes[REASON_AT : REASON_AT + len(text)] = text
        self._slots[REASON] = len(text)


def _area_bytes(size_bytes: int) -> int:
    """Size of each of the two areas for snapshots."""
    return (size_bytes - BASE) // 2 // 64 * 64


def _seals() -> int:
    """The seals of a segment: no process can change its size or add a seal."""
    import fcntl

    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def _is_sealed(fd: int) -> bool:
    """Whether the kernel guarantees the size of a file. Raises OSError if it is not in memory."""
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _seals() == _seals()
