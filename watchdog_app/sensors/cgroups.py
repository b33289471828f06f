"""
Memory groups with a limit: usage, what of it can be given back, limits, kills.

Sources: kernel, Documentation/admin-guide/cgroup-v2.rst (memory interface files)
and Documentation/admin-guide/cgroup-v1/memory.rst.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from watchdog_app.base.errors import Gone, SensorError
from watchdog_app.base.linux.cgroup_paths import GroupLocator
from watchdog_app.base.linux.files import KeptFile, read_bytes
from watchdog_app.base.linux.process import whole
from watchdog_app.core.model.machine import CgroupMemory
from watchdog_app.sensors.host import parse_pressure
from watchdog_app.sensors.limit_changes import LimitChanges

# v1 has no word for "no limit": PAGE_COUNTER_MAX, the largest signed number cut to a whole page
# (4, 16 or 64 KiB). Older kernels (before 3.19) had the largest signed number itself.
_NO_LIMIT_V1 = (1 << 63) - (1 << 16)
# Where the kernel does not tell that they were changed (see `LimitChanges`).
_LIMITS_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a group may hold. None: no limit of that kind."""

    memory_bytes: int | None = None
    high_bytes: int | None = None
    swap_bytes: int | None = None
    swap_high_bytes: int | None = None

    @property
    def any(self) -> bool:
        """Whether the group is read. A limit of swap alone says what groups below can swap out."""
        return any(
            limit is not None
            for limit in (self.memory_bytes, self.high_bytes, self.swap_bytes, self.swap_high_bytes)
        )


def parse_limit(data: bytes) -> int | None:
    """Bytes of a limit file; None for `max`, v1's huge number and what is no number."""
    value = whole(data.strip())
    return None if value is None or value >= _NO_LIMIT_V1 else value


def parse_count(data: bytes) -> int | None:
    """A file that holds one number; None: it does not."""
    return whole(data.strip())


def parse_flat(data: bytes, *labels: bytes) -> list[int | None]:
    """Values of a flat keyed file (`memory.stat`, `memory.events`), in the labels' order."""
    lines = b"\n" + data
    found: list[int | None] = []
    for label in labels:
        at = lines.find(b"\n" + label + b" ")
        if at < 0:
            found.append(None)
            continue
        start = at + len(label) + 2
        end = lines.find(b"\n", start)
        found.append(whole(lines[start : end if end >= 0 else None].strip()))
    return found


class _Group(ABC):
    """One group that we read; its files stay open while it has a limit."""

    limit_names: tuple[str, ...]
    _usage_name: str
    _events_name: str

    def __init__(self, path: str) -> None:
        self.path = path
        self.limits = Limits()
        self.limits_due_mono_s = 0.0
        self._usage = KeptFile(f"{path}/{self._usage_name}")
        self._stat = KeptFile(f"{path}/memory.stat")
        self._events = KeptFile(f"{path}/{self._events_name}")

    @abstractmethod
    def read_limits(self) -> Limits:
        """The limits now; a file that is not there (the root has none) is no limit."""

    @abstractmethod
    def read(self) -> CgroupMemory:
        """The group now. Raises Gone when it has been removed."""

    def _limit(self, name: str) -> int | None:
        try:
            return parse_limit(read_bytes(f"{self.path}/{name}", 64))
        except SensorError:
            return None

    def _oom(self) -> bytes:
        try:
            return self._events.read(512)
        except SensorError:  # some kernels do not have it
            return b""

    def close(self) -> None:
        """Give the descriptors back."""
        for file in (self._usage, self._stat, self._events):
            file.close()


class _GroupV2(_Group):
    limit_names = ("memory.max", "memory.high", "memory.swap.max", "memory.swap.high")
    _usage_name = "memory.current"
    _events_name = "memory.events"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._swap: KeptFile | None = KeptFile(f"{path}/memory.swap.current")
        self._pressure = KeptFile(f"{path}/memory.pressure")

    def read_limits(self) -> Limits:
        return Limits(*map(self._limit, self.limit_names))

    def read(self) -> CgroupMemory:
        usage = parse_count(self._usage.read(64))
        inactive, active = parse_flat(self._stat.read(), b"inactive_file", b"active_file")
        oom, kills = parse_flat(self._oom(), b"oom", b"oom_kill")
        memory = CgroupMemory(
            path=self.path,
            version=2,
            usage_bytes=usage or 0,
            inactive_file_bytes=inactive or 0,
            active_file_bytes=active or 0,
            limit_bytes=self.limits.memory_bytes,
            high_bytes=self.limits.high_bytes,
            swap_usage_bytes=self._read_swap(),
            swap_limit_bytes=self.limits.swap_bytes,
            oom_events=oom,
            oom_kills=kills,
            swap_high_bytes=self.limits.swap_high_bytes,
        )
        if memory.near_throttle:
            return replace(memory, stalled_percent=self._read_stalled())
        return memory

    def _read_stalled(self) -> float | None:
        """Share of the last ten seconds in which nobody in the group could work, in percent."""
        try:
            pressure = parse_pressure(self._pressure.read(256))
        except SensorError:  # a kernel without PSI
            return None
        return None if pressure is None else pressure.full_avg10

    def _read_swap(self) -> int | None:
        if self._swap is None:
            return None
        try:
            return parse_count(self._swap.read(64))
        except SensorError:
            self._swap = None  # a kernel without swap accounting
            return None

    def close(self) -> None:
        super().close()
        self._pressure.close()
        if self._swap is not None:
            self._swap.close()


class _GroupV1(_Group):
    limit_names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    _usage_name = "memory.usage_in_bytes"
    _events_name = "memory.oom_control"

    def read_limits(self) -> Limits:
        memory, both = map(self._limit, self.limit_names)
        swap = max(0, both - memory) if both is not None and memory is not None else None
        return Limits(memory, None, swap)

    def read(self) -> CgroupMemory:
        usage = parse_count(self._usage.read(64)) or 0
        # usage_in_bytes counts the groups below, so the parts must too: the total_ lines.
        inactive, active, swap = parse_flat(
            self._stat.read(), b"total_inactive_file", b"total_active_file", b"total_swap"
        )
        (kills,) = parse_flat(self._oom(), b"oom_kill")
        return CgroupMemory(
            path=self.path,
            version=1,
            usage_bytes=usage,
            inactive_file_bytes=inactive or 0,
            active_file_bytes=active or 0,
            limit_bytes=self.limits.memory_bytes,
            high_bytes=None,
            swap_usage_bytes=swap,  # not in memory.stat without swap accounting
            swap_limit_bytes=self.limits.swap_bytes,
            # memory.failcnt counts every brush with the limit, successful reclaim included: it
            # is no figure of failed reclaim, and v1 has no other.
            oom_events=None,
            oom_kills=kills,
        )


class GroupReader:
    """Reads, once each, the limited groups above the watched processes."""

    def __init__(self, locator: GroupLocator) -> None:
        self._locator = locator
        self._groups: dict[str, _Group] = {}
        self._wanted: frozenset[str] = frozenset()
        self._changes = LimitChanges()
        self.may_have_changed = self._changes.pending  # whether to ask for `limits_changed`

    def read(self, folders: Iterable[str], now_mono_s: float) -> tuple[CgroupMemory, ...]:
        """
        The limited groups among these and all above them, each once, outermost first.

        A group that ends while it is read is left out: its processes have ended too.
        """
        wanted = frozenset(folders)
        if wanted != self._wanted:
            self._follow(wanted)
        if self._changes.any():
            self.review()
        found = []
        for path, group in self._groups.items():
            if now_mono_s >= group.limits_due_mono_s:
                group.limits = group.read_limits()
                group.limits_due_mono_s = now_mono_s + _LIMITS_EVERY_S
                if not group.limits.any:
                    group.close()
            if not group.limits.any:
                continue
            try:
                found.append(group.read())
            except Gone:
                continue
            except SensorError:
                # No memory files in this group: the controller is not enabled down to here.
                self._groups[path].limits = Limits()
        return tuple(found)

    def glance(self, paths: Collection[str]) -> tuple[CgroupMemory, ...]:
        """These groups now, with the limits of the last `read`; one that has ended is left out."""
        found = []
        for path in paths:
            group = self._groups.get(path)
            if group is not None:
                with suppress(SensorError):
                    found.append(group.read())
        return tuple(found)

    def limits_changed(self, now_mono_s: float) -> bool:
        """
        Whether a limit of any group that is followed has been set since the last `read`.

        Also of one that had none. True once; the next `read` reads them all.
        """
        changed = self._changes.any()
        if not changed and not self._changes.complete:
            changed = any(
                now_mono_s >= group.limits_due_mono_s and group.limits != group.read_limits()
                for group in self._groups.values()
            )
        if changed:
            self.review()
        return changed

    def review(self) -> None:
        """The next `read` shows the limits as they are then, and not of some seconds ago."""
        for group in self._groups.values():
            group.limits_due_mono_s = 0.0

    def _follow(self, wanted: frozenset[str]) -> None:
        chains = {step for leaf in wanted for step in self._locator.ancestors(leaf)}
        for path in self._groups.keys() - {path for path, _ in chains}:
            self._groups.pop(path).close()
        for path, version in chains:
            if path not in self._groups:
                self._groups[path] = _GroupV2(path) if version == 2 else _GroupV1(path)
        self._groups = dict(sorted(self._groups.items()))
        self._wanted = wanted
        self._changes.follow(
            [f"{path}/{name}" for path, group in self._groups.items() for name in group.limit_names]
        )

    def close(self) -> None:
        """Give the descriptors back."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()
        self._wanted = frozenset()
        self._changes.close()
