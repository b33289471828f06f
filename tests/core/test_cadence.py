"""The sampling interval: short near a limit, long while nothing changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.records import GIB, host, info, process

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.hardware import Gpu, GpuProcess, Hardware
from watchdog_app.core.model.machine import CgroupMemory, ProcessKey, Snapshot
from watchdog_app.core.model.readings import readings
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.model.status import Temperature
from watchdog_app.core.model.tasks import group_processes
from watchdog_app.core.policy.cadence import LONGEST_S, interval_s
from watchdog_app.core.policy.engine import Engine

MIB = 1 << 20
KEY = ProcessKey(7, 70)
FOLDER = "/sys/fs/cgroup/memory/train"


def snapshot(mono_s: float = 0.0, free: int = 20 * GIB, **more: object) -> Snapshot:
    machine = host(24 * GIB, free, shm_used_bytes=0, shm_limit_bytes=12 * GIB)
    sample = process(7, start_time=70, state="S", vsize_bytes=more.pop("vsize", 3 * GIB))
    limit = 8 * GIB if more.pop("limited", False) else None
    about = info(
        sample, name="a.py", cgroup=FOLDER, rlimit_as_bytes=limit,
        started_unix_s=more.pop("begun_unix_s", None),
    )  # fmt: skip
    found = Snapshot(mono_s, 1e9 + mono_s, machine, (sample,), infos={KEY: about})
    return replace(found, **more)


def in_group(usage: int, file_bytes: int = 0, limit: int = 9 * GIB) -> Snapshot:
    found = CgroupMemory(FOLDER, 1, usage, file_bytes, 0, limit, None, 0, None, 0)
    return snapshot(cgroups=(found,))


def with_shm(used: int, limit: int) -> Snapshot:
    seen = snapshot()
    return replace(seen, host=replace(seen.host, shm_used_bytes=used, shm_limit_bytes=limit))


def due_s(seen: Snapshot, before: Snapshot | None = None, *agents: AgentState) -> float:
    """The interval that a fresh engine asks for."""
    tasks = group_processes(seen.processes, seen.infos)
    found = readings(seen, tasks)
    earlier = found
    if before is not None:
        earlier = readings(before, group_processes(before.processes, before.infos))
    result = Engine(Settings(), own_uid=0).tick(seen, tasks, found, {})
    return interval_s(result, seen, found, before=earlier, agents=agents, usual_s=1.0)


def test_the_first_figures_of_the_gpus_are_fetched_soon():
    """`watchdog start && watchdog status` shows the GPUs."""
    awaited = snapshot(hardware=Hardware(gpus_awaited=True))

    assert 0.25 == due_s(awaited, awaited)
    assert due_s(snapshot(), snapshot()) >= 1.0


@pytest.mark.parametrize(
    ("before", "now", "moved"),
    [
        (snapshot(), snapshot(), False),
        (snapshot(), snapshot(free=20 * GIB - 90 * MIB), False),  # less than a two-hundredth
        (snapshot(), snapshot(free=20 * GIB - 110 * MIB), True),
        # memory that was freed may fill again
        (snapshot(), snapshot(free=20 * GIB + 110 * MIB), True),
        (in_group(GIB), in_group(GIB), False),
        (in_group(GIB), in_group(GIB + 60 * MIB), True),
        (in_group(GIB), in_group(GIB, limit=8 * GIB), True),  # the user changed the limit
        # At its limit, a group drops file pages while programs grow: its usage stays constant.
        (in_group(9 * GIB, 8 * GIB), in_group(9 * GIB, 8 * GIB - 60 * MIB), True),
        (snapshot(), in_group(GIB), True),
        (snapshot(limited=True), snapshot(limited=True, vsize=4 * GIB), True),
        (with_shm(0, 64 * MIB), with_shm(200 << 10, 64 * MIB), False),
        (with_shm(0, 64 * MIB), with_shm(MIB, 64 * MIB), True),
        (with_shm(0, 12 * GIB), with_shm(MIB, 12 * GIB), False),
    ],
)
def test_while_memory_moves_it_is_sampled_at_the_usual_rate(
    before: Snapshot, now: Snapshot, moved: bool
):
    """A change of a two-hundredth of the free memory counts, for each kind of memory."""
    assert moved is (due_s(now, before) == 1.0)


def test_the_interval_follows_the_room():
    """At 4 GiB/s at most two thirds of the free memory can fill before the next sample."""
    assert LONGEST_S == due_s(snapshot(free=20 * GIB))
    assert pytest.approx(1.5) == due_s(snapshot(free=9 * GIB))
    assert due_s(snapshot(free=4 * GIB)) <= 1.0
    assert pytest.approx(1.5) == due_s(in_group(GIB, limit=10 * GIB))


def heat(celsius: float) -> Hardware:
    return Hardware(
        temperatures=(
            Temperature(
                key="cpu",
                label="CPU",
                celsius=celsius,
                slowdown_c=95.0,
                shutdown_c=100.0,
                is_cpu=True,
            ),
        )
    )


@pytest.mark.parametrize(
    ("seen", "agents", "rests"),
    [
        (snapshot(), (AgentState(KEY, "keras", "/r"),), True),
        (snapshot(), (AgentState(KEY, "keras", "/r", training=True),), False),
        (snapshot(), (AgentState(KEY, "keras", "/r", saving=True),), False),
        (snapshot(hardware=Hardware(gpus=(Gpu("GPU-1", 0, "H100"),))), (), True),
        (
            snapshot(
                hardware=Hardware(gpus=(Gpu("1", 0, "H100", processes=(GpuProcess(7, GIB),)),))
            ),
            (),
            False,
        ),
        (snapshot(hardware=heat(45.0)), (), True),
        (snapshot(hardware=heat(90.0)), (), False),
        (snapshot(unix_s=1e9 + 9.0, begun_unix_s=1e9), (), False),  # it has just started
        (snapshot(unix_s=1e9 + 10.0, begun_unix_s=1e9), (), True),
        (snapshot(unix_s=1e9, begun_unix_s=1e9 + 3600), (), True),  # the clock was set back
    ],
)
def test_work_is_sampled_at_the_usual_rate(
    seen: Snapshot, agents: tuple[AgentState, ...], rests: bool
):
    """Trainings, busy GPUs, heat near its limit and new processes keep the usual rate."""
    assert rests is (due_s(seen, None, *agents) == LONGEST_S)


def test_near_an_end_the_policy_decides():
    """A leak that ends within seconds is sampled more often than the usual interval."""
    engine = Engine(Settings(), own_uid=0)
    before, found = (), ()
    for at in range(40):
        seen = snapshot(float(at), free=20 * GIB - at * (GIB // 2) + at)
        tasks = group_processes(seen.processes, seen.infos)
        before, found = found, readings(seen, tasks)
        result = engine.tick(seen, tasks, found, {})

    assert result.next_sample_s < 1.0
    assert result.next_sample_s == interval_s(
        result, seen, found, before=before, agents=(), usual_s=1.0
    )
    usual = interval_s(result, seen, found, before=before, agents=(), usual_s=0.01)
    assert 0.01 == usual
