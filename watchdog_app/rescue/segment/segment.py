"""
The segment in which a training publishes itself, for a reader while the training is stopped.

It is a file in memory. The watcher (daemon or guard) makes it, sets its size and touches its pages,
so that they are not charged to the training's group. The agent and the watcher both map it. The
agent writes a new snapshot into one of two areas. Only after that it sets the number of the valid
area, and then the sequence number. A kill or a freeze between any two instructions leaves the old
snapshot or the new one.

    slot (of 8 bytes, little-endian)     written by
    0  magic                             the watcher
    1  version of this layout            the watcher
    2  bytes of the file                 the watcher
    3  pid, 4  start time                the agent
    5  sequence: odd inside a step       the agent
    6  which area is valid               the agent
    7  step at this sequence             the agent
    8  publish after every batch         the watcher
    9  pid that will read                the watcher
    10 pid that was permitted to read    the agent
    11 (not used)
    12 bytes of the reason               the agent, if there is no snapshot
    13 spend more time on publishing     the watcher, if nothing refuses a jump
    16 area 0: stamp, length, CRC-32, step, bytes of the state
    24 area 1: the same

The reason, as text, begins at byte 256. The areas share the bytes from 4096 on.
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
ENVIRONMENT = "WATCHDOG_GUARD"  # a folder with the segments of tasks that `watchdog exec` started

MAGIC = int.from_bytes(b"WDSEGMNT", "little")
VERSION = 4
BASE = 4096
REASON_AT, REASON_BYTES = 256, 1024
STRIDE = 64 * 4096  # bytes per write of a new segment
SPARE = "spare"

(MAGIC_AT, VERSION_AT, BYTES_AT, PID, START, SEQUENCE, WHICH, STEP) = range(8)
(ASK, READER, PERMITTED, _, REASON, EAGER) = range(8, 14)
AREAS = (16, 24)
STAMP, LENGTH, CRC, AT_STEP, STATE = range(5)


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


class Segment:
    """A mapped segment. The watcher uses the first half of the methods, the agent the rest."""

    def __init__(self, path: str) -> None:
        """
        Map the segment at `path`.

        Raises:
            OSError: it does not exist, or belongs to another user.
            SegmentDamaged: it is not a segment of this layout.
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
        """Unmap the segment; may be called twice."""
        self._slots.release()
        self._bytes.release()
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # For the watcher. -----------------------------------------------------------------

    def ask_every_batch(self, on: bool) -> None:
        """Ask the agent to publish after every batch, because a limit is near."""
        self._slots[ASK] = int(on)

    def ask_eagerly(self, on: bool) -> None:
        """Ask the agent to spend more time on publishing, because memory can jump at any time."""
        self._slots[EAGER] = int(on)

    def permit(self, pid: int) -> None:
        """Ask the agent to allow process `pid`, and its children, to read the training's memory."""
        self._slots[READER] = pid

    @property
    def permitted(self) -> int | None:
        """The process that the agent has permitted; None before that."""
        return self._slots[PERMITTED] or None

    @property
    def owner(self) -> tuple[int, int] | None:
        """pid and start time of the agent that has mapped the segment; None before that."""
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
        The newest complete snapshot, which may be stale: compare its sequence with `sequence`.

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
        """Whether the snapshot belongs to this boundary; does not check the snapshot itself."""
        sequence, which = self.sequence, self._slots[WHICH]
        if sequence % 2 or which > 1:
            return False
        return bool(self._slots[AREAS[which] + STAMP] == sequence)

    @property
    def state_bytes(self) -> int:
        """Bytes that a save would write, from the newest snapshot; 0: there is none."""
        which = self._slots[WHICH]
        at = AREAS[which & 1]
        return int(self._slots[at + STATE]) if self._slots[at + STAMP] else 0

    # For the agent. --------------------------------------------------------------------

    @property
    def asked(self) -> bool:
        """Whether the watcher wants a snapshot after every batch."""
        return bool(self._slots[ASK])

    @property
    def eager(self) -> bool:
        """Whether the agent must spend more time on publishing, see `ask_eagerly`."""
        return bool(self._slots[EAGER])

    @property
    def reader(self) -> int | None:
        """The process that will read, if the agent has not permitted it yet."""
        pid = self._slots[READER]
        return None if pid in (0, self._slots[PERMITTED]) else int(pid)

    def set_permitted(self, pid: int) -> None:
        """Record that the process `pid` may read now."""
        self._slots[PERMITTED] = pid

    def begin(self, pid: int, start_time: int) -> None:
        """Start publishing for this process; nothing is published yet."""
        slots = self._slots
        slots[SEQUENCE] = slots[SEQUENCE] // 2 * 2 + 3  # odd, and no snapshot has it
        slots[PID], slots[START] = pid, start_time
        self.set_reason(None)

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
