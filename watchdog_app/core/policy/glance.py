"""What a look at rest can leave out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.history import PastSample
from watchdog_app.core.model.machine import CgroupMemory, HostMemory, Snapshot
from watchdog_app.core.model.readings import group_level, ram_and_swap, watched_groups
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKey, ResourceKind, Scope

GLANCE_S = 2.0  # between two glances, at most: so soon is a process seen that was moved
FULL_S = 120.0  # between two full looks, at most
_SERVED_S = 5.0  # ... while Jupyter serves a kernel: its notebook may be renamed
_DEVICES_S = 10.0  # ... where heat or charge is measured, and where rescues have a disk
_CARDS_S = 5.0  # ... where there are cards that nobody works on


# What several threads that write to fresh pages can fill in a second. Before the next glance no
# more than this share of the room that there is can be gone by it.
_FASTEST_PER_S = 4 << 30
_ROOM_SHARE = 2 / 3
_MOVE = 1 / 200  # of the room left
_LEAST_BYTES = 256 << 10


# The first moments of a Python: it sets limits, changes its title, becomes another by exec.
_YOUNG_S = 10.0
_WARM = 0.75  # of the limit: heat is looked at as often as it is read
_KEEP_S = (
    10.0  # between two figures that the forecast is given; it takes a longer gap for a suspend
)
_RAM = ResourceKey(ResourceKind.RAM)
_RAM_SWAP = ResourceKey(ResourceKind.RAM_SWAP)
_SHM = ResourceKey(ResourceKind.SHM)


class Glance(NamedTuple):
    """What a short look reads."""

    mono_s: float
    available_bytes: int
    swap_free_bytes: int
    shm_used_bytes: int | None  # None: not asked for
    newcomers: bool  # a Python has begun, or may have
    changed: bool = False  # a limit was set, or a process has moved to another group
    groups: tuple[CgroupMemory, ...] = ()
    spaces: Mapping[int, int] = MappingProxyType({})  # address space by pid, where it is limited


class _Level(NamedTuple):
    """A resource at the full look."""

    used: float
    limit: float
    step: float  # from here on it has moved


class Rest:
    """
    The state between a full look and the next, while nothing is near.

    Args:
        snapshot: of the full look.
        readings: of the same look.
        every_s: between two glances.
        until_mono_s: when the next full look is due whatever the glances show.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        readings: Collection[Reading],
        every_s: float,
        until_mono_s: float,
    ) -> None:
        self.every_s = every_s
        self.until_mono_s = until_mono_s
        self.moved = False  # at the last glance: more than that nobody has looked for long
        self._host = host = snapshot.host
        self._begun_mono_s = snapshot.mono_s
        self._seen: list[Glance] = []
        # What the shortest looks have found, who make no glance: time, bytes available, swap free.
        self.still: list[tuple[float, int, int]] = []
        levels = {each.key: _level(each) for each in readings}
        self.ram_step = levels[_RAM].step
        self._low = host.available_bytes - self.ram_step
        self.high = host.available_bytes + self.ram_step
        # Memory that is shared is memory: as long as it is not the scarcer one it shows there.
        shm = levels.get(_SHM)
        self.asks_shm = shm is not None and self.ram_step > 2 * shm.step
        self.groups = [each.subject for each in levels if each.kind is ResourceKind.CGROUP]
        self._leaves = watched_groups(snapshot)
        if self.groups:  # what they can swap out depends on those above them
            self.groups += [
                each.path
                for each in snapshot.cgroups
                if each.path not in self.groups
                and (each.swap_limit_bytes is not None or each.swap_high_bytes is not None)
            ]
        self.spaces = [int(each.subject) for each in levels if each.kind is ResourceKind.RLIMIT_AS]
        wanted = {_RAM, _RAM_SWAP, *((_SHM,) if self.asks_shm else ())}
        self._levels = {
            key: level
            for key, level in levels.items()
            if key in wanted or key.kind in {ResourceKind.CGROUP, ResourceKind.RLIMIT_AS}
        }
        self.ram_alone = len(self._levels) == 1
        # Bounds for the shortest looks; None: they would not do.
        self.low: float | None = self._low if self._levels.keys() <= {_RAM, _RAM_SWAP} else None
        self.swaps = _RAM_SWAP in self._levels
        self.both_low, self.both_high = float("-inf"), float("inf")
        if self.swaps:
            both = self._levels[_RAM_SWAP]
            free = host.available_bytes + host.swap_free_bytes
            self.both_low, self.both_high = free - both.step, free + both.step

    def holds(self, glance: Glance) -> bool:
        """Take a light sample; whether nothing changed, so that no full sample is needed."""
        self._seen.append(glance)
        self.moved = (
            glance.changed
            or not self._low <= glance.available_bytes <= self.high
            or not (self.ram_alone or self._others_hold(glance))
        )
        return not (self.moved or glance.newcomers or glance.mono_s >= self.until_mono_s)

    def past(self) -> dict[ResourceKey, list[PastSample]]:
        """What the glances measured, oldest first: what moved, and the last in any case."""
        found: dict[ResourceKey, list[PastSample]] = {key: [] for key in self._levels}
        still = [
            Glance(mono_s, available_bytes, swap_free_bytes, None, False)
            for mono_s, available_bytes, swap_free_bytes in self.still
        ]
        seen = sorted([*still, *self._seen], key=attrgetter("mono_s"))
        for glance in seen:
            last = glance is seen[-1]
            for key, past in self._measured(glance).items():
                kept, level = found[key], self._levels[key]
                before_s, before = (
                    (kept[-1].mono_s, kept[-1].used) if kept else (self._begun_mono_s, level.used)
                )
                moved = abs(past.used - before) > 0.25 * level.step
                if last or moved or past.mono_s - before_s >= _KEEP_S:
                    kept.append(past)
        return found

    def _others_hold(self, glance: Glance) -> bool:
        measured = self._measured(glance)
        if measured.keys() != self._levels.keys():
            return False  # a group or a process has ended
        return all(
            abs(past.used - level.used) <= level.step
            and abs(past.limit - level.limit) <= level.step
            for past, level in ((measured[key], level) for key, level in self._levels.items())
        )

    def _measured(self, glance: Glance) -> dict[ResourceKey, PastSample]:
        host, at = self._host, glance.mono_s
        used = max(0, host.total_bytes - glance.available_bytes)
        found = {_RAM: PastSample(at, used, host.total_bytes)}
        if _RAM_SWAP in self._levels:
            both = ram_and_swap(host, glance.available_bytes, glance.swap_free_bytes)
            found[_RAM_SWAP] = PastSample(at, *both)
        if glance.shm_used_bytes is not None and _SHM in self._levels:
            found[_SHM] = PastSample(at, glance.shm_used_bytes, self._levels[_SHM].limit)
        for group in glance.groups:
            key = ResourceKey(ResourceKind.CGROUP, group.path)
            level = group_level(
                group, glance.groups, self._leaves, host.total_bytes, glance.swap_free_bytes
            )
            if level is not None and key in self._levels:
                found[key] = PastSample(at, *level)
        for pid, vsize_bytes in glance.spaces.items():
            key = ResourceKey(ResourceKind.RLIMIT_AS, str(pid))
            found[key] = PastSample(at, vsize_bytes, self._levels[key].limit)
        return found


def _level(reading: Reading) -> _Level:
    step = max(_LEAST_BYTES, _MOVE * (reading.limit - reading.used))
    return _Level(reading.used, reading.limit, step)


def glance_s(host: HostMemory, readings: Collection[Reading], least_s: float) -> float:
    """
    Seconds to the next light sample, from the free memory and how fast it could fill.

    Args:
        host: of the last full look.
        readings: of the same look.
        least_s: no sooner than that.
    """
    # RAM fills page by page; the others can be taken at once, however often anybody looks.
    rooms = [each.limit - each.used for each in readings if SPECS[each.key.kind].of_ram]
    room = min(rooms, default=float(host.available_bytes))
    return max(least_s, min(GLANCE_S, _ROOM_SHARE * room / _FASTEST_PER_S))


def full_s(
    snapshot: Snapshot,
    readings: Collection[Reading],
    agents: Collection[AgentState],
    *,
    served: bool,
) -> float | None:
    """
    Seconds to the next full look, whatever glances show; None: glances would not do.

    A training's steps, a Python's first moments, cards at work and heat near its limit do not show
    in a glance.

    Args:
        snapshot: of the last full look.
        readings: of the same look.
        agents: that are connected.
        served: a Jupyter server is known, which may rename notebooks.
    """
    if any(view.training or view.saving for view in agents):
        return None
    ages_s = (
        snapshot.unix_s - info.started_unix_s
        for info in snapshot.infos.values()
        if info.started_unix_s is not None
    )
    if any(-1.0 <= age_s < _YOUNG_S for age_s in ages_s):
        return None
    hardware = snapshot.hardware
    if any(gpu.processes or gpu.utilization_percent for gpu in hardware.gpus):
        return None
    hot = (each for each in readings if SPECS[each.key.kind].scope is Scope.HEAT)
    if any(each.used >= _WARM * each.limit for each in hot):
        return None
    found = FULL_S
    if served:
        found = min(found, _SERVED_S)
    if hardware.gpus:
        found = min(found, _CARDS_S)
    if hardware.temperatures or hardware.batteries or snapshot.disks:
        found = min(found, _DEVICES_S)
    return found
