"""The daemon's status of one sample, as records."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core.card_world import WALL_S, CardWorld

from watchdog_app.core.model.hardware import Gpu
from watchdog_app.core.model.resource import ResourceKey, ResourceKind
from watchdog_app.core.model.status import Daemon, Guard
from watchdog_app.daemon.status import AssessedSample, kind_name, status


def sample_of(world: CardWorld, *gpus: Gpu) -> AssessedSample:
    hardware = replace(world.snapshot.hardware, gpus=gpus)
    snapshot = replace(world.snapshot, hardware=hardware)
    return AssessedSample(snapshot, tuple(world.tasks()), (), world.result)


@pytest.fixture
def world():
    """One card, one program, a few seconds."""
    world = CardWorld(cards=1)
    world.program(100, "job.py")
    world.run(5)
    return world


def built(sample: AssessedSample | None, **more):
    about = {"daemon": Daemon(pid=1), "host_name": "lab7", "paused": (), "faults": ()}
    return status(sample, **{**about, **more}, now_unix_s=WALL_S)


def test_before_the_first_sample_nothing_is_called_well():
    """Only the daemon and its problems are known."""
    found = built(None)

    assert ("unknown", "lab7", []) == (
        found.to_json()["level"],
        found.host.name,
        found.to_json()["tasks"],
    )


def test_a_partition_names_its_gpu_and_its_instances(world):
    """As nvidia-smi writes them; a whole GPU has neither."""
    whole = Gpu("0000:65:00.0", 0, "H100")
    part = Gpu("0000:65:00.0/gi3.ci0", 0, "H100 MIG", parent_id=whole.id)

    first, second = built(sample_of(world, whole, part)).gpus

    assert (None, None) == (first.partition, first.parent_id)
    assert ("GI 3 / CI 0", whole.id) == (second.partition, second.parent_id)


def test_a_gpu_that_reports_no_clock_events_is_not_called_unthrottled(world):
    """Null means unknown; an empty list means that the clocks are not lowered."""
    silent = Gpu("0000:65:00.0", 0, "A")
    free = replace(silent, throttling=frozenset())
    slow = replace(silent, throttling=frozenset(("zz_new", "power_brake", "software_thermal")))

    found = built(sample_of(world, silent, free, slow)).to_json()["gpus"]

    assert [None, [], ["software_thermal", "power_brake", "zz_new"]] == [
        each["throttling"] for each in found
    ]


def test_a_task_at_the_limit_of_its_guard_is_stopped_and_a_pause_of_ours_comes_first(world):
    """The state says what the user must do."""
    sample, key = sample_of(world), next(iter(world.tasks())).key
    guards = {key: Guard(pid=100, stopped=True, limit_bytes=1, used_bytes=1)}

    (stopped,) = built(sample, guards=guards).tasks
    (paused,) = built(sample, guards=guards, paused=[key]).tasks

    assert ("stopped", False, 100) == (stopped.state, stopped.paused_by_watchdog, stopped.guard.pid)
    assert ("paused", True) == (paused.state, paused.paused_by_watchdog)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (ResourceKey(ResourceKind.BATTERY), "battery"),
        (ResourceKey(ResourceKind.GPU_HEALTH, "x"), "gpu_fault"),
        (ResourceKey(ResourceKind.GUARD, "x"), "guard"),
        (ResourceKey(ResourceKind.CGROUP, "x"), "cgroup"),
    ],
)
def test_kinds_have_the_names_of_the_schema(key, name):
    """The policy's name does not matter."""
    assert name == kind_name(key)
