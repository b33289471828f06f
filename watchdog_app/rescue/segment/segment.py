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
    1  sequence: even while a snapshot is valid, odd inside a step and until the next snapshot
    2  which area is valid               the agent
    4  bytes of the reason               the agent, if there is no snapshot
    5  publish as often as possible      the watcher; 1: a limit is near, 2: it waits for a copy
    6  spend more time on publishing     the watcher, if nothing refuses a jump
    7  a watcher has the segment         the watcher; the agent clears it before an offer
    8  area 0: stamp, length, CRC-32, step
    12 bytes of the state                the agent
    13 the training is over              the agent
    16 area 1: the same
    20 number of the save request        the watcher; 0: none
    21 number of the answered request    the agent, after the other fields of the answer
    22 answer: step, bytes of the rescue, bytes of the text

The reason, as text, begins at byte 256. The text of the answer begins at byte 1280: the name of the
rescue, or, if its bytes are 0, why none was saved. The areas share the bytes from 4096 on.
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
    from collections.abc import Callable, Sequence
    from typing import Self

SEGMENT_BYTES = 4 * 1024 * 1024
MOST_BYTES = 256 * 1024 * 1024
ENVIRONMENT = "WATCHDOG_GUARD"  # the folder of the guard that `watchdog exec` made

VERSION = 6
BASE = 4096
REASON_AT, ANSWER_AT, TEXT_BYTES = 256, 1280, 1024

(VERSION_AT, SEQUENCE, WHICH, _, REASON, ASK, EAGER, TAKEN) = range(8)
AREAS = (8, 16)
STAMP, LENGTH, CRC, AT_STEP = range(4)
STATE_BYTES, OVER = 12, 13
SAVE_REQUEST, SAVE_ANSWER, ANSWER_STEP, ANSWER_BYTES, ANSWER_TEXT = range(20, 25)
NEAR, WAITS = 1, 2  # values of ASK
_MOST_REQUESTS = 1 << 32
_SLOTS = struct.Struct("<32Q")


class SegmentDamaged(WatchdogError):
    """A segment has contents that this layout does not allow. The message says which."""


class RawSnapshot:
    """A snapshot in a segment; its checksum is correct."""

    __slots__ = ("body", "sequence", "step")

    def __init__(self, sequence: int, step: int, body: bytes) -> None:
        self.sequence = sequence
        self.step = step
        self.body = body


class SaveAnswer:
    """The agent's answer to a save request. `text`: the name of the rescue, or the error."""

    __slots__ = ("bytes", "saved", "step", "text")

    def __init__(self, step: int, bytes_: int, text: str) -> None:
        self.saved = bytes_ > 0
        self.step = step
        self.bytes = bytes_
        self.text = text


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

    def ask_every_batch(self, on: bool, *, waits: bool = True) -> None:
        """
        Ask the agent to publish after every batch.

        Args:
            on: whether to ask.
            waits: the watcher waits for a copy. If not, a limit is only near: the agent leaves out
                batches that are much shorter than a publication.
        """
        self._set_slot(ASK, (WAITS if waits else NEAR) if on else 0)

    def ask_eagerly(self, on: bool) -> None:
        """Ask the agent to spend more time on publishing, because memory can jump at any time."""
        self._set_slot(EAGER, int(on))

    def request_save(self) -> int:
        """Ask the agent to save at its next boundary; return the number of this request."""
        number = self._slot(SAVE_ANSWER) % _MOST_REQUESTS + 1
        self._set_slot(SAVE_REQUEST, number)
        return number

    def cancel_save(self) -> None:
        """Withdraw the request."""
        self._set_slot(SAVE_REQUEST, 0)

    def save_answer(self, number: int) -> SaveAnswer | None:
        """The agent's answer to the request with this number; None: not answered yet."""
        slots = self._slots()
        if slots[SAVE_ANSWER] != number:
            return None
        text = self._text(ANSWER_AT, slots[ANSWER_TEXT])
        return SaveAnswer(slots[ANSWER_STEP], slots[ANSWER_BYTES], text)

    def set_taken(self, on: bool) -> None:
        """Tell the agent whether a watcher has the segment; if not, the agent offers it again."""
        self._set_slot(TAKEN, int(on))

    @property
    def is_over(self) -> bool:
        """Whether the training has ended; its process may begin another one."""
        return bool(self._slot(OVER))

    @property
    def sequence(self) -> int:
        """How often a snapshot has become valid or invalid: odd while there is no valid one."""
        return self._slot(SEQUENCE)

    @property
    def reason(self) -> str | None:
        """Why there is no snapshot, in the agent's words: untrusted."""
        return self._text(REASON_AT, self._slot(REASON)) or None

    def newest(self) -> RawSnapshot | None:
        """
        The newest complete snapshot, which may be invalid: compare its sequence with `sequence`.

        Raises:
            OSError: memory is short.
            SegmentDamaged: lengths or checksum are wrong.
        """
        slots = self._slots()
        which = slots[WHICH]
        if which > 1:
            raise SegmentDamaged(f"there is no area {which}")
        at = AREAS[which]
        stamp, length, crc, step = slots[at : at + 4]
        if stamp == 0:
            return None
        if not 0 < length <= self._area or stamp % 2:
            raise SegmentDamaged(f"a snapshot of {length} bytes, stamped {stamp}")
        body = os.pread(self.fd, length, BASE + which * self._area)
        if zlib.crc32(body) != crc:
            raise SegmentDamaged("the snapshot does not match its checksum")
        return RawSnapshot(stamp, step, body)

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
        """Bytes that a save would write; 0: unknown."""
        return self._slot(STATE_BYTES)

    def _slots(self) -> tuple[int, ...]:
        return _SLOTS.unpack(os.pread(self.fd, _SLOTS.size, 0))

    def _slot(self, number: int) -> int:
        return self._slots()[number]

    def _text(self, at: int, length: int) -> str:
        if not 0 < length <= TEXT_BYTES:
            return ""
        return os.pread(self.fd, length, at).decode("utf-8", "replace")

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
        self.slots = self._bytes[:BASE].cast("Q")
        self._area = _area_bytes(size_bytes)
        self.slots[VERSION_AT] = VERSION
        self.slots[SEQUENCE] = 1  # odd, and no snapshot has it

    def close(self) -> None:
        """Unmap and close the segment; may be called twice. A watcher keeps it."""
        self.slots.release()
        self._bytes.release()
        self._memory.close()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def sequence(self) -> int:
        """See `SegmentReader.sequence`."""
        return int(self.slots[SEQUENCE])

    def answer_save(self, number: int, step: int, bytes_: int, text: str) -> None:
        """
        Answer a save request.

        Args:
            number: of the request.
            step: of the rescue.
            bytes_: of the rescue; 0: none was saved.
            text: the name of the rescue, or why none was saved.
        """
        slots = self.slots
        slots[ANSWER_STEP], slots[ANSWER_BYTES] = max(0, step), bytes_
        slots[ANSWER_TEXT] = self._write_text(ANSWER_AT, text)
        slots[SAVE_ANSWER] = number

    @property
    def is_taken(self) -> bool:
        """Whether a watcher has taken the last offer."""
        return bool(self.slots[TAKEN])

    def begin_offer(self) -> None:
        """Call this before an offer, so that `is_taken` is about that one."""
        self.slots[TAKEN] = 0

    def end(self) -> None:
        """Mark that the training is over, so that a watcher drops the segment."""
        self.step_begins()
        self.set_reason("its training is over")
        self.slots[OVER] = 1

    def step_begins(self) -> None:
        """Mark the start of a large change: until the next boundary no snapshot is valid."""
        slots = self.slots
        slots[SEQUENCE] |= 1

    def set_state_bytes(self, bytes_: int) -> None:
        """Set how many bytes a save would write."""
        self.slots[STATE_BYTES] = bytes_

    def publish(self, step: int, length: int, write: Callable[[memoryview], int]) -> bool:
        """
        Mark a boundary with a snapshot.

        Args:
            step: complete steps.
            length: of the snapshot.
            write: fills a view of that length and returns its CRC-32.

        Returns:
            False if the snapshot is too long; then none is valid.
        """
        slots = self.slots
        slots[SEQUENCE] |= 1
        if length > self._area:
            return False
        which = 1 - (slots[WHICH] & 1)
        at = AREAS[which]
        slots[at] = 0
        begin = BASE + which * self._area
        with self._bytes[begin : begin + length] as view:
            crc = write(view)
        stamp = slots[SEQUENCE] + 1
        slots[at + LENGTH], slots[at + CRC] = length, crc
        slots[at + AT_STEP] = max(0, step)
        slots[at] = stamp
        slots[WHICH] = which
        slots[SEQUENCE] = stamp
        return True

    def set_reason(self, why: str | None) -> None:
        """Set why there is no snapshot; None clears it."""
        self.slots[REASON] = self._write_text(REASON_AT, why or "")

    def _write_text(self, at: int, text: str) -> int:
        """Write the text, cut if it is too long; return its length in bytes."""
        encoded = text.encode("utf-8", "replace")[:TEXT_BYTES]
        self._bytes[at : at + len(encoded)] = encoded
        return len(encoded)


def open_request(slots: Sequence[int]) -> int:
    """The number of the watcher's save request; 0: none, or it is answered."""
    number = slots[SAVE_REQUEST]
    return 0 if number == slots[SAVE_ANSWER] else number


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
