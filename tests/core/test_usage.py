"""The memory that a task holds, on which the attribution relies."""

from __future__ import annotations

import pytest
from support import records

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import (
    Assessment,
    Attribution,
    Contributor,
    Forecast,
    Observation,
    Regime,
    Stage,
)
from watchdog_app.core.model.hardware import Hardware
from watchdog_app.core.model.history import History
from watchdog_app.core.model.machine import CgroupMemory, ProcessKey, Snapshot
from watchdog_app.core.model.readings import readings
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.model.status import Allocator
from watchdog_app.core.model.tasks import group_processes
from watchdog_app.core.policy.attribution import attribute
from watchdog_app.core.policy.tracker import (
    TaskUsage,
    Tracker,
    build_outlooks,
    unreclaimable_bytes,
    without_stopped_growth,
)

MIB, GIB = 1 << 20, 1 << 30
GROUP = "/sys/fs/cgroup/train"
HOST = records.host()


def process(pid, rss, *, shared=None, shmem=None, swap=0, cow=None, ppid=0):
    """A sample; sizes in MiB."""

    def size(value):
        return None if value is None else int(value * MIB)

    return records.process(
        pid, ppid, start_time=pid, rss=rss * MIB, shared_bytes=size(shared), swap_bytes=size(swap),
        cow_bytes=size(cow), shmem_bytes=size(shmem),
    )  # fmt: skip


def infos(*samples):
    """A script in the group for each sample."""
    return {each.key: records.info(each, name=f"p{each.key.pid}", cgroup=GROUP) for each in samples}


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([process(1, 500)], 500),  # the shared part is unknown
        ([process(1, 500, shared=100)], 400),  # the shmem part is unknown
        ([process(1, 500, shared=100, shmem=0)], 400),
        ([process(1, 500, shared=100, shmem=60)], 460),
        ([process(1, 500, shared=600)], 0),  # the counters are from different moments
        ([process(1, 500, swap=50)], 550),
        ([process(1, 500, swap=None)], 500),
        ([process(1, 500, shared=90, shmem=80), process(2, 200, shared=90, shmem=80, ppid=1)], 600),
        ([process(1, 500), process(2, 450, cow=400, ppid=1)], 550),
        ([process(1, 500), process(2, 450, cow=999, ppid=1)], 500),
    ],
)
def test_a_task_holds_what_cannot_be_taken_back_from_it(members, expected):
    """Its own pages, shared memory once, and swap; but not file pages."""
    (task,) = group_processes(members, infos(*members))

    assert expected * MIB == unreclaimable_bytes(task)


def guilty_of(first, second):
    """The culprits of a group that fills with unreclaimable memory, after half a minute."""
    usage, resource = (TaskUsage(), TaskUsage()), History()
    for second_s in range(31):
        samples = (first(second_s), second(second_s))
        known = infos(*samples)
        tasks = group_processes(samples, known)
        held = sum(
            each.rss_bytes - (each.shared_bytes or 0) + (each.shmem_bytes or 0) for each in samples
        )
        files = sum((each.shared_bytes or 0) - (each.shmem_bytes or 0) for each in samples)
        memory = CgroupMemory(GROUP, 2, held + files, files, 0, 8 * GIB, None, None, None, None)
        snapshot = Snapshot(float(second_s), 0.0, HOST, samples, (memory,), infos=known)
        (reading,) = (
            each for each in readings(snapshot, tasks) if each.key.kind is ResourceKind.CGROUP
        )
        resource.add(float(second_s), reading.used)
        for each, task in zip(usage, tasks, strict=True):
            each.add(float(second_s), task)
    growths = {task.key: each.memory for task, each in zip(tasks, usage, strict=True)}
    return [
        each.name for each in attribute(reading, 20.0 * MIB, resource, tasks, growths).actionable
    ]


@pytest.mark.parametrize(
    "shared",
    [
        pytest.param(lambda _: {"shared": 10, "shmem": 0}, id="its own memory"),
        # It cannot be reclaimed: it counts as shared, but is not a file.
        pytest.param(lambda t: {"shared": 20 * t, "shmem": 20 * t}, id="shared memory"),
    ],
)
def test_who_reads_a_mapped_file_is_not_blamed_for_what_its_neighbour_fills(shared):
    """The kernel reclaims file pages when another program needs the memory."""

    def reader(t):
        return process(1, 100 + 80 * t, shared=80 * t, shmem=0)

    assert ["p2"] == guilty_of(reader, lambda t: process(2, 100 + 20 * t, **shared(t)))


@pytest.mark.parametrize(
    ("kind", "device", "per_s"),
    [(ResourceKind.GPU_MEMORY, "GPU-0", 100.0), (ResourceKind.TEMPERATURE, None, 0.0)],
)
def test_what_a_card_said_once_is_one_sample_however_often_it_is_shown(kind, device, per_s):
    """A repeated value is not a plateau; the machine's own sensors are read in each sample."""
    tracker, key = Tracker(Settings()), ResourceKey(kind, "x")
    for second in range(4):
        hardware = Hardware(gpus_mono_s=min(1.0, second))
        used = 100.0 * min(1.0, second)
        reading = Reading(key, "x", used, 1000.0, True, (), device=device)
        snapshot = Snapshot(float(second), 0.0, HOST, (), hardware=hardware)
        tracker.update(Observation(snapshot, {}, (reading,), {}))

    assert per_s == tracker.pace_per_s(key)


def test_the_cpu_use_is_that_of_the_last_second_or_more():
    """The kernel counts CPU time coarsely, and the time of a worker that ended is gone."""
    usage, shown = TaskUsage(), []
    for mono_s, cpu_s in ((10.0, 5.0), (10.5, 5.5), (12.0, 8.0), (12.5, 8.0), (13.0, 2.0)):
        usage.add(mono_s, records.task(records.process(1, cpu_s=cpu_s)))
        shown.append(usage.cpu_percent)

    assert [None, None, 150.0, 150.0, 0.0] == shown


def test_a_report_without_an_allocator_is_no_new_sample_of_one():
    """Two processes of a task report; only one of them holds memory on the card."""
    tracker, task = Tracker(Settings()), records.task(records.process(1))
    key = ResourceKey(ResourceKind.GPU_ALLOCATOR, "1:GPU:0")
    memory = (Allocator(device="GPU:0", used_bytes=1, limit_bytes=2),)
    for second in range(4):
        shown_s = min(1.0, second)
        agents = (
            AgentState(task.key, "torch", "/r", reported_mono_s=shown_s, allocators=memory),
            AgentState(ProcessKey(2, 2), "torch", "/r", reported_mono_s=float(second)),
        )
        reading = Reading(key, "x", 100.0 * shown_s, 1000.0, True, (task.key,))
        snapshot = Snapshot(float(second), 0.0, HOST, ())
        tracker.update(Observation(snapshot, {task.key: task}, (reading,), {task.key: agents}))

    assert 100.0 == tracker.pace_per_s(key)


AHEAD = Forecast(100.0, 50.0, 200.0)


@pytest.mark.parametrize(
    ("stage", "forecast", "notify", "fatal", "grows", "shown"),
    [
        (Stage.OK, None, False, True, True, False),
        (Stage.OK, AHEAD, False, True, True, True),
        (Stage.WATCH, None, False, True, True, True),
        (Stage.WATCH, AHEAD, False, True, False, False),
        # A task that does not grow is shown the end only if it certainly dies with it.
        (Stage.SAVE, AHEAD, True, True, False, True),
        (Stage.SAVE, AHEAD, False, True, False, False),
        (Stage.WARN, AHEAD, True, True, False, False),
        (Stage.SAVE, AHEAD, True, False, False, False),
    ],
)
def test_a_task_is_shown_the_end_that_it_brings_on_or_dies_with(
    *, stage, forecast, notify, fatal, grows, shown
):
    """An idle notebook has no time to exhaustion just because another program grows."""
    one, key = records.task(records.process(1)), ResourceKey(ResourceKind.CGROUP, GROUP)
    reading = Reading(key, "g", 1.0, 2.0, fatal, (one.key,))
    known = Assessment(stage, Regime.LINEAR, 1.0, 0.5, forecast, "rising", notify=notify)
    blamed = Attribution((Contributor(one.key, "x", 1.0, 1.0),) if grows else ())

    found = build_outlooks((one,), {one.key: TaskUsage()}, (reading,), {key: known}, {key: blamed})

    assert (key if shown else None) == found[one.key].resource
    assert (known if shown else None) == found[one.key].assessment


@pytest.mark.parametrize(("share", "shown"), [(0.2, True), (0.9, False)])
def test_a_stopped_task_hides_the_forecast_only_of_growth_that_it_caused(share, shown):
    """If other programs fill the limit, it is still filled while the task is stopped."""
    one = records.task(records.process(1, state="T"))
    known = Assessment(Stage.WARN, Regime.LINEAR, 1.0, 0.5, AHEAD, "rising")
    blamed = Attribution((Contributor(one.key, "x", 1.0, share),), 1.0 - share, 5.0)

    found = without_stopped_growth(known, blamed, {one.key: one})

    assert (AHEAD if shown else None) == found.forecast
