"""The kernel's counts of its kills for memory: the machine's, and those of memory groups."""

from __future__ import annotations

import time
from collections.abc import Collection

from watchdog_app.sensors import process_end

# Tearing down a large process takes the kernel seconds under pressure: its kill was counted then.
_RECENT_S = 15.0


class Counter:
    """A count of the kernel's, and when it was last seen to rise."""

    def __init__(self, value: int | None) -> None:
        self.value = value
        self._lower = value  # before it rose
        self._rose_mono_s = float("-inf")

    def update(self, value: int | None) -> bool:
        """Take in the value of now; whether it is higher than before."""
        rose = value is not None and self.value is not None and value > self.value
        if rose:
            if not self.recent():
                self._lower = self.value
            self._rose_mono_s = time.monotonic()
        self.value = value
        return rose

    def recent(self) -> bool:
        """It rose a moment ago."""
        return time.monotonic() - self._rose_mono_s < _RECENT_S

    @property
    def before(self) -> int | None:
        """Its value before it rose a moment ago; else that of now."""
        return self._lower if self.recent() else self.value


class KillCounts:
    """All counts that concern watched processes."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._groups: dict[str, Counter] = {}
        self.host = Counter(process_end.host_oom_kills(proc))

    def count(self) -> None:
        """Read them: the machine's, and those of groups when it rose."""
        rose = self.host.update(process_end.host_oom_kills(self._proc))
        for group, counter in self._groups.items():
            if rose or self.host.value is None:
                counter.update(process_end.group_oom_kills(group))

    def follow(self, groups: Collection[str], needed: Collection[str | None]) -> None:
        """
        Count in these groups from now on.

        Args:
            groups: in which watched processes are.
            needed: that are not to be dropped yet.
        """
        for gone in self._groups.keys() - set(groups) - set(needed):
            if not self._groups[gone].recent():
                del self._groups[gone]
        for new in set(groups) - self._groups.keys():
            self._groups[new] = Counter(process_end.group_oom_kills(new))

    def of(self, group: str | None) -> Counter:
        """The count of a group; one that knows nothing where that is not followed."""
        return self._groups.get(group or "", Counter(None))

    def rose_in(self, group: str | None) -> bool:
        """A process of that group was killed a moment ago."""
        counter = self._groups.get(group) if group else None
        return counter is not None and counter.recent()
