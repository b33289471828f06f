"""
The page that a training publishes itself in: read from outside while the training stands still.

A file in memory that the watchdog makes, sizes and touches, so that it is charged to nobody in
the training's group. The agent maps it and writes; whoever watches maps it too. Everything that
the agent writes is in place before it counts: there are two areas for the table, and the number
of the one that is valid, and then the sequence number, are set last. A kill or a freeze between
any two instructions leaves the old table or the new one.

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
    11 bytes that a table would take     the agent, where it is too long
    12 bytes of the reason               the agent, where there is no table
    13 tell steps for more than is free  the watcher, where nothing refuses a jump
    16 area 0: stamp, length, CRC-32, step, bytes of the state, copies made of it
    24 area 1: the same
    160 the increment: stamp, stamp of the table that it goes on from, length, CRC-32, step

The reason, as text, begins at byte 256, and the increment at byte 4096: what of the table is
another by now, where all the rest of it holds. It is written while the sequence is odd, and counts
where its stamp is the sequence. The areas share what is behind byte 196608.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
import zlib

from watchdog_app import paths
from watchdog_app.airbag.page_contents import Increment, Published
from watchdog_app.airbag.page_folder import clear, folder, path_for, prepare
from watchdog_app.errors import WatchdogError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

__all__ = ["clear", "folder", "path_for", "prepare"]

PAGE_BYTES = 4 * 1024 * 1024
MOST_BYTES = 256 * 1024 * 1024
ENVIRONMENT = "WATCHDOG_AIRBAG"  # a folder: there a task that `watchdog exec` started finds its own

_MAGIC = int.from_bytes(b"WDAIRBAG", "little")
_VERSION = 3
_BASE = 48 * 4096
_REASON_AT, _REASON_BYTES = 256, 1024
_INCREMENT_AT = 4096
_STRIDE = 64 * 4096  # of a new page
INCREMENT_BYTES = _BASE - _INCREMENT_AT  # at most
_SPARE = "spare"

(_MAGIC_AT, _VERSION_AT, _BYTES_AT, _PID, _START, _SEQUENCE, _WHICH, _STEP) = range(8)
(_ASK, _READER, _PERMITTED, _NEEDED, _REASON, _EAGER) = range(8, 14)
_AREAS = (16, 24)
_STAMP, _LENGTH, _CRC, _AT_STEP, _STATE = range(5)
_INCREMENT = 160
_INCREMENT_HEAD = struct.Struct("<5Q")
_MOST = 2**64 - 1


class PageDamaged(WatchdogError):
    """What is in a page is not what this layout allows. The message says what."""


class Page:
    """A page, mapped. Whoever watches uses the methods of the first half, the agent the others."""

    def __init__(self, path: str) -> None:
        """
        Map the page at `path`.

        Raises:
            OSError: there is none, or it belongs to somebody else.
            PageDamaged: it is no page of this layout.
        """
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or paths.foreign(found):
                raise PermissionError(errno.EACCES, "it is no file of this user's", path)
            if not _BASE < found.st_size <= MOST_BYTES or found.st_size % 4096:
                raise PageDamaged(f"{path} is {found.st_size} bytes long, which no page is")
            self._memory = mmap.mmap(fd, found.st_size)
        finally:
            os.close(fd)
        self.path = path
        self._bytes = memoryview(self._memory)
        self._slots = self._bytes[:_INCREMENT_AT].cast("Q")
        self._area = (found.st_size - _BASE) // 2 // 64 * 64
        slots = self._slots
        if slots[_MAGIC_AT] != _MAGIC or slots[_VERSION_AT] != _VERSION:
            self.close()
            raise PageDamaged(f"{path} is no page, or one of another version of watchdog")

    def close(self) -> None:
        """Let go of the mapping; may be called twice."""
        self._slots.release()
        self._bytes.release()
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        self.close()

    # For whoever watches. --------------------------------------------------------------

    def ask_every_batch(self, on: bool) -> None:
        """A limit is near: the table shall be as of every batch, not only as often as is free."""
        self._slots[_ASK] = int(on)

    def ask_eagerly(self, on: bool) -> None:
        """A jump can come at any time: steps are worth telling for more than is free."""
        self._slots[_EAGER] = int(on)

    def permit(self, pid: int) -> None:
        """Ask the agent to allow process `pid`, and its children, to read the training's memory."""
        self._slots[_READER] = pid

    @property
    def permitted(self) -> int | None:
        """The process that the agent has permitted, None before it has."""
        return self._slots[_PERMITTED] or None

    @property
    def owner(self) -> tuple[int, int] | None:
        """pid and start time of the agent that has mapped it; None before one has."""
        return (self._slots[_PID], self._slots[_START]) if self._slots[_PID] else None

    @property
    def sequence(self) -> int:
        """How often the training has come to a boundary or left one: odd inside a step."""
        return int(self._slots[_SEQUENCE])

    @property
    def step(self) -> int:
        """Steps that were complete at the last boundary."""
        return int(self._slots[_STEP])

    @property
    def needed_bytes(self) -> int | None:
        """Size of a page that would hold the table, where this one does not."""
        return int(self._slots[_NEEDED]) or None

    @property
    def reason(self) -> str | None:
        """Why there is no table, in the agent's words: untrusted."""
        length = self._slots[_REASON]
        if not 0 < length <= _REASON_BYTES:
            return None
        return bytes(self._bytes[_REASON_AT : _REASON_AT + length]).decode("utf-8", "replace")

    def table(self) -> Published | None:
        """
        The newest whole table, which may be stale: compare its sequence with `sequence`.

        Raises:
            PageDamaged: lengths or checksum are wrong.
        """
        which = self._slots[_WHICH]
        if which > 1:
            raise PageDamaged(f"there is no area {which}")
        at = _AREAS[which]
        stamp, length, crc, step, state = self._slots[at : at + 5].tolist()
        if stamp == 0:
            return None
        if not 0 < length <= self._area or stamp % 2:
            raise PageDamaged(f"a table of {length} bytes, stamped {stamp}")
        begin = _BASE + which * self._area
        body = bytes(self._bytes[begin : begin + length])
        if zlib.crc32(body) != crc:
            raise PageDamaged("the table does not match its checksum")
        return Published(stamp, step, state, body)

    @property
    def fresh(self) -> bool:
        """Whether what is published is of this boundary, as far as one sees without reading it."""
        sequence, which = self.sequence, self._slots[_WHICH]
        if sequence % 2 or which > 1:
            return False
        stamp = self._slots[_AREAS[which] + _STAMP]
        added, base = self._slots[_INCREMENT : _INCREMENT + 2].tolist()
        return stamp == sequence or (added == sequence and base == stamp != 0)

    @property
    def state_bytes(self) -> int:
        """What a save would write, by the word of the newest table; 0: there is none."""
        which = self._slots[_WHICH]
        at = _AREAS[which & 1]
        return int(self._slots[at + _STATE]) if self._slots[at + _STAMP] else 0

    def increment(self, table: Published) -> Increment | None:
        """
        What brings `table` to the present boundary; None where nothing does.

        Raises:
            PageDamaged: length or checksum are wrong.
        """
        found = self._bytes[8 * _INCREMENT : 8 * _INCREMENT + _INCREMENT_HEAD.size]
        stamp, base, length, crc, step = _INCREMENT_HEAD.unpack(found)
        if stamp != self.sequence or base != table.sequence:
            return None
        if not 0 < length <= INCREMENT_BYTES or stamp % 2 or stamp < base:
            raise PageDamaged(f"an increment of {length} bytes, stamped {stamp}")
        body = bytes(self._bytes[_INCREMENT_AT : _INCREMENT_AT + length])
        if zlib.crc32(body) != crc:
            raise PageDamaged("the increment does not match its checksum")
        return Increment(step, body)

    # For the agent. --------------------------------------------------------------------

    @property
    def asked(self) -> bool:
        """Whether the table is wanted after every batch."""
        return bool(self._slots[_ASK])

    @property
    def eager(self) -> bool:
        """Whether steps are worth telling for more than is free."""
        return bool(self._slots[_EAGER])

    @property
    def reader(self) -> int | None:
        """The process that will read, and has not been permitted yet."""
        pid = self._slots[_READER]
        return None if pid in (0, self._slots[_PERMITTED]) else int(pid)

    def has_permitted(self, pid: int) -> None:
        """The process `pid` may read now."""
        self._slots[_PERMITTED] = pid

    def begin(self, pid: int, start_time: int) -> None:
        """This process publishes here from now on; nothing is published yet."""
        slots = self._slots
        slots[_SEQUENCE] = slots[_SEQUENCE] // 2 * 2 + 3  # odd, and no table has it
        slots[_PID], slots[_START] = pid, start_time
        self.unable(None)

    def step_begins(self) -> None:
        """Something large is about to be changed: until the next boundary nothing counts."""
        slots = self._slots
        slots[_SEQUENCE] |= 1

    def boundary(self, step: int) -> None:
        """A boundary without a table: one that was published before is stale now."""
        slots = self._slots
        slots[_SEQUENCE] |= 1
        slots[_STEP] = max(0, step)
        slots[_SEQUENCE] += 1

    def publish(
        self, step: int, state_bytes: int, length: int, write: Callable[[memoryview], int]
    ) -> bool:
        """
        A boundary with a table.

        Args:
            step: steps that are complete.
            state_bytes: of the tensors that the table tells of.
            length: of the table.
            write: fills a view of that length and gives its CRC-32.

        Returns:
            False where the table is too long: the boundary is then one without a table.
        """
        slots = self._slots
        slots[_SEQUENCE] |= 1
        if length > self._area:
            slots[_NEEDED] = _BASE + 2 * (length + length // 4 + 64) // 4096 * 4096 + 4096
            self.boundary(step)
            return False
        which = 1 - (slots[_WHICH] & 1)
        at = _AREAS[which]
        slots[at] = 0
        begin = _BASE + which * self._area
        with self._bytes[begin : begin + length] as view:
            crc = write(view)
        stamp = slots[_SEQUENCE] + 1
        slots[at + _LENGTH], slots[at + _CRC] = length, crc
        slots[at + _AT_STEP], slots[at + _STATE] = max(0, step), state_bytes
        slots[at] = stamp
        slots[_WHICH] = which
        slots[_STEP] = max(0, step)
        slots[_SEQUENCE] = stamp
        return True

    def add(self, base: int, step: int, body: bytes) -> None:
        """
        A boundary with an increment.

        Args:
            base: the sequence at which the table was published that it goes on from.
            step: steps that are complete.
            body: at most `INCREMENT_BYTES`.
        """
        slots, length = self._slots, len(body)
        stamp = (slots[_SEQUENCE] | 1) + 1
        slots[_SEQUENCE] = stamp - 1
        self._bytes[_INCREMENT_AT : _INCREMENT_AT + length] = body
        _INCREMENT_HEAD.pack_into(
            self._bytes, 8 * _INCREMENT, stamp, base, length, zlib.crc32(body), step
        )
        slots[_STEP] = step
        slots[_SEQUENCE] = stamp

    def unable(self, why: str | None) -> None:
        """Say why there is no table; None takes it back."""
        text = b"" if why is None else why.encode("utf-8", "replace")[:_REASON_BYTES]
        self._bytes[_REASON_AT : _REASON_AT + len(text)] = text
        self._slots[_REASON] = len(text)


def make(path: str, size_bytes: int = PAGE_BYTES) -> None:
    """
    A new page at `path`, every byte of it there: charged to this process's group.

    Raises:
        OSError: there is one already, or there is no room.
    """
    new = f"{path}.new-{os.getpid()}"
    fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            for at in range(0, size_bytes, _STRIDE):
                os.pwrite(fd, bytes(min(_STRIDE, size_bytes - at)), at)
            head = (_MAGIC, _VERSION, size_bytes)
            os.pwrite(fd, b"".join(each.to_bytes(8, "little") for each in head), 0)
        finally:
            os.close(fd)
        os.link(new, path)  # whole, or not there
    finally:
        os.unlink(new)


def ask(path: str, on: bool) -> None:
    """`Page.ask_every_batch` by somebody who keeps no page mapped. Raises OSError."""
    _set(path, _ASK, int(on))


def permit(path: str, pid: int) -> None:
    """`Page.permit` likewise. Raises OSError."""
    _set(path, _READER, pid)


def _set(path: str, slot: int, value: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
    try:
        os.pwrite(fd, value.to_bytes(8, "little"), 8 * slot)
    finally:
        os.close(fd)


def make_spare(where: str, size_bytes: int = PAGE_BYTES) -> bool:
    """
    Have a page ready for the next process that begins to publish; whether one was made.

    Raises:
        OSError: there is no room.
    """
    path = os.path.join(where, _SPARE)
    if os.path.lexists(path):
        return False
    make(path, size_bytes)
    return True


def claim(where: str, pid: int, start_time: int) -> str:
    """
    The page of this process: its own where there is one, else the spare one, else a new one.

    Raises:
        OSError: none can be had.
    """
    path = path_for(where, pid, start_time)
    if os.path.exists(path):
        return path
    try:
        os.rename(os.path.join(where, _SPARE), path)
    except FileNotFoundError:
        make(path)
    return path
