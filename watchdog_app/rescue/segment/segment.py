"""
The segment that a training publishes itself in: read from outside while the training stands still.

A file in memory that the watchdog makes, sizes and touches, so that it is charged to nobody in
the training's group. The agent maps it and writes; whoever watches maps it too. Everything that
the agent writes is in place before it counts: there are two areas for the snapshot, and the number
of the one that is valid, and then the sequence number, are set last. A kill or a freeze between
any two instructions leaves the old snapshot or the new one.

    slot (of 8 bytes, little-endian)     written by
    0  magic                             the watcher
    1  version of this layout            the watcher
    2  bytes of the file                 the watcher
    3  pid, 4  start time                the agent
    5  sequence: odd inside a step       the agent
    6  which area is valid               the agent
    7  step at this sequence             the agent
    8  publish after every batch         the watcher
    9  pid that will read               the watcher
    10 pid that was permitted to read    the agent
    11 (not used)
    12 bytes of the reason               the agent, where there is no snapshot
    13 publish for more than is free     the watcher, where nothing refuses a jump
    16 area 0: stamp, length, CRC-32, step, bytes of the state
    24 area 1: the same

The reason, as text, begins at byte 256. The areas share what is behind byte 4096.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import zlib

from watchdog_app.base import paths
from watchdog_app.base.errors import WatchdogError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

SEGMENT_BYTES = 4 * 1024 * 1024
MOST_BYTES = 256 * 1024 * 1024
ENVIRONMENT = "WATCHDOG_GUARD"  # a folder: there a task that `watchdog exec` started finds its own

MAGIC = int.from_bytes(b"WDSEGMNT", "little")
VERSION = 4
BASE = 4096
REASON_AT, REASON_BYTES = 256, 1024
STRIDE = 64 * 4096  # of a new segment
SPARE = "spare"

(MAGIC_AT, VERSION_AT, BYTES_AT, PID, START, SEQUENCE, WHICH, STEP) = range(8)
(ASK, READER, PERMITTED, _, REASON, EAGER) = range(8, 14)
AREAS = (16, 24)
STAMP, LENGTH, CRC, AT_STEP, STATE = range(5)


class SegmentDamaged(WatchdogError):
    """What is in a segment is not what this layout allows. The message says what."""


class RawSnapshot:
    """A snapshot as it lies in a segment: whole, by its checksum."""

    __slots__ = ("body", "sequence", "state_bytes", "step")

    def __init__(self, sequence: int, step: int, state_bytes: int, body: bytes) -> None:
        self.sequence = sequence
        self.step = step
        self.state_bytes = state_bytes
        self.body = body


class Segment:
    """A segment, mapped. Whoever watches uses the first half of the methods, the agent the rest."""

    def __init__(self, path: str) -> None:
        """
        Map the segment at `path`.

        Raises:
            OSError: there is none, or it belongs to somebody else.
            SegmentDamaged: it is no segment of this layout.
        """
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or paths.is_foreign(found):
                raise PermissionError(errno.EACCES, "it is no file of this user's", path)
            if not BASE < found.st_size <= MOST_BYTES or found.st_size % 4096:
                raise SegmentDamaged(f"{path} is {found.st_size} bytes long, which no segment is")
            self._memory = mmap.mmap(fd, found.st_size)
        finally:
            os.close(fd)
        self.path = path
        self._bytes = memoryview(self._memory)
        self._slots = self._bytes[:BASE].cast("Q")
        self._area = (found.st_size - BASE) // 2 // 64 * 64
        slots = self._slots
        if slots[MAGIC_AT] != MAGIC or slots[VERSION_AT] != VERSION:
            self.close()
            raise SegmentDamaged(f"{path} is no segment, or one of another version of watchdog")

    def close(self) -> None:
        """Let go of the mapping; may be called twice."""
        self._slots.release()
        self._bytes.release()
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # For whoever watches. --------------------------------------------------------------

    def ask_every_batch(self, on: bool) -> None:
        """A limit is near: publish after every batch, not only as often as is free."""
        self._slots[ASK] = int(on)

    def ask_eagerly(self, on: bool) -> None:
        """A jump can come at any time: snapshots are worth more than is free."""
        self._slots[EAGER] = int(on)

    def permit(self, pid: int) -> None:
        """Ask the agent to allow process `pid`, and its children, to read the training's memory."""
        self._slots[READER] = pid

    @property
    def permitted(self) -> int | None:
        """The process that the agent has permitted, None before it has."""
        return self._slots[PERMITTED] or None

    @property
    def owner(self) -> tuple[int, int] | None:
        """pid and start time of the agent that has mapped it; None before one has."""
        return (self._slots[PID], self._slots[START]) if self._slots[PID] else None

    @property
    def sequence(self) -> int:
        """How often the training has come to a boundary or left one: odd inside a step."""
        return int(self._slots[SEQUENCE])

    @property
    def step(self) -> int:
        """Steps that were complete at the last boundary."""
        return int(self._slots[STEP])

    @property
    def reason(self) -> str | None:
        """Why there is no snapshot, in the agent's words: untrusted."""
        length = self._slots[REASON]
        if not 0 < length <= REASON_BYTES:
            return None
        return bytes(self._bytes[REASON_AT : REASON_AT + length]).decode("utf-8", "replace")

    def newest(self) -> RawSnapshot | None:
        """
        The newest whole snapshot, which may be stale: compare its sequence with `sequence`.

        Raises:
            SegmentDamaged: lengths or checksum are wrong.
        """
        which = self._slots[WHICH]
        if which > 1:
            raise SegmentDamaged(f"there is no area {which}")
        at = AREAS[which]
        stamp, length, crc, step, state = self._slots[at : at + 5].tolist()
        if stamp == 0:
            return None
        if not 0 < length <= self._area or stamp % 2:
            raise SegmentDamaged(f"a snapshot of {length} bytes, stamped {stamp}")
        begin = BASE + which * self._area
        body = bytes(self._bytes[begin : begin + length])
        if zlib.crc32(body) != crc:
            raise SegmentDamaged("the snapshot does not match its checksum")
        return RawSnapshot(stamp, step, state, body)

    @property
    def fresh(self) -> bool:
        """Whether what is published is of this boundary, as far as one sees without reading it."""
        sequence, which = self.sequence, self._slots[WHICH]
        if sequence % 2 or which > 1:
            return False
        return bool(self._slots[AREAS[which] + STAMP] == sequence)

    @property
    def state_bytes(self) -> int:
        """What a save would write, by the word of the newest snapshot; 0: there is none."""
        which = self._slots[WHICH]
        at = AREAS[which & 1]
        return int(self._slots[at + STATE]) if self._slots[at + STAMP] else 0

    # For the agent. --------------------------------------------------------------------

    @property
    def asked(self) -> bool:
        """Whether the snapshot is wanted after every batch."""
        return bool(self._slots[ASK])

    @property
    def eager(self) -> bool:
        """Whether snapshots are worth more than is free."""
        return bool(self._slots[EAGER])

    @property
    def reader(self) -> int | None:
        """The process that will read, and has not been permitted yet."""
        pid = self._slots[READER]
        return None if pid in (0, self._slots[PERMITTED]) else int(pid)

    def set_permitted(self, pid: int) -> None:
        """The process `pid` may read now."""
        self._slots[PERMITTED] = pid

    def begin(self, pid: int, start_time: int) -> None:
        """This process publishes here from now on; nothing is published yet."""
        slots = self._slots
        slots[SEQUENCE] = slots[SEQUENCE] // 2 * 2 + 3  # odd, and no snapshot has it
        slots[PID], slots[START] = pid, start_time
        self.set_reason(None)

    def step_begins(self) -> None:
        """Something large is about to be changed: until the next boundary nothing counts."""
        slots = self._slots
        slots[SEQUENCE] |= 1

    def boundary(self, step: int) -> None:
        """A boundary without a snapshot: one that was published before is stale now."""
        slots = self._slots
        slots[SEQUENCE] |= 1
        slots[STEP] = max(0, step)
        slots[SEQUENCE] += 1

    def publish(
        self, step: int, state_bytes: int, length: int, write: Callable[[memoryview], int]
    ) -> bool:
        """
        A boundary with a snapshot.

        Args:
            step: steps that are complete.
            state_bytes: of the tensors that the snapshot tells of.
            length: of the snapshot.
            write: fills a view of that length and gives its CRC-32.

        Returns:
            False where the snapshot is too long: the boundary is then one without a snapshot.
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
