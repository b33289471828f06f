"""Short looks between two full ones: what they notice, and that nothing they measured is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.hardware import Gpu, GpuProcess, Hardware, Temperature
from watchdog_app.core.model.machine import (
    CgroupMemory,
    HostMemory,
    ProcessInfo,
    ProcessKey,
    ProcessSample,
    Snapshot,
    TaskKind,
)
from watchdog_app.core.model.readings import readings
from watchdog_app.core.model.resource import ResourceKey, ResourceKind
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.model.tasks import group
from watchdog_app.core.policy.engine import Engine
from watchdog_app.core.policy.glance import FULL_S, GLANCE_S, Glance, Rest, full_s, glance_s

GIB = 1 << 30
KEY = ProcessKey(7, 70)
FOLDER = "/sys/fs/cgroup/memory/train"


def snapshot(mono_s: float = 0.0, free: int = 20 * GIB, **more: object) -> Snapshot:
    host = HostMemory(24 * GIB, free, 0, 0, None, None, 0, 12 * GIB, None)
    sample = ProcessSample(KEY, 1, "S", GIB, 0, 0, 3 * GIB, 0.0)
    info = ProcessInfo(
        KEY, 1, 0, "ann", "/usr/bin/python3", ("python3", "a.py"), "/", TaskKind.SCRIPT, "a.py",
        cgroup=FOLDER, rlimit_as_bytes=8 * GIB if more.pop("limited", False) else None,
        started_unix_s=more.pop("begun_unix_s", None),
    )  # fmt: skip
    found = Snapshot(mono_s, 1e9 + mono_s, host, (sample,), infos={KEY: info})
    return replace(found, **more)


def limited_group(usage: int, file_bytes: int = 0) -> CgroupMemory:
    return CgroupMemory(FOLDER, 1, usage, file_bytes, 0, 4 * GIB, None, 0, None, None, 0)


def rest_of(seen: Snapshot, until_mono_s: float = 60.0) -> Rest:
    found = readings(seen, group(seen.processes, seen.infos))
    return Rest(seen, found, 3.0, until_mono_s)


def glance(mono_s: float = 3.0, free: int = 20 * GIB, **more: object) -> Glance:
    return Glance(mono_s, free, 0, None, False)._replace(**more)


@pytest.mark.parametrize(
    ("seen", "still"),
    [
        (glance(), True),
        (glance(free=20 * GIB - 90 * 2**20), True),  # of 20 GiB, less than a two-hundredth
        (glance(free=20 * GIB - 110 * 2**20), False),
        (glance(free=20 * GIB + 110 * 2**20), False),  # what is freed may be filled again
        (glance(newcomers=True), False),
        (glance(mono_s=60.0), False),
    ],
)
def test_a_full_look_is_due_when_a_small_part_of_the_room_has_moved(seen: Glance, still: bool):
    """Or when a Python has begun, or when the last one is too long ago."""
    assert still is rest_of(snapshot()).holds(seen)


@pytest.mark.parametrize(
    ("usage", "file_bytes", "still"),
    [
        (GIB, 0, True),
        (GIB + 20 * 2**20, 0, False),
        # At its limit with pages of files, of which programs take ever more: usage stands still.
        (4 * GIB, 3 * GIB, True),
        (4 * GIB, 3 * GIB - 20 * 2**20, False),
    ],
)
def test_a_group_moves_by_what_cannot_be_given_back(usage: int, file_bytes: int, still: bool):
    """The same figure as the resource itself: usage alone would hide a group full of cache."""
    rest = rest_of(snapshot(cgroups=(limited_group(GIB),)))

    assert still is rest.holds(glance(groups=(limited_group(usage, file_bytes),)))


def test_a_group_that_is_gone_asks_for_a_full_look():
    """So does an address space that nears its limit, and one whose process has ended."""
    grouped = rest_of(snapshot(cgroups=(limited_group(GIB),)))
    spaced = rest_of(snapshot(limited=True))

    assert not grouped.holds(glance())
    assert [7] == spaced.spaces
    assert spaced.holds(glance(spaces={7: 3 * GIB}))
    assert not spaced.holds(glance(spaces={7: 4 * GIB}))
    assert not spaced.holds(glance())


def test_scarce_shared_memory_is_asked_for_and_ample_is_not():
    """64 MB of a container fill up unseen by RAM; 12 GB of 24 do not."""
    few = replace(snapshot().host, shm_used_bytes=0, shm_limit_bytes=64 << 20)
    scarce = rest_of(snapshot(host=few))

    assert not rest_of(snapshot()).asks_shm
    assert scarce.asks_shm
    assert scarce.holds(glance(shm_used_bytes=200 << 10))
    assert not scarce.holds(glance(shm_used_bytes=1 << 20))


def test_the_pace_of_glances_follows_the_room():
    """No more than two thirds of it can be gone before the next, at 4 GiB a second."""

    def pace(free: int) -> float:
        seen = snapshot(free=free)
        return glance_s(seen.host, readings(seen, ()), 1.0)

    assert GLANCE_S == pace(24 * GIB) == 2.0
    assert pytest.approx(1.5) == pace(9 * GIB)
    assert 1.0 == pace(GIB)


def test_what_does_not_show_in_a_glance_is_looked_at_in_full():
    """Trainings, cards at work, heat near its limit; idle cards and cool sensors now and then."""
    busy = Hardware(gpus=(Gpu("GPU-1", 0, "H100", processes=(GpuProcess(7, GIB),)),))
    idle = Hardware(gpus=(Gpu("GPU-1", 0, "H100"),))

    def heat(celsius: float) -> Hardware:
        return Hardware(temperatures=(Temperature("cpu", "CPU", celsius, 95.0, 100.0, True),))

    def longest(*agents: AgentState, served: bool = False, **more: object) -> float | None:
        seen = snapshot(**more)
        tasks = group(seen.processes, seen.infos)
        return full_s(seen, readings(seen, tasks), agents, served=served)

    assert FULL_S == longest()
    assert FULL_S == longest(AgentState(KEY, "keras", "/r"))
    assert longest(AgentState(KEY, "keras", "/r", training=True)) is None
    assert longest(hardware=busy) is None
    assert longest(hardware=heat(90.0)) is None
    assert 5.0 == longest(hardware=idle)
    assert 10.0 == longest(hardware=heat(45.0))
    assert 5.0 == longest(served=True)
    assert longest(unix_s=1e9 + 9.0, begun_unix_s=1e9) is None  # its first moments
    assert FULL_S == longest(unix_s=1e9 + 10.0, begun_unix_s=1e9)
    assert FULL_S == longest(unix_s=1e9, begun_unix_s=1e9 + 3600)  # the clock was set back


def test_what_moved_is_told_from_what_is_merely_due():
    """While something moves there is no time to lose; a newcomer alone hurries nobody else."""
    rest = rest_of(snapshot())

    for seen, moved in (
        (glance(newcomers=True), False),
        (glance(mono_s=60.0), False),
        (glance(free=19 * GIB, newcomers=True), True),
        (glance(changed=True), True),
        (glance(), False),
    ):
        rest.holds(seen)
        assert moved is rest.moved


def test_the_forecast_takes_in_what_glances_measured():
    """Growth that glances saw is not forgotten, and a minute with glances is no gap."""
    settings = Settings()
    ram = ResourceKey(ResourceKind.RAM)
    engine = Engine(settings, 0)
    first = snapshot()
    engine.tick(first, (), readings(first, ()), {})
    rest = rest_of(first)
    for second in range(1, 61):
        rest.holds(glance(float(second), int(20 * GIB - second * 200 * 2**20)))
    engine.recall(rest.past())
    last = snapshot(61.0, int(20 * GIB - 61 * 200 * 2**20))
    result = engine.tick(last, (), readings(last, ()), {})

    assert pytest.approx(200 * 2**20, rel=0.1) == result.assessments[ram].slope_per_s
    assert settings.watch.fast_interval_s == result.next_look_s


def test_of_a_minute_of_stillness_few_figures_are_kept():
    """What moved, one every ten seconds, and the last: the forecast's time is not wasted."""
    rest = rest_of(snapshot())
    for second in range(3, 60, 3):
        rest.holds(glance(float(second)))

    past = rest.past()[ResourceKey(ResourceKind.RAM)]

    assert 5 <= len(past) <= 7
    assert 57.0 == past[-1].mono_s
    assert 4 * GIB == past[-1].used


@pytest.mark.parametrize(("swapped", "still"), [(0, True), (GIB // 2, False)])
def test_a_glance_sees_what_groups_above_leave_to_swap(swapped: int, still: bool):
    """The limit of the group depends on it: memory.high and what it can still swap out."""

    def groups(taken: int) -> tuple[CgroupMemory, ...]:
        return (
            CgroupMemory("/sys/fs/cgroup/memory", 2, GIB, 0, 0, None, None, taken, GIB, 0, 0),
            CgroupMemory(FOLDER, 2, GIB, 0, 0, None, 2 * GIB, 0, None, 0, 0),
        )

    host = HostMemory(24 * GIB, 20 * GIB, 8 * GIB, 8 * GIB, None, None, 0, 12 * GIB, None)
    rest = rest_of(snapshot(cgroups=groups(0), host=host))

    seen = {each.path: each for each in groups(swapped)}
    found = glance(swap_free_bytes=8 * GIB, groups=tuple(seen[path] for path in rest.groups))

    assert still is rest.holds(found)
