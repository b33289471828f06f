"""Resources of cards, cooling and battery that can run out."""

from __future__ import annotations

import pytest
from support.records import GIB, host, info, process

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.hardware import Gpu, GpuProcess, GpuState, Hardware
from watchdog_app.core.model.machine import ProcessKey, Snapshot
from watchdog_app.core.model.readings import readings
from watchdog_app.core.model.resource import ResourceKind
from watchdog_app.core.model.status import Allocator, Battery, Temperature
from watchdog_app.core.model.tasks import group_processes

NAME = "NVIDIA GeForce RTX 4090"


def gpu(index=0, *, used=10.0, total=24.0, reserved=0.0, pids=(), **more):
    """A card; sizes in GiB, processes as pid or (pid, GiB)."""
    processes = []
    for each in pids:
        pid, size = each if isinstance(each, tuple) else (each, None)
        processes.append(GpuProcess(pid, None if size is None else int(size * GIB)))
    more.setdefault("processes", tuple(processes))
    uuid = more.pop("uuid", f"GPU-{index}")
    return Gpu(
        id=uuid,
        uuid=uuid,
        index=index,
        name=NAME,
        memory_used_bytes=None if used is None else int(used * GIB),
        memory_reserved_bytes=int(reserved * GIB),
        memory_total_bytes=None if total is None else int(total * GIB),
        **more,
    )


def allocator(used, limit, device="GPU:0", uuid="GPU-0"):
    """A framework's own memory report; sizes in GiB."""
    return Allocator(
        device=device, used_bytes=int(used * GIB), limit_bytes=int(limit * GIB), gpu_uuid=uuid
    )


def measure(hardware, pids=(1, 2), agents=()):
    """The hardware readings of a machine with these tasks, and agents by pid."""
    samples = tuple(process(pid, 0, start_time=pid) for pid in pids)
    infos = {each.key: info(each, name=f"p{each.key.pid}.py") for each in samples}
    views = [
        AgentState(ProcessKey(pid, pid), "tensorflow", "/x", allocators=tuple(allocators))
        for pid, allocators in agents
    ]
    snapshot = Snapshot(0.0, 0.0, host(), samples, infos=infos, hardware=hardware)
    found = readings(snapshot, group_processes(samples, infos), views)
    return [each for each in found if each.key.kind is not ResourceKind.RAM]


def of_kind(found, kind):
    """The readings of one kind."""
    return [reading for reading in found if reading.key.kind is kind]


def pids_of(reading):
    """The pids that the resource can hit."""
    return [key.pid for key in reading.tasks]


def heat(**more):
    """A card with one process and these temperatures."""
    return Hardware(gpus=(gpu(pids=[1], **more),))


IDLE = gpu(used=0.1, temperature_c=30.0, slowdown_c=93.0, shutdown_c=98.0)
NOTHING = {
    "a machine without any of it": Hardware(),
    "heat without a figure": heat(temperature_c=None, shutdown_c=93.0),
    "heat without a threshold": heat(temperature_c=60.0),
    "a threshold of nothing": heat(temperature_c=60.0, shutdown_c=0.0),
    "an idle card: eight are no eight series": Hardware(gpus=(IDLE,)),
    "a battery that is charged or rests": Hardware(
        batteries=(Battery(name="BAT0", percent=3.0, discharging=False),), on_mains=True
    ),
}


@pytest.mark.parametrize("name", NOTHING)
def test_what_is_not_there_or_not_known_cannot_run_out(name):
    """An unknown value is not zero."""
    found = measure(NOTHING[name])

    assert [] == [each for each in found if each.key.kind is not ResourceKind.GPU_MEMORY]


def test_memory_of_a_card_is_what_the_driver_reports_and_its_limit_lacks_what_it_reserves():
    """Other monitors show the same used size and the same room; only tasks on the card are hit."""
    card = gpu(used=10.0, reserved=0.5, pids=[(2, 8.0), (77, 1.0)])

    (memory,) = measure(Hardware(gpus=(card,)))

    assert (ResourceKind.GPU_MEMORY, "GPU-0") == (memory.key.kind, memory.key.subject)
    assert (10 * GIB, 23.5 * GIB, "bytes", True) == (
        memory.used,
        memory.limit,
        memory.unit,
        memory.fatal,
    )
    assert f"GPU 0 memory ({NAME})" == memory.label
    assert [2] == pids_of(memory)


@pytest.mark.parametrize(
    "card",
    [
        gpu(used=None),
        gpu(total=None),
        gpu(total=0.0),
        gpu(unified_memory=True),
        gpu(used=0.2),
        gpu(used=None, total=None, state=GpuState.LOST),
        gpu(used=0.0, state=GpuState.ASLEEP),
        gpu(pids=[77]),
    ],
    ids=["unknown", "no total", "zero", "unified", "idle", "lost", "asleep", "another user's"],
)
def test_no_ceiling_where_nothing_of_ours_can_run_out(card):
    """Unified memory is the host's RAM, which is already a resource."""
    assert [] == of_kind(measure(Hardware(gpus=(card,))), ResourceKind.GPU_MEMORY)


@pytest.mark.parametrize(
    "processes",
    [(), (GpuProcess(4711, GIB, foreign=True),), (GpuProcess(1, None, foreign=True),)],
    ids=["none listed", "of the host", "garbage with our number"],
)
def test_where_the_driver_does_not_say_who_is_on_it_it_can_hit_everybody(processes):
    """WSL lists no process; in a container the pids are the host's."""
    (memory,) = measure(Hardware(gpus=(gpu(processes=processes),)))

    assert [1, 2] == pids_of(memory)
    assert "does not say" in memory.note


def test_parts_of_a_card_are_ceilings_instead_of_the_card():
    """Each MIG part has its own memory; the temperature belongs to the card."""
    card = gpu(0, used=30.0, total=80.0, temperature_c=60.0, shutdown_c=95.0)
    parts = (
        gpu(0, uuid="MIG-a", parent_id="GPU-0", used=9.0, total=10.0, pids=[1]),
        gpu(0, uuid="MIG-b", parent_id="GPU-0", used=20.0, total=40.0, pids=[2]),
    )

    found = measure(Hardware(gpus=(card, *parts)))

    assert [("MIG-a", [1]), ("MIG-b", [2])] == [
        (each.key.subject, pids_of(each)) for each in of_kind(found, ResourceKind.GPU_MEMORY)
    ]
    (heat,) = of_kind(found, ResourceKind.TEMPERATURE)
    assert [1, 2] == pids_of(heat)


def test_what_a_framework_says_of_itself_replaces_what_the_driver_sees():
    """TensorFlow reserves 23 of 24 GiB at its start, and uses six."""
    card = gpu(used=23.5, pids=[(1, 23.0), (2, 0.4)])

    found = measure(Hardware(gpus=(card,)), agents=[(1, [allocator(6.0, 22.0)])])

    (own,) = of_kind(found, ResourceKind.GPU_ALLOCATOR)
    assert ("1:GPU:0", 6 * GIB, 22 * GIB, True, [1]) == (
        own.key.subject,
        own.used,
        own.limit,
        own.fatal,
        pids_of(own),
    )
    assert f"tensorflow's memory on GPU 0 ({NAME})" == own.label
    (memory,) = of_kind(found, ResourceKind.GPU_MEMORY)
    assert [2] == pids_of(memory)


@pytest.mark.parametrize(
    ("held", "used", "expected"),
    [
        (23.0, 23.5, 22.0),  # it holds all that it may hold
        (8.0, 10.0, 22.0),  # it may grow, and the card has room
        (8.0, 22.0, 10.0),  # it may grow, but other programs fill the card
        (8.0, 24.5, 8.0),  # the counters are from different moments
        (4.0, 24.0, 6.0),  # never less than what it uses
        (None, 24.0, 22.0),  # the driver does not report what it holds
    ],
)
def test_a_framework_that_grows_reaches_no_further_than_the_card_does(held, used, expected):
    """Its own limit was set at its start; other programs have started since."""
    found = measure(
        Hardware(gpus=(gpu(used=used, pids=[(1, held)]),)), agents=[(1, [allocator(6.0, 22.0)])]
    )

    (own,) = of_kind(found, ResourceKind.GPU_ALLOCATOR)

    assert expected * GIB == own.limit
    assert (expected < 22.0) is ("others hold" in (own.note or ""))


def test_another_program_with_our_number_tells_nothing_of_ours():
    """In a container the driver lists the host's processes."""
    stranger = GpuProcess(1, GIB, foreign=True)
    card = gpu(used=23.0, processes=(stranger,))

    found = measure(Hardware(gpus=(card,)), agents=[(1, [allocator(6.0, 22.0)])])

    (own,) = of_kind(found, ResourceKind.GPU_ALLOCATOR)
    assert 22 * GIB == own.limit


def test_an_allocator_is_a_ceiling_without_any_driver():
    """The library may hang or be missing: the framework still knows."""
    (own,) = measure(Hardware(), agents=[(1, [allocator(6.0, 22.0, uuid=None)])])

    assert ("tensorflow's memory on GPU:0", 22 * GIB) == (own.label, own.limit)


def test_an_allocator_without_a_card_is_on_the_only_one():
    """Old TensorFlow reports no device identity."""
    card = gpu(used=23.5, pids=[(1, 23.0)])

    found = measure(Hardware(gpus=(card,)), agents=[(1, [allocator(6.0, 22.0, uuid=None)])])

    assert [ResourceKind.GPU_ALLOCATOR] == [each.key.kind for each in found]


def test_graphics_in_the_processor_leave_a_card_the_only_one():
    """A notebook lists both; frameworks compute on the card."""
    card = gpu(used=6.0, pids=[(1, 6.0)])
    integrated = gpu(index=1, used=8.0, total=32.0, unified_memory=True)

    found = measure(
        Hardware(gpus=(card, integrated)), agents=[(1, [allocator(6.0, 22.0, uuid=None)])]
    )

    (own,) = (each for each in found if each.key.kind is ResourceKind.GPU_ALLOCATOR)
    assert card.id == own.device


def test_nonsense_of_an_agent_is_left_out():
    """A limit of zero, a repeated device, an agent without a task."""
    found = measure(
        Hardware(),
        agents=[
            (1, [allocator(1.0, 0.0), allocator(1.0, 2.0), allocator(1.5, 2.0)]),
            (99, [allocator(1.0, 2.0)]),
        ],
    )

    assert [("1:GPU:0", GIB)] == [(each.key.subject, each.used) for each in found]


def test_a_card_has_a_ceiling_for_switching_off_and_none_for_slowing_down():
    """Only the shutdown kills."""
    card = gpu(3, pids=[2], temperature_c=71.0, slowdown_c=93.0, shutdown_c=98.0)

    (off,) = of_kind(measure(Hardware(gpus=(card,))), ResourceKind.TEMPERATURE)

    assert ("GPU-3/shutdown", 71.0, 98.0, "celsius", True, [2]) == (
        off.key.subject,
        off.used,
        off.limit,
        off.unit,
        off.fatal,
        pids_of(off),
    )
    assert "heat of GPU 3 (switches off at 98 °C)" == off.label


def test_heat_of_the_machine_concerns_everybody():
    """Each sensor with a known threshold counts."""
    found = measure(
        Hardware(
            temperatures=(
                Temperature(
                    key="coretemp/Package id 0",
                    label="CPU",
                    celsius=70.0,
                    slowdown_c=100.0,
                    shutdown_c=105.0,
                    is_cpu=True,
                ),
                Temperature(
                    key="nvme/Composite",
                    label="NVMe disk",
                    celsius=50.0,
                    slowdown_c=82.0,
                    shutdown_c=85.0,
                ),
                Temperature(
                    key="thermal_zone0",
                    label="mainboard",
                    celsius=30.0,
                    slowdown_c=None,
                    shutdown_c=119.0,
                ),
                Temperature(key="jc42/temp1", label="memory module", celsius=40.0),
            )
        )
    )

    assert [
        ("CPU heat (switches off at 105 °C)", True),
        ("heat of the NVMe disk (switches off at 85 °C)", True),
        ("heat of the mainboard (switches off at 119 °C)", True),
    ] == [(each.label, each.fatal) for each in found]
    assert all([1, 2] == pids_of(each) for each in found)


def test_a_battery_that_is_drained_can_run_empty():
    """Used is the charge that was taken; the last twentieth cannot be used."""
    (battery,) = measure(
        Hardware(
            batteries=(
                Battery(
                    name="BAT0", percent=40.0, discharging=True, energy_j=80_000.0, full_j=200_000.0
                ),
            ),
            on_mains=False,
        )
    )

    assert (ResourceKind.BATTERY, "battery", "ratio", True, [1, 2]) == (
        battery.key.kind,
        battery.label,
        battery.unit,
        battery.fatal,
        pids_of(battery),
    )
    assert (pytest.approx(0.6), 0.95) == (battery.used, battery.limit)


@pytest.mark.parametrize(
    ("batteries", "expected"),
    [
        (
            (
                Battery(name="a", percent=50.0, discharging=True),
                Battery(name="b", percent=100.0, discharging=False),
            ),
            0.25,
        ),
        (
            (
                Battery(name="a", percent=50.0, discharging=True, energy_j=30.0, full_j=60.0),
                Battery(name="b", percent=100.0, discharging=False, energy_j=20.0, full_j=20.0),
            ),
            0.375,
        ),
        (
            (
                Battery(name="a", percent=50.0, discharging=True, energy_j=30.0, full_j=60.0),
                Battery(name="b", percent=100.0, discharging=False),
            ),
            0.25,
        ),
        ((Battery(name="a", percent=100.0, discharging=True),), 0.0),
    ],
    ids=["percents", "energies", "one does not tell", "full"],
)
def test_several_batteries_are_one_ceiling(batteries, expected):
    """By energy if all of them report it, because their sizes differ."""
    (found,) = measure(Hardware(batteries=batteries, on_mains=False))

    assert pytest.approx(expected) == found.used


def test_a_supply_that_is_too_weak_lets_the_battery_run_empty():
    """It is plugged in and still drains."""
    (found,) = measure(
        Hardware(batteries=(Battery(name="BAT0", percent=30.0, discharging=True),), on_mains=True)
    )

    assert "too weak" in found.note
