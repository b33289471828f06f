"""
Memory that is ours before it gets short.

A save that starts when the memory group is at its limit must not need a page
that it does not already hold. So the buffers are allocated and touched when
the training starts, and a small reserve beside them is given back to the
group at the moment of the save, for what the interpreter and the kernel need.
"""

from __future__ import annotations

import mmap
import sys

# madvise(2), Linux 4.14: a forked child finds zeros. Without it a data loader's fork would share
# these pages, and writing them, or giving them back, would cost new ones when none can be had.
_MADV_WIPEONFORK = 18


def private_memory(size_bytes: int) -> mmap.mmap:
    """Zeroed, page-aligned memory of this process alone, every page already there."""
    if sys.platform == "win32":
        memory = mmap.mmap(-1, size_bytes)
    else:
        # mmap's default is MAP_SHARED: parent and forked child would write into one buffer.
        memory = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if sys.platform == "linux":
            try:
                memory.madvise(_MADV_WIPEONFORK)
            except OSError:  # an older kernel: a fork then costs what forks cost
                pass
    for at in range(0, size_bytes, mmap.PAGESIZE):
        memory[at] = 0
    return memory


class Reserve:
    """Pages held so that they can be given back when none can be had."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    @property
    def bytes(self) -> int:
        """Held now."""
        return len(self._memory) if self._memory is not None else 0

    def hold(self, size_bytes: int) -> bool:
        """
        Hold at least this much; more than that stays as it is.

        Returns:
            Whether that much is held: under a limit of the address space it may not be had just
            now, and whatever was held stays.
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
        """Give all of it back to the kernel."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
