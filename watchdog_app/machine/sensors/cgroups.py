"""Memory groups with a limit: usage, what of it can be given back, limits, kills."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from watchdog_app.base.errors import Gone, SensorError
from watchdog_app.base.linux.cgroups import Group, Layout, Limits
from watchdog_app.base.linux.files import read_or_empty
from watchdog_app.core.model.machine import CgroupMemory
from watchdog_app.machine.sensors.host import parse_pressure

# A limit that is set by hand is seen within 5 s: two samples are at most 2 s apart.
_LIMITS_EVERY_S = 3.0


class _Followed(Group):
    """A group with its limits as they were last read."""

    def __init__(self, path: str, version: int) -> None:
        super().__init__(path, version)
        self.known = Limits()
        self.due_mono_s = 0.0

    def memory(self) -> CgroupMemory:
        """The group now. Raises Gone when it has been removed."""
        usage = self.read()
        memory = CgroupMemory(
            path=self.path,
            version=self.version,
            usage_bytes=usage.used_bytes,
            inactive_file_bytes=usage.inactive_file_bytes,
            active_file_bytes=usage.active_file_bytes,
            limit_bytes=self.known.memory_bytes,
            high_bytes=self.known.high_bytes,
            swap_usage_bytes=usage.swap_bytes,
            swap_limit_bytes=self.known.swap_bytes,
            oom_events=usage.oom_events,
            oom_kills=usage.oom_kills,
            swap_high_bytes=self.known.swap_high_bytes,
        )
        if not memory.near_throttle:
            return memory
        # Share of the last ten seconds in which nobody in the group could work, in percent.
        pressure = parse_pressure(read_or_empty(f"{self.path}/memory.pressure", 256))
        return replace(memory, stalled_percent=None if pressure is None else pressure.full_avg10)


class GroupReader:
    """Reads, once each, the limited groups above the watched processes."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._groups: dict[str, _Followed] = {}
        self._wanted: frozenset[str] = frozenset()

    def read(self, folders: Iterable[str], now_mono_s: float) -> tuple[CgroupMemory, ...]:
        """
        The limited groups among these and all above them, each once, outermost first.

        A group that ends while it is read is left out: its processes have ended too.
        """
        wanted = frozenset(folders)
        if wanted != self._wanted:
            self._follow(wanted)
        found = []
        for path, group in self._groups.items():
            if now_mono_s >= group.due_mono_s:
                group.known = group.limits()
                group.due_mono_s = now_mono_s + _LIMITS_EVERY_S
                if not group.known.any:
                    group.close()
            if not group.known.any:
                continue
            try:
                found.append(group.memory())
            except Gone:
                continue
            except SensorError:
                # No memory files in this group: the controller is not enabled down to here.
                self._groups[path].known = Limits()
        return tuple(found)

    def review(self) -> None:
        """The next `read` shows the limits as they are then, and not of some seconds ago."""
        for group in self._groups.values():
            group.due_mono_s = 0.0

    def _follow(self, wanted: frozenset[str]) -> None:
        chains = {step for leaf in wanted for step in self._layout.ancestors(leaf)}
        for path in self._groups.keys() - {path for path, _ in chains}:
            self._groups.pop(path).close()
        for path, version in chains:
            if path not in self._groups:
                self._groups[path] = _Followed(path, version)
        self._groups = dict(sorted(self._groups.items()))
        self._wanted = wanted

    def close(self) -> None:
        """Give the descriptors back."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()
        self._wanted = frozenset()
