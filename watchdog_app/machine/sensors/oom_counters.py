"""The kernel's counts of its kills for memory: the machine's, and those of memory groups."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from watchdog_app.base.linux import cgroups

_KEEP_S = 120.0  # tearing down a large process takes the kernel up to a minute under pressure
_MOST = 1000
_RECENT_S = 15.0
_DYING_S = 1.0  # a look may still show alive what the kernel has just killed


class Span(NamedTuple):
    """A count when a process was last seen alive and now; None: not known."""

    before: int | None
    after: int | None
    elsewhere: int = 0  # kills of that time whose victims are known
    begin_mono_s: float | None = None


@dataclass(slots=True)
class _Rise:
    """One kill."""

    mono_s: float  # of the reading that showed it
    claimed: bool = False  # it is known who was killed


@dataclass(slots=True)
class Counter:
    """A count of the kernel's, and its kills of the last minutes."""

    value: int | None
    since_mono_s: float = field(default_factory=time.monotonic)  # it is read from then on
    _rises: deque[_Rise] = field(default_factory=lambda: deque(maxlen=_MOST))

    def update(self, value: int | None) -> bool:
        """Take in the value of now; whether it is higher than before."""
        now = time.monotonic()
        rose = value is not None and self.value is not None and value > self.value
        if rose and value is not None and self.value is not None:
            self._rises.extend(_Rise(now) for _ in range(min(_MOST, value - self.value)))
        while self._rises and now - self._rises[0].mono_s > _KEEP_S:
            self._rises.popleft()
        if self.value is None and value is not None:
            self.since_mono_s = now
        self.value = value
        return rose

    def recent(self) -> bool:
        """It rose a moment ago."""
        return bool(self._rises) and time.monotonic() - self._rises[-1].mono_s < _RECENT_S

    def span(self, alive_mono_s: float) -> Span:
        """What it did since a process was last seen alive."""
        if self.value is None:
            return Span(None, None)
        begin_mono_s = alive_mono_s - _DYING_S
        if self.since_mono_s > begin_mono_s and len(self._rises) != self.value:
            return Span(None, self.value)  # some of them may be from just before it was read
        rises = [each for each in self._rises if each.mono_s > begin_mono_s]
        known = sum(each.claimed for each in rises)
        return Span(self.value - len(rises), self.value, known, self.since_mono_s)

    def claim(self, alive_mono_s: float) -> None:
        """One kill since then is known: who died next was not its victim."""
        for each in self._rises:
            if each.mono_s > alive_mono_s - _DYING_S and not each.claimed:
                each.claimed = True
                return


class OomCounters:
    """All counts that concern watched processes."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._groups: dict[str, Counter] = {}
        self._read_mono_s: deque[float] = deque(maxlen=_MOST)  # when they were read
        self.host = Counter(cgroups.host_oom_kills(proc))
        self._read_mono_s.append(time.monotonic())

    def count(self) -> None:
        """Read them: the machine's, and those of groups when it rose."""
        rose = self.host.update(cgroups.host_oom_kills(self._proc))
        for group, counter in self._groups.items():
            if rose or self.host.value is None:
                counter.update(cgroups.group_oom_kills(group))
        self._read_mono_s.append(time.monotonic())

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
            self._groups[new] = Counter(cgroups.group_oom_kills(new))

    def of(self, group: str | None, alive_mono_s: float) -> Span:
        """What the count of a group did since then; None: that of the machine."""
        counter = self.host if group is None else self._groups.get(group)
        if counter is None:
            return Span(None, None)
        span = counter.span(alive_mono_s)
        if span.begin_mono_s is None:
            return span
        # From the last reading before it was seen alive on.
        times = list(self._read_mono_s)
        begin = times[max(0, bisect_right(times, alive_mono_s - _DYING_S) - 1)]
        return span._replace(begin_mono_s=max(begin, span.begin_mono_s))

    def claim(self, group: str | None, alive_mono_s: float) -> None:
        """A process of that group was the victim of one kill."""
        for counter in (self.host, self._groups.get(group or "")):
            if counter is not None:
                counter.claim(alive_mono_s)

    def rose_in(self, group: str | None) -> bool:
        """A process of that group was killed a moment ago."""
        counter = self._groups.get(group) if group else None
        return counter is not None and counter.recent()
