"""The figures of a card, through the real binding and a stub driver."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from gpu_stub.driver_stub import (
    GIB,
    HANG,
    MISSING,
    NO_PERMISSION,
    NOT_AVAILABLE,
    NOT_SUPPORTED,
    UNKNOWN,
    DriverStub,
)

from watchdog_app.base.linux.cgroups import available_memory
from watchdog_app.base.linux.process import read_comm
from watchdog_app.core.model.hardware import (
    FIGURES,
    ClockEvent,
    Gpu,
    GpuProcess,
    GpuState,
    gpu_place,
    partition,
)


def ours(memory: int | None, percent: float | None = None) -> GpuProcess:
    """This process on a card."""
    name = read_comm(os.getpid())
    return GpuProcess(os.getpid(), memory, name=name, utilization_percent=percent)


def test_every_figure_of_a_card_is_read(stub, ticker):
    """Every field of the record comes from a separate call."""
    stub.set(
        1, used=5 * GIB, reserved=GIB, utilization=87, temperature=71, fan=55, power_mw=301_500
    )
    stub.set(1, limit_mw=320_000, reasons=0x4, ecc=3, remap_pending=1, recovery=1)
    stub.set(1, memory_utilization=43, graphics_clock=1755, graphics_clock_max=1980, pstate=0)
    stub.set(1, memory_clock=2500, memory_clock_max=2619, pcie_generation=4, pcie_generation_max=5)
    stub.set(1, pcie_width=8, rx_kib=3000, tx_kib=20, ecc_corrected=4)
    stub.set(1, ecc_aggregate=5, ecc_corrected_aggregate=6)
    stub.processes(1, [(os.getpid(), 4 * GIB)])

    sample = ticker(stub).reading()

    gpu = sample.gpus[1]
    assert gpu.uuid == "GPU-00000001-1111-2222-3333-444444444444"
    assert (1, "NVIDIA GeForce RTX 3090", "00000000:06:00.0") == (gpu.index, gpu.name, gpu.bus_id)
    assert GpuState.OK is gpu.state
    assert (5 * GIB, GIB, 24 * GIB) == (
        gpu.memory_used_bytes,
        gpu.memory_reserved_bytes,
        gpu.memory_total_bytes,
    )
    assert (87, 71, 95, 98) == (
        gpu.utilization_percent,
        gpu.temperature_c,
        gpu.slowdown_c,
        gpu.shutdown_c,
    )
    assert (55, 301.5, 320, {ClockEvent.SOFTWARE_POWER_CAP}) == (
        gpu.fan_percent,
        gpu.power_w,
        gpu.power_limit_w,
        gpu.throttling,
    )
    assert (3, True, False, "reset") == (
        gpu.ecc_uncorrected,
        gpu.remap_pending,
        gpu.remap_failed,
        gpu.recovery_action,
    )
    assert (43, 1755, 1980, 2500, 2619, "P0") == (
        gpu.memory_utilization_percent,
        gpu.graphics_clock_mhz,
        gpu.graphics_clock_max_mhz,
        gpu.memory_clock_mhz,
        gpu.memory_clock_max_mhz,
        gpu.performance_state,
    )
    assert (4, 5, 8, 16, 3000 * 1024, 20 * 1024) == (
        gpu.pcie_generation,
        gpu.pcie_generation_max,
        gpu.pcie_width,
        gpu.pcie_width_max,
        gpu.pcie_rx_bytes_per_s,
        gpu.pcie_tx_bytes_per_s,
    )
    assert (4, 5, 6) == (
        gpu.ecc_corrected,
        gpu.ecc_uncorrected_aggregate,
        gpu.ecc_corrected_aggregate,
    )
    assert (ours(4 * GIB),) == gpu.processes
    assert () == gpu.notes
    assert "570.124.06" == sample.driver_version
    assert () == sample.faults


@pytest.mark.parametrize("cards", [0, 1, 8, 16])
def test_any_number_of_cards_is_read(tmp_path, ticker, cards):
    """In the order of nvidia-smi; a machine without cards has no fault."""
    sample = ticker(DriverStub(tmp_path, cards=cards)).reading()

    assert list(range(cards)) == [gpu.index for gpu in sample.gpus]
    assert () == sample.faults


def test_the_first_figures_are_awaited_until_they_come_and_not_for_ever(stub, ticker):
    """The daemon samples faster meanwhile, which must not last where a driver is slow."""
    watch = ticker(stub)
    assert watch.tick().awaited
    assert not watch.reading().awaited

    stub.fail("nvmlDeviceGetMemoryInfo_v2", HANG, card=0)
    slow = ticker(stub)
    assert slow.tick().awaited
    assert not slow.tick(4.0).awaited
    stub.heal()


def test_figures_follow_the_driver(stub, ticker):
    """The next reading has the new figures, with their time."""
    watch = ticker(stub)
    first = watch.reading()
    stub.set(0, used=7 * GIB)

    second = watch.reading()

    assert (0, 7 * GIB) == (first.gpus[0].memory_used_bytes, second.gpus[0].memory_used_bytes)
    assert first.read_mono_s < second.read_mono_s <= watch.now


def test_reserved_memory_is_not_taken_for_used(stub, ticker):
    """The old call includes the driver's reserve, so it is used only if the new one is missing."""
    stub.set(0, used=2 * GIB, reserved=GIB)
    stub.set(1, used=2 * GIB, reserved=GIB)
    stub.fail("nvmlDeviceGetMemoryInfo_v2", MISSING, card=1)

    new, old = ticker(stub).reading().gpus

    assert (2 * GIB, GIB) == (new.memory_used_bytes, new.memory_reserved_bytes)
    assert (3 * GIB, None) == (old.memory_used_bytes, old.memory_reserved_bytes)


@pytest.mark.parametrize("how", ["not supported", "nothing"])
def test_a_board_without_memory_of_its_own_has_the_hosts(stub, ticker, how):
    """GB10 and Jetson: the host's RAM is the limit, and a note says so."""
    if how == "nothing":
        stub.set(0, total=0, reserved=0)
    else:
        stub.fail("nvmlDeviceGetMemoryInfo", NOT_SUPPORTED, card=0)
        stub.fail("nvmlDeviceGetMemoryInfo_v2", NOT_SUPPORTED, card=0)

    watch = ticker(stub)
    gpu, other = watch.reading().gpus

    assert gpu.unified_memory
    assert available_memory(None).total_bytes == gpu.memory_total_bytes
    assert 0 < gpu.memory_used_bytes < gpu.memory_total_bytes
    assert any("shares the host's RAM" in note for note in gpu.notes)
    assert not other.unified_memory
    assert watch.reading().gpus[0].unified_memory


def test_a_driver_without_answers_leaves_every_figure_unknown(stub, ticker):
    """Everything is N/A: the card is listed, no value is 0, and notes say why."""
    stub.fail_all(NOT_SUPPORTED, card=0)
    for name in ("HandleByIndex_v2", "UUID", "Name", "PciInfo_v3", "MemoryInfo_v2", "MemoryInfo"):
        stub.fail(f"nvmlDeviceGet{name}", 0, card=0)

    gpu = ticker(stub).reading().gpus[0]

    assert GpuState.OK is gpu.state
    names = [name for name in FIGURES if "slowdown" not in name and "shutdown" not in name]
    assert {"memory_total_bytes", "memory_used_bytes", "memory_reserved_bytes"} == {
        name for name in names if getattr(gpu, name) is not None
    }
    assert [None] * 4 == [
        gpu.performance_state,
        gpu.throttling,
        gpu.remap_failed,
        gpu.recovery_action,
    ]
    assert "Power: this GPU does not tell." in gpu.notes


@pytest.mark.parametrize(
    ("fields", "missing", "note"),
    [
        ({"power_mw": 593_000, "limit_mw": 115_000}, "power_w", "593 W with a limit of 115 W"),
        ({"temperature": 0}, "temperature_c", "0 °C: not believed"),
        ({"temperature": 4_000_000_000}, "temperature_c", "not believed"),
        ({"utilization": 250}, "utilization_percent", "250 %: not believed"),
        ({"limit_mw": 0}, "power_limit_w", "Power limit: the driver says 0 W"),
        ({"fan": 60_000}, "fan_percent", "Fan: the driver says 60000 %"),
        ({"memory_utilization": 101}, "memory_utilization_percent", "Memory bandwidth: the driver"),
        ({"graphics_clock": 60_000}, "graphics_clock_mhz", "60000 MHz: not believed"),
        ({"pcie_width": 0}, "pcie_width", "PCIe width: the driver says 0 lanes"),
        ({"pcie_width": 63}, "pcie_width", "PCIe width: the driver says 63 lanes"),  # link is down
        ({"pcie_generation": 99}, "pcie_generation", "PCIe generation: the driver says 99"),
        ({"used": 25 * GIB, "reserved": 0}, "memory_used_bytes", "more is used than there is"),
        (
            {"used": NOT_AVAILABLE, "reserved": NOT_AVAILABLE, "total": NOT_AVAILABLE},
            "memory_total_bytes",
            "Memory: the driver does not know it",
        ),
    ],
)
def test_figures_that_cannot_be_are_not_shown(stub, ticker, fields, missing, note):
    """None and a note replace the nonsense; the card's other figures stay."""
    stub.set(0, **fields)

    gpu = ticker(stub).reading().gpus[0]

    assert getattr(gpu, missing) is None
    assert any(note in each for each in gpu.notes), gpu.notes
    assert GpuState.OK is gpu.state


def test_all_ones_are_no_reading(stub, ticker):
    """A bus without an answering device reads so: no errors, no throttling, no 16 EiB."""
    stub.set(0, reasons=NOT_AVAILABLE, ecc=NOT_AVAILABLE, reserved=NOT_AVAILABLE, used=GIB)

    gpu = ticker(stub).reading().gpus[0]

    assert (None, None, None) == (gpu.throttling, gpu.ecc_uncorrected, gpu.memory_reserved_bytes)
    assert (GIB, GpuState.OK) == (gpu.memory_used_bytes, gpu.state)


def test_a_figure_of_all_ones_or_an_unknown_state_is_none_without_a_note(stub, ticker):
    """32 is the driver's unknown performance state, 2**32-1 its N/A."""
    nothing = 2**32 - 1
    stub.set(0, graphics_clock=nothing, memory_clock_max=nothing, pcie_width=nothing)
    stub.set(0, rx_kib=nothing, pstate=32, ecc_corrected=NOT_AVAILABLE)

    gpu = ticker(stub).reading().gpus[0]

    assert [None] * 6 == [
        gpu.graphics_clock_mhz,
        gpu.memory_clock_max_mhz,
        gpu.pcie_width,
        gpu.pcie_rx_bytes_per_s,
        gpu.performance_state,
        gpu.ecc_corrected,
    ]
    assert () == gpu.notes


def test_a_figure_of_zero_is_zero(stub, ticker):
    """Nothing is moved, clocked or counted: that is known."""
    stub.set(0, graphics_clock=0, rx_kib=0, tx_kib=0, fan=0, utilization=0, memory_utilization=0)

    gpu = ticker(stub).reading().gpus[0]

    zeros = (
        gpu.graphics_clock_mhz,
        gpu.pcie_rx_bytes_per_s,
        gpu.pcie_tx_bytes_per_s,
        gpu.fan_percent,
        gpu.utilization_percent,
        gpu.memory_utilization_percent,
        gpu.ecc_corrected,
    )
    assert (0,) * 7 == zeros


def test_what_the_driver_says_of_itself_steers_no_terminal(stub, ticker):
    """The version is shown to users."""
    stub.set_driver("\x1b[31m570\n.1")

    assert "?[31m570?.1" == ticker(stub).reading().driver_version


@pytest.mark.parametrize(
    ("fields", "expected", "note"),
    [
        ({"slowdown": 0, "shutdown": 98, "margin": 20, "temperature": 70}, (90, 98), "left"),
        ({"slowdown": 0, "shutdown": 97}, (92, 97), "from the shutdown"),
        ({"slowdown": 0, "shutdown": 0}, (90, 95), "is assumed"),
        ({"slowdown": 88, "shutdown": 0}, (88, 93), "above the slowdown"),
        ({"slowdown": 255, "shutdown": 0}, (90, 95), "is assumed"),
    ],
)
def test_temperature_limits_are_found_otherwise(stub, ticker, fields, expected, note):
    """Newer cards drop these values: the margin or a usual value replaces them, with a note."""
    stub.set(0, **fields)
    if "margin" not in fields:
        stub.fail("nvmlDeviceGetMarginTemperature", MISSING, card=0)

    gpu = ticker(stub).reading().gpus[0]

    assert expected == (gpu.slowdown_c, gpu.shutdown_c)
    assert any(note in each for each in gpu.notes), gpu.notes


def test_older_drivers_are_asked_older_questions(stub, ticker):
    """Throttle reasons and temperature under the names that this driver knows."""
    stub.fail("nvmlDeviceGetCurrentClocksEventReasons", MISSING)
    stub.fail("nvmlDeviceGetTemperature", MISSING)
    stub.set(0, reasons=0x40, temperature=66)

    gpu = ticker(stub).reading().gpus[0]

    assert ({ClockEvent.HARDWARE_THERMAL}, 66) == (gpu.throttling, gpu.temperature_c)


def test_a_name_that_is_no_text_hides_no_card(stub, ticker):
    """The binding raises UnicodeDecodeError for it."""
    stub.set(0, name=b"GeForce \xff\xfe 3090\n")

    gpu = ticker(stub).reading().gpus[0]

    assert "NVIDIA GPU" == gpu.name
    assert any("Name" in note for note in gpu.notes)
    assert GpuState.OK is gpu.state


def test_what_the_driver_refuses_is_said(stub, ticker):
    """No permission for one figure, an unknown error for another; the rest is read."""
    stub.fail("nvmlDeviceGetPowerUsage", NO_PERMISSION, card=0)
    stub.fail("nvmlDeviceGetUtilizationRates", 4242, card=0)

    gpu = ticker(stub).reading().gpus[0]

    assert (None, None, 40) == (gpu.power_w, gpu.utilization_percent, gpu.temperature_c)
    assert "Power: the driver tells it to root alone." in gpu.notes
    assert any(note.startswith("Utilisation: the driver answers with") for note in gpu.notes)


def test_a_figure_comes_back_when_the_driver_has_it_again(stub, ticker):
    """A temporary error leaves no note."""
    watch = ticker(stub)
    stub.fail("nvmlDeviceGetPowerUsage", UNKNOWN, card=0)
    assert watch.reading().gpus[0].power_w is None
    stub.heal()

    gpu = watch.reading().gpus[0]

    assert (25, ()) == (gpu.power_w, gpu.notes)


def test_memory_by_process_that_is_not_known_is_none(stub, ticker):
    """2**64-1 is the driver's N/A, and some containers report 0 bytes."""
    done = subprocess.Popen(["sleep", "100"])
    try:
        stub.processes(0, [(os.getpid(), NOT_AVAILABLE)])
        stub.processes(1, [(done.pid, 0)])

        unknown, nothing = ticker(stub).reading().gpus
    finally:
        done.kill()
        done.wait()

    assert (ours(None),) == unknown.processes
    assert (GpuProcess(done.pid, None, name="sleep"),) == nothing.processes
    assert any("does not tell" in note for note in unknown.notes)
    assert any("0 bytes" in note for note in nothing.notes)


def test_pids_that_are_not_ours_are_foreign(stub, ticker, tmp_path):
    """Another container's processes use memory too, so they are listed."""
    (tmp_path / "proc" / "77").mkdir(parents=True)  # another user's, whose name is hidden
    stub.processes(0, [(77, GIB), (78, 2 * GIB)])

    gpu = ticker(stub, proc=str(tmp_path / "proc")).reading().gpus[0]

    assert (GpuProcess(77, GIB), GpuProcess(78, 2 * GIB, foreign=True)) == gpu.processes


@pytest.mark.parametrize(
    ("comm", "name"), [("Xorg", "Xorg"), ("a\x1b[2J\u202eb", "a?[2J?b"), ("  ", None)]
)
def test_a_program_on_a_card_is_named(stub, ticker, tmp_path, comm, name):
    """By its own short name; never by its arguments."""
    folder = tmp_path / "proc" / "77"
    folder.mkdir(parents=True)
    (folder / "comm").write_text(f"{comm}\n")
    stub.processes(0, [(77, GIB)])

    process = ticker(stub, proc=str(tmp_path / "proc")).reading().gpus[0].processes[0]

    assert (name, False) == (process.name, process.foreign)


def percents(gpu: Gpu) -> dict[int, float | None]:
    return {each.pid: each.utilization_percent for each in gpu.processes}


def test_the_share_of_a_process_is_of_the_time_since_the_last_list(stub, ticker):
    """The first samples may be old; later, a process without a sample was idle."""
    stub.processes(0, [(os.getpid(), GIB), (1, GIB)])
    stub.samples(0, {os.getpid(): 90})
    watch = ticker(stub)
    assert {os.getpid(): None, 1: None} == percents(watch.reading().gpus[0])

    for samples, expected in (({os.getpid(): 60}, (60, 0)), ({}, (0, 0)), ({1: 7}, (0, 7))):
        stub.samples(0, samples)
        watch.tick(5.0)
        assert dict(zip((os.getpid(), 1), expected, strict=True)) == percents(
            watch.reading().gpus[0]
        )


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN, MISSING])
def test_a_share_that_the_driver_does_not_tell_is_none(stub, ticker, code):
    """MIG and WSL do not support it."""
    stub.processes(0, [(os.getpid(), GIB)])
    watch = ticker(stub)
    watch.reading()
    stub.samples(0, {os.getpid(): 50})
    stub.fail("nvmlDeviceGetProcessUtilization", code, card=0)
    watch.tick(5.0)

    gpu = watch.reading().gpus[0]

    assert (ours(GIB),) == gpu.processes
    assert () == gpu.notes


def test_samples_of_other_pids_make_no_listed_process_idle(stub, ticker):
    """In some containers the two lists count pids differently."""
    stub.processes(0, [(os.getpid(), GIB)])
    watch = ticker(stub)
    watch.reading()
    stub.samples(0, {99_999: 50})
    watch.tick(5.0)

    assert {os.getpid(): None} == percents(watch.reading().gpus[0])


def test_damaged_samples_hide_no_later_ones(stub, ticker):
    """A percentage above 100 is garbage, and so is a time in the future."""
    stub.processes(0, [(os.getpid(), GIB), (1, GIB)])
    watch = ticker(stub)
    watch.reading()
    stub.samples(0, {os.getpid(): 4_000_000_000})
    stub.samples(0, {1: 30}, at_us=2**63)
    watch.tick(5.0)
    assert {os.getpid(): 0, 1: 30} == percents(watch.reading().gpus[0])
    stub.samples(0, {os.getpid(): 20}, at_us=time.time_ns() // 1000 + 10**9)
    watch.tick(5.0)

    assert 20 == percents(watch.reading().gpus[0])[os.getpid()]


def test_a_process_that_computes_and_draws_is_listed_once(stub, ticker):
    """Both of the driver's lists contain it, with the same memory."""
    stub.processes(0, [(os.getpid(), GIB)], graphics=[(os.getpid(), GIB), (1, GIB // 2)])

    gpu = ticker(stub).reading().gpus[0]

    assert {1: GIB // 2, os.getpid(): GIB} == {p.pid: p.memory_bytes for p in gpu.processes}


def test_garbled_process_records_are_left_out_and_said(stub, ticker):
    """Some 535 drivers wrote records of 32 bytes instead of 24, so pids came from other fields."""
    stub.set_record_bytes(32)
    stub.processes(0, [(os.getpid(), GIB), (1, GIB), (2, GIB)])

    gpu = ticker(stub).reading().gpus[0]

    assert ours(GIB) in gpu.processes
    assert all(0 < p.pid < 2**22 for p in gpu.processes)
    assert any("garbled" in note for note in gpu.notes)


def test_mig_instances_are_devices_of_their_own(stub, ticker):
    """They come after their card, whose memory counts once."""
    first, second = stub.partition(1, 2)
    stub.set(first, used=3 * GIB)
    stub.processes(second, [(os.getpid(), 2 * GIB)])

    sample = ticker(stub).reading()

    _, card, one, two = sample.gpus
    assert [0, 1, 1, 1] == [gpu.index for gpu in sample.gpus]
    assert (None, None, ()) == (card.memory_used_bytes, card.memory_total_bytes, card.processes)
    assert 40 == card.temperature_c
    assert (card.id, card.id) == (one.parent_id, two.parent_id)
    assert (None, "GI 7 / CI 0") == (partition(card), partition(one))
    assert "GPU 1 GI 7 / CI 0" == gpu_place(one)
    assert ("0000:06:00.0", "0000:06:00.0/gi7.ci0") == (card.id, one.id)
    assert (3 * GIB, 5 * GIB) == (one.memory_used_bytes, one.memory_total_bytes)
    assert (ours(2 * GIB),) == two.processes
    assert (None, None) == (one.temperature_c, one.power_w)
    assert () == sample.faults


def test_a_mig_instance_that_is_taken_down_is_no_loss(stub, ticker):
    """It is no longer listed, without a fault."""
    _, second = stub.partition(1, 2)
    watch = ticker(stub)
    assert 4 == len(watch.reading().gpus)
    stub.remove_card(second)
    watch.now += 20

    sample = watch.until(lambda sample: len(sample.gpus) == 3, step_s=0.2)

    assert () == sample.faults


def test_dear_questions_are_asked_less_often(stub, ticker):
    """Memory each second, process lists every five, fans every ten."""
    stub.processes(0, [(os.getpid(), GIB)])
    watch = ticker(stub)
    watch.reading()
    stub.reset_calls()

    for _ in range(20):
        watch.reading()

    calls = stub.calls()
    assert 40 == calls["nvmlDeviceGetMemoryInfo_v2"]
    assert 2 * 4 * 2 >= calls["nvmlDeviceGetComputeRunningProcesses_v3"]
    assert 2 * 2 >= calls["nvmlDeviceGetFanSpeed"]
    assert 2 * 2 * 2 >= calls["nvmlDeviceGetPcieThroughput"]  # each waits 20 ms
    assert 40 == calls["nvmlDeviceGetUtilizationRates"]  # of processors and memory together
    assert "nvmlInitWithFlags" not in calls
    assert "nvmlDeviceGetName" not in calls


def test_it_is_told_when_processes_were_listed(stub, ticker):
    """A list is shown repeatedly; growth is measured from list to list."""
    stub.processes(0, [(os.getpid(), GIB)])
    watch = ticker(stub)
    first = watch.reading()
    listed = first.gpus[0].processes_mono_s
    later = [watch.reading() for _ in range(3)]

    assert listed == first.read_mono_s
    assert {listed} == {sample.gpus[0].processes_mono_s for sample in later}
    assert [sample.read_mono_s for sample in later] == [listed + 1 + n for n in range(3)]
    watch.tick(5.0)
    again = watch.reading()
    assert again.read_mono_s - 5.0 < again.gpus[0].processes_mono_s <= again.read_mono_s
    assert again.gpus[0].processes_mono_s > listed


def test_a_list_that_could_not_be_made_has_no_time(stub, ticker):
    """An empty list then does not mean that the card is unused."""
    stub.fail("nvmlDeviceGetComputeRunningProcesses_v3", 999, 0)
    stub.fail("nvmlDeviceGetGraphicsRunningProcesses_v3", 999, 0)

    gpu = ticker(stub).reading().gpus[0]

    assert ((), None) == (gpu.processes, gpu.processes_mono_s)


def test_processes_are_listed_at_once_when_memory_moves(stub, watch):
    """A new process must be known within a second."""
    stub.set(0, used=4 * GIB)
    stub.processes(0, [(os.getpid(), 4 * GIB)])

    gpu = watch.reading().gpus[0]

    assert (ours(4 * GIB, 0),) == gpu.processes


@pytest.mark.parametrize(("computing", "least", "most"), [(False, 1, 6), (True, 8, 25)])
def test_an_idle_machine_is_asked_less_often(stub, ticker, computing, least, most):
    """The monitor reads each second while a process computes, every five seconds otherwise."""
    stub.processes(0, [(os.getpid(), GIB)] if computing else [])
    watch = ticker(stub)
    watch.reading()
    stub.reset_calls()

    for _ in range(20):
        watch.tick(1.0, busy=False)
        time.sleep(0.05)

    asked = stub.calls()["nvmlEventSetWait_v2"]
    assert least <= asked <= most


def test_a_card_whose_memory_moves_is_asked_each_second_though_nobody_is_listed(stub, watch):
    """In a container the driver lists no process, but a card can still fill up."""
    stub.reset_calls()

    for second in range(20):
        stub.set(0, used=second * GIB // 4)
        watch.tick(1.0, busy=False)
        time.sleep(0.05)

    assert 8 <= stub.calls()["nvmlEventSetWait_v2"]


def test_a_partitioned_card_without_instances_costs_no_search_each_second(stub, ticker):
    """MIG is on without instances; a new instance is found."""
    stub.partition(0, 0)
    watch = ticker(stub)
    watch.reading()
    stub.reset_calls()

    for _ in range(5):
        sample = watch.reading()

    assert "nvmlDeviceGetMigDeviceHandleByIndex" not in stub.calls()
    assert [None, 24 * GIB] == [gpu.memory_total_bytes for gpu in sample.gpus]
    stub.partition(0, 1)
    sample = watch.until(lambda sample: len(sample.gpus) == 3, step_s=0.3)
    assert sample.gpus[0].id == sample.gpus[1].parent_id
