"""What a task and the machine use over time: memory, processor, swap traffic."""

from __future__ import annotations

from watchdog_app.core.growth import Growth
from watchdog_app.core.records import HostMemory, Task

_TREND_WINDOWS_S = (20.0, 5.0)
_CPU_S = 1.0  # processor time is counted in hundredths: shorter spans are noise
_SWAP_S = 1.0


class Usage:
    """One task's."""

    __slots__ = ("_cpu_from", "cpu_percent", "memory")

    def __init__(self) -> None:
        self.memory = Growth()
        self.cpu_percent: float | None = None
        self._cpu_from: tuple[float, float] | None = None

    def add(self, mono_s: float, task: Task) -> None:
        """Take one look at it."""
        self.memory.add(mono_s, held_bytes(task))
        if self._cpu_from is None:
            self._cpu_from = (mono_s, task.cpu_s)
            return
        passed = mono_s - self._cpu_from[0]
        if passed >= _CPU_S:
            # A worker that ended took its time out of the sum: that is no negative work.
            self.cpu_percent = max(0.0, 100.0 * (task.cpu_s - self._cpu_from[1]) / passed)
            self._cpu_from = (mono_s, task.cpu_s)

    @property
    def trend_bytes_per_s(self) -> float | None:
        """Growth of what it holds, over the longest window that is known; None: too early."""
        for window in _TREND_WINDOWS_S:
            rate = self.memory.rate(window)
            if rate is not None:
                return rate
        return None


def held_bytes(task: Task) -> int:
    """
    What a task holds in RAM and swap that the kernel cannot take back by itself.

    Without pages of files: whoever walks through a mapped data set fills no group and no machine
    by it, and must not be blamed for what a neighbour does. With swap: a task that is being
    swapped out does not shrink. Pages that members share are counted once, as in
    `core.tasks.resident_bytes`.
    """
    private = shmem = 0
    for member in task.members:
        own = max(0, member.rss_bytes - (member.shared_bytes or 0))
        private += own if member is task.members[0] else max(0, own - (member.cow_bytes or 0))
        shmem = max(shmem, member.shmem_bytes or 0)
    return private + shmem + (task.swap_bytes or 0)


class SwapTraffic:
    """The machine's: bytes a second in and out; None where the system does not count them."""

    __slots__ = ("_from", "in_per_s", "out_per_s")

    def __init__(self) -> None:
        self.in_per_s: float | None = None
        self.out_per_s: float | None = None
        self._from: tuple[float, int, int] | None = None

    @classmethod
    def of(cls, in_per_s: float | None, out_per_s: float | None) -> SwapTraffic:
        """These rates, as somebody else has measured them."""
        found = cls()
        found.in_per_s, found.out_per_s = in_per_s, out_per_s
        return found

    def add(self, mono_s: float, host: HostMemory) -> None:
        """Take one look at its counters; one that went back began anew."""
        if host.swap_in_bytes is None or host.swap_out_bytes is None:
            self._from = self.in_per_s = self.out_per_s = None
            return
        now = (mono_s, host.swap_in_bytes, host.swap_out_bytes)
        if self._from is None or now[1] < self._from[1] or now[2] < self._from[2]:
            self._from = now
        elif mono_s - self._from[0] >= _SWAP_S:
            passed = mono_s - self._from[0]
            self.in_per_s = (now[1] - self._from[1]) / passed
            self.out_per_s = (now[2] - self._from[2]) / passed
            self._from = now
