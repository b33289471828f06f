"""AMD and Intel cards, on laid-out trees of /sys and /proc, read by the real reader process."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gpu_stub.driver_stub import GIB as STUB_GIB
from gpu_stub.driver_stub import HANG, DriverStub
from gpu_stub.gpu_trees import (
    AMD_CARD,
    AMD_SENSORS,
    GIB,
    HOST,
    MACHINES,
    MIB,
    A,
    B,
    Tree,
    amd_client,
    i915_client,
    old_amd_client,
    xe_client,
)

from watchdog_app.core.model.hardware import Gpu, GpuState
from watchdog_app.machine.gpu import Gpus
from watchdog_app.machine.gpu.backend import DeviceError, GpuSample, parse_processes, validate_row
from watchdog_app.machine.gpu.drm import DrmBackend

PATIENCE_S = 60.0
HOST_BYTES = 32 * GIB  # MemTotal of the trees


class Reading:
    """The GPUs of a tree, with a clock that the test moves."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.now = 1000.0
        self.gpus = Gpus(str(tree.folder))

    def until(self, true: Callable[[GpuSample], bool], step_s: float = 0.0) -> GpuSample:
        """Read until `true` accepts the sample; the clock advances by `step_s` every 20 ms."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            self.now += step_s
            sample = self.gpus.read(self.now, busy=True)
            if true(sample):
                return sample
            assert time.monotonic() < give_up, f"it never came: {sample}"
            time.sleep(0.02 if step_s else 0.002)

    def reading(self, seconds: float = 1.0) -> GpuSample:
        """The next reading that every reader starts so many seconds from now."""
        self.now += seconds
        since = self.now

        def read(_: GpuSample) -> bool:
            monitors = self.gpus.monitors.values()
            samples = [each.read(self.now, True) for each in monitors]
            return bool(samples) and all((each.read_mono_s or 0) >= since for each in samples)

        self.until(read)
        return self.gpus.read(self.now, busy=True)

    def cards(self, seconds: float = 1.0) -> tuple[Gpu, ...]:
        return self.reading(seconds).gpus


@pytest.fixture
def machine(tmp_path: Path, monkeypatch) -> Iterator[Callable[[str], Reading]]:
    """Makes a machine of the table."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    made: list[Reading] = []

    def make(name: str) -> Reading:
        tree = Tree(tmp_path / "root")
        MACHINES[name](tree)
        made.append(Reading(tree))
        return made[-1]

    yield make
    for each in made:
        each.gpus.close()


def held(gpu: Gpu) -> dict[int, int | None]:
    return {each.pid: each.memory_bytes for each in gpu.processes}


def test_a_new_amd_card_shows_every_figure_of_sysfs(machine):
    """The link is that of the slot, not the one inside the card."""
    gpu = machine("amd_new").cards()[0]

    assert ("AMD Radeon RX 7900 XTX", A, 0) == (gpu.name, gpu.id, gpu.index)
    assert ("GPU-d4a5f0c1b2e39876", f"0000{A}") == (gpu.uuid, gpu.bus_id)
    assert (4 * GIB, 24 * GIB) == (gpu.memory_used_bytes, gpu.memory_total_bytes)
    assert (87, 34) == (gpu.utilization_percent, gpu.memory_utilization_percent)
    assert (68, 110, 115) == (gpu.temperature_c, gpu.slowdown_c, gpu.shutdown_c)
    assert (251, 327, 40) == (gpu.power_w, gpu.power_limit_w, gpu.fan_percent)
    assert (2400, 1249) == (gpu.graphics_clock_mhz, gpu.memory_clock_mhz)
    assert (3, 8) == (gpu.pcie_generation, gpu.pcie_width)
    assert (4, 16) == (gpu.pcie_generation_max, gpu.pcie_width_max)
    assert (2, 5) == (gpu.ecc_uncorrected, gpu.ecc_corrected)
    assert (False, ()) == (gpu.unified_memory, gpu.notes)


def test_a_client_counts_once_however_many_share_it(machine):
    """Two descriptors and two processes have one client; host memory is not counted."""
    gpu = machine("amd_new").cards()[0]

    assert {100: 3 * GIB, 101: GIB // 2} == held(gpu)
    assert not any(each.foreign for each in gpu.processes)


def test_an_old_kernel_shows_memory_under_its_older_name(machine):
    """Linux before 6.13 has no drm-resident-vram; a card without a name shows its number."""
    gpu = machine("amd_old").cards()[0]

    assert {100: 3 * GIB} == held(gpu)
    assert "AMD GPU [1002:687f]" == gpu.name
    assert (None, None) == (gpu.memory_utilization_percent, gpu.ecc_uncorrected)


def test_an_apu_is_watched_as_ram(machine):
    """Its small VRAM is not the limit, and GTT is not added to it."""
    gpu = machine("apu").cards()[0]

    assert gpu.unified_memory
    assert (HOST_BYTES // 4, HOST_BYTES) == (gpu.memory_used_bytes, gpu.memory_total_bytes)
    assert {100: 5 * GIB} == held(gpu)
    assert ("AMD Radeon 680M", 9.0) == (gpu.name, gpu.power_w)
    assert sum("shares the host's RAM" in note for note in gpu.notes) == 1


def test_two_cards_keep_their_clients_apart(machine):
    """Client numbers are only unique on one card."""
    one, two = machine("amd_two").cards()

    assert [(A, 0), (B, 1)] == [(one.id, one.index), (two.id, two.index)]
    assert ({100: 2 * GIB}, {100: 3 * GIB}) == (held(one), held(two))


def test_arc_with_i915_tells_what_is_not_known(machine):
    """Used memory is that of the processes, and there is no total; power comes from energy."""
    reading = machine("arc")
    reading.cards()
    sensors = f"sys/devices/pci0000:00/{A}/hwmon/hwmon2"
    reading.tree.write(f"{sensors}/energy1_input", 1_000_000_000 + 5 * 123_000_000)
    reading.tree.client(100, 10, i915_client(A, 7, 6 * GIB, GIB, 2_000_000_000))

    gpu = reading.cards(5.0)[0]

    assert ("Intel Arc A770", False) == (gpu.name, gpu.unified_memory)
    assert {100: 6 * GIB, 101: GIB} == held(gpu)
    assert (7 * GIB, None) == (gpu.memory_used_bytes, gpu.memory_total_bytes)
    assert (123, 190) == (gpu.power_w, gpu.power_limit_w)
    assert (2100, 2400, 55) == (
        gpu.graphics_clock_mhz,
        gpu.graphics_clock_max_mhz,
        gpu.temperature_c,
    )
    assert pytest.approx(40) == gpu.utilization_percent  # 2 s of 5 s
    assert {100: pytest.approx(40), 101: 0} == {
        each.pid: each.utilization_percent for each in gpu.processes
    }
    assert any("does not report how much the card has" in note for note in gpu.notes)
    assert any("processes that this user may see" in note for note in gpu.notes)


def test_integrated_graphics_are_watched_as_ram_and_an_ai_engine_is_no_gpu(machine):
    """They have no sensors of their own: unknown, never 0."""
    (gpu,) = machine("integrated").cards()

    assert (HOST, "Intel Iris Xe Graphics", True) == (gpu.id, gpu.name, gpu.unified_memory)
    assert {100: GIB} == held(gpu)
    assert (None, None, None) == (gpu.temperature_c, gpu.power_w, gpu.fan_percent)
    assert any(note.startswith("Temperature: ") for note in gpu.notes)


def test_battlemage_with_xe_has_a_total_and_cycles(machine):
    """A limit of 0 is none, and the next one counts."""
    reading = machine("battlemage")
    reading.cards()
    reading.tree.client(100, 10, xe_client(A, 7, 5 * GIB, 26_000, 200_000))

    gpu = reading.cards(5.0)[0]

    assert ("Intel Arc B580", 12 * GIB) == (gpu.name, gpu.memory_total_bytes)
    assert (5 * GIB, {100: 5 * GIB}) == (gpu.memory_used_bytes, held(gpu))
    assert (190, 61, 100, 105) == (
        gpu.power_limit_w,
        gpu.temperature_c,
        gpu.slowdown_c,
        gpu.shutdown_c,
    )
    assert pytest.approx(25) == gpu.utilization_percent


def test_rocm_shows_the_processes_of_other_users(machine):
    """KFD lists them; an accelerator with little VRAM beside much RAM is no APU."""
    one, two = machine("instinct").cards()

    assert ["AMD Instinct MI300X"] * 2 == [one.name, two.name]
    assert ({100: 90 * GIB}, {100: 80 * GIB, 101: 10 * GIB}) == (held(one), held(two))
    assert (192 * GIB, False) == (one.memory_total_bytes, one.unified_memory)


def test_a_process_in_rocm_and_in_fdinfo_counts_once(machine):
    """With the larger of the two figures."""
    reading = machine("amd_old")
    reading.tree.kfd((A,), {100: {A: 20 * GIB}})

    assert {100: 20 * GIB} == held(reading.cards()[0])

    reading.tree.client(100, 10, old_amd_client(A, 7, 21 * GIB))
    assert {100: 21 * GIB} == held(reading.cards(5.0)[0])


def test_rocm_work_has_no_use_in_fdinfo(machine):
    """A busy process of ROCm would show 0 %, and so would a card that does not report its use."""
    reading = machine("amd_old")
    reading.tree.kfd((A,), {100: {A: 20 * GIB}})
    reading.tree.client(100, 10, amd_client(A, 7, 20 * GIB, dma=5))
    file = reading.tree.folder / f"sys/devices/pci0000:00/{A}/gpu_busy_percent"
    file.unlink()
    reading.cards()

    gpu = reading.cards(5.0)[0]

    assert [None] == [each.utilization_percent for each in gpu.processes]
    assert gpu.utilization_percent is None


def test_the_first_kernels_with_fdinfo_show_memory(machine):
    """Linux 5.14 to 5.18: two descriptors of one process share its PASID."""
    assert {100: 3 * GIB} == held(machine("first_fdinfo").cards()[0])


@pytest.mark.parametrize("awake", [None, [(0, A)]])
def test_partitions_of_a_card_count_for_the_card(tmp_path, awake):
    """Also while another card sleeps: a partition's node has no PCI address."""
    tree = Tree(tmp_path / "root")
    MACHINES["partitions"](tree)
    backend = DrmBackend(root=str(tree.folder))

    assert [0] == backend.devices(1.0, awake)
    (row,) = backend.read(0, 1.0)
    assert [(100, 10 * GIB), (200, 8 * GIB)] == [found[:2] for found in row["processes"]]


def test_a_card_without_sensors_is_no_apu(machine):
    """A virtual machine has such a card, and more RAM than the card has memory."""
    gpu = machine("virtual_function").cards()[0]

    assert (GIB, 24 * GIB) == (gpu.memory_used_bytes, gpu.memory_total_bytes)
    assert not gpu.unified_memory


def test_a_processor_that_works_in_its_vram_is_watched_as_ram(machine):
    """Its driver says that 0 bytes are used."""
    gpu = machine("mi300a").cards()[0]

    assert gpu.unified_memory
    assert (HOST_BYTES // 4, HOST_BYTES) == (gpu.memory_used_bytes, gpu.memory_total_bytes)


def test_memory_that_the_firmware_gave_to_an_apu_is_not_ram(machine):
    """It is a limit of its own, and larger than the rest."""
    gpu = machine("carve_out").cards()[0]

    assert (50 * GIB, 96 * GIB) == (gpu.memory_used_bytes, gpu.memory_total_bytes)
    assert not gpu.unified_memory


def test_power_of_the_package_where_the_card_has_no_meter(machine):
    """xe counts the energy of an Arc A770 as energy2."""
    reading = machine("arc_with_xe")
    reading.cards()
    sensors = f"sys/devices/pci0000:00/{A}/hwmon/hwmon2"
    reading.tree.write(f"{sensors}/energy2_input", 1_500_000_000)

    assert 100 == reading.cards(5.0)[0].power_w


def test_a_fan_at_rest_is_0_and_what_is_absurd_is_unknown(machine):
    """A card may stop its fan; 65535 % is a known fault of amdgpu; no limit is 0."""
    reading = machine("amd_old")
    base = f"sys/devices/pci0000:00/{A}"
    absurd = {"gpu_busy_percent": 65535, "mem_info_vram_used": 2**64 - 1}
    limits = {"mem_info_vram_total": 0, "hwmon/hwmon2/power1_cap": 0}
    stopped = {"hwmon/hwmon2/pwm1": 0, "hwmon/hwmon2/temp2_input": -5000}
    for name, value in (absurd | limits | stopped).items():
        reading.tree.write(f"{base}/{name}", value)

    gpu = reading.cards()[0]

    assert 0 == gpu.fan_percent
    assert (None, None, None) == (
        gpu.utilization_percent,
        gpu.memory_used_bytes,
        gpu.memory_total_bytes,
    )
    assert (None, None) == (gpu.power_limit_w, gpu.temperature_c)


def test_sensors_that_get_another_number_are_found_again(machine):
    """After a resume, hwmon2 may be hwmon9."""
    reading = machine("amd_new")
    reading.cards()
    (sensors,) = reading.tree.folder.rglob("hwmon2")
    sensors.rename(sensors.with_name("hwmon9"))

    assert 68 == reading.cards(11.0)[0].temperature_c


def test_an_idle_card_is_left_alone_so_that_it_can_be_suspended(tmp_path):
    """Each read of amdgpu's sensors delays the suspend by 5 s. Use, and a busy card, end that."""
    tree = Tree(tmp_path / "root")
    MACHINES["hybrid"](tree)
    backend = DrmBackend(root=str(tree.folder))
    sensor = f"sys/devices/pci0000:00/{B}/hwmon/hwmon3/temp2_input"
    client = amd_client(B, 7, 20 * MIB)
    asked = []

    for second in range(0, 120, 5):
        tree.write(sensor, 40000 + second * 100)
        tree.client(100, 10, client | {"drm-resident-vram": f"{second} MiB"})
        backend.devices(1000.0 + second, None)
        (apu,) = backend.read(0, 1000.0 + second)
        (card,) = backend.read(1, 1000.0 + second)
        asked.append(card["temperature_c"] == pytest.approx(40 + second / 10))
        assert 12 == apu["utilization_percent"]

    times = [second for second, read in zip(range(0, 120, 5), asked, strict=True) if not read]
    assert [30, 35, 40, 75, 80, 85] == times

    tree.write(f"sys/devices/pci0000:00/{B}/gpu_busy_percent", 3)
    for second in range(120, 240, 5):
        tree.write(sensor, 40000 + second * 100)
        (card,) = backend.read(1, 1000.0 + second)
        if second >= 135:
            assert 40 + second / 10 == pytest.approx(card["temperature_c"])


def test_vendors_are_read_apart_and_counted_in_one_row(machine, tmp_path, monkeypatch):
    """NVIDIA's come first, as nvidia-smi counts them; a hung NVIDIA driver stops nothing else."""
    stub = DriverStub(tmp_path / "driver", cards=2)
    for name, value in stub.env().items():
        monkeypatch.setenv(name, value)
    reading = machine("mixed")

    gpus = reading.cards()

    assert [0, 1, 2] == [gpu.index for gpu in gpus]
    assert ["NVIDIA", "NVIDIA", "AMD"] == [gpu.name.split()[0] for gpu in gpus]
    assert len({monitor.reader_pid for monitor in reading.gpus.monitors.values()}) == 2
    assert reading.reading().driver_version is not None

    stub.set(0, used=STUB_GIB)
    for card in (0, 1):
        stub.fail("nvmlDeviceGetMemoryInfo_v2", HANG, card=card)
    try:
        sample = reading.until(
            lambda sample: any(gpu.state is GpuState.SILENT for gpu in sample.gpus), 0.5
        )
        amd = sample.gpus[-1]
        assert (2, GpuState.OK, 68) == (amd.index, amd.state, amd.temperature_c)
        assert sample.read_mono_s == pytest.approx(reading.now, abs=5.0)
        assert any("NVIDIA" in fault.message for fault in sample.faults)
        assert not any("AMD" in fault.message for fault in sample.faults)
    finally:
        stub.heal()


def test_a_hung_card_is_skipped_and_the_others_are_read(machine):
    """A read of sysfs that never returns is ended with its process."""
    reading = machine("amd_two")
    reading.cards()
    file = reading.tree.folder / f"sys/devices/pci0000:00/{B}/gpu_busy_percent"
    file.unlink()
    os.mkfifo(file)

    sample = reading.until(
        lambda sample: [GpuState.OK, GpuState.SILENT] == [gpu.state for gpu in sample.gpus], 0.5
    )

    assert any("GPU 1" in fault.message for fault in sample.faults)
    told = " ".join(f"{fault.message} {fault.remedy}" for fault in sample.faults)
    assert "The AMD or Intel driver did not answer about GPU 1 within 5 s." in told
    assert "NVIDIA" not in told
    assert "nvidia" not in told.lower()
    reading.tree.write(f"sys/devices/pci0000:00/{A}/gpu_busy_percent", 11)
    later = reading.until(lambda sample: sample.gpus[0].utilization_percent == 11, 0.5)
    assert GpuState.SILENT is later.gpus[1].state


def test_a_hung_process_leaves_the_cards_their_figures(machine):
    """The file of one client never answers; nothing is said of processes meanwhile."""
    reading = machine("amd_two")
    reading.cards()
    client = reading.tree.folder / "proc/100/fdinfo/10"
    client.unlink()
    os.mkfifo(client)

    one, two = reading.cards(6.0)
    reading.tree.write(f"sys/devices/pci0000:00/{A}/gpu_busy_percent", 11)
    later = reading.cards()

    assert [GpuState.OK] * 2 == [one.state, two.state]
    assert ({}, {}) == (held(one), held(two))
    assert any(note.startswith("Processes: ") for note in one.notes)
    assert 11 == later[0].utilization_percent


@pytest.mark.parametrize("text", [b"", b"\xff\xfe\x80", b"banana\n", b"9" * 200, b"N/A\n", b"-\n"])
def test_an_absurd_file_is_an_unknown_figure(machine, text):
    """Never 0, and no reader ends."""
    reading = machine("amd_new")
    base = reading.tree.folder / "sys/devices/pci0000:00/0000:00:01.0"
    for file in base.rglob("*"):
        words = ("vendor", "driver", "class", "device")
        if file.is_file() and file.name not in words and not file.is_symlink():
            file.write_bytes(text)
    (reading.tree.folder / "proc/100/fdinfo/10").write_bytes(b"drm-pdev:\t\xff\ndrm-memory-vram: x")

    gpu = reading.cards()[0]

    assert GpuState.OK is gpu.state
    assert (None, None, None) == (gpu.memory_used_bytes, gpu.utilization_percent, gpu.power_w)
    assert (None, None) == (gpu.temperature_c, gpu.memory_total_bytes)
    assert gpu.notes


def test_implausible_figures_are_not_believed(machine):
    """A sensor that hangs at its highest value, and a process that is larger than its card."""
    reading = machine("amd_new")
    base = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/" + A
    reading.tree.write(f"{base}/hwmon/hwmon2/temp2_input", 511000)
    reading.tree.write(f"{base}/mem_info_vram_used", 25 * GIB)
    reading.tree.client(100, 10, amd_client(A, 7, 300 * GIB))
    reading.tree.client(100, 11, amd_client(A, 7, 300 * GIB))

    gpu = reading.cards()[0]

    assert (None, None) == (gpu.temperature_c, gpu.memory_used_bytes)
    assert {100: None, 101: GIB // 2} == held(gpu)


def test_a_card_that_vanishes_is_lost(machine):
    """An external card was pulled out; the other one is read on."""
    reading = machine("amd_two")
    reading.cards()
    (reading.tree.folder / f"sys/bus/pci/devices/{B}").unlink()

    one, two = reading.cards()

    assert (GpuState.OK, GpuState.LOST) == (one.state, two.state)
    assert (68, None) == (one.temperature_c, two.temperature_c)


def test_a_process_that_opens_a_card_later_and_one_that_ends(machine):
    """Processes are searched again and again; figures of files that are gone are dropped."""
    reading = machine("amd_new")
    reading.cards()
    reading.tree.link("proc/102/fd/10", "/dev/dri/renderD128")
    reading.tree.client(102, 10, amd_client(A, 9, 2 * GIB))
    for file in (reading.tree.folder / "proc/101/fdinfo").iterdir():
        file.unlink()

    for _ in range(8):
        gpu = reading.cards(6.0)[0]

    assert {100: 3 * GIB, 102: 2 * GIB} == held(gpu)


def test_a_sleeping_card_is_not_touched(machine):
    """Most files of amdgpu wake a card that the kernel has suspended."""
    reading = machine("amd_two")
    file = reading.tree.folder / f"sys/devices/pci0000:00/{B}/gpu_busy_percent"
    file.unlink()
    os.mkfifo(file)
    reading.tree.write(f"sys/devices/pci0000:00/{B}/power/runtime_status", "suspended")
    reading.tree.process(103, amd_client(B, 9, GIB), node=129)
    client = reading.tree.folder / "proc/103/fdinfo/10"
    client.unlink()
    os.mkfifo(client)

    one, two = reading.cards()

    assert [(GpuState.OK, 0), (GpuState.ASLEEP, 1)] == [
        (gpu.state, gpu.index) for gpu in (one, two)
    ]
    assert "AMD GPU" == two.name


def test_a_driver_that_is_unloaded_while_the_card_sleeps_is_named(machine):
    """The message does not speak of NVIDIA."""
    reading = machine("amd_new")
    reading.cards()
    base = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/" + A
    reading.tree.write(f"{base}/power/runtime_status", "suspended")
    asleep = reading.until(lambda sample: sample.gpus[0].state is GpuState.ASLEEP, 1.0)
    for node in ("card0", "renderD128"):
        os.unlink(reading.tree.folder / "sys/class/drm" / node)

    sample = reading.until(lambda sample: bool(sample.faults), 31.0)

    assert () == asleep.faults
    assert "The AMD or Intel driver is gone" in sample.faults[0].message
    assert () == sample.gpus


def test_host_memory_that_moves_does_not_make_integrated_graphics_busy(machine):
    """Else every notebook would read them each second for ever."""
    reading = machine("integrated")
    reading.cards()
    monitor = reading.gpus.monitors["drm"]
    before = reading.gpus.read(reading.now, busy=False).read_mono_s
    reading.tree.write("proc/meminfo", "MemTotal: 33554432 kB\nMemAvailable: 5165824 kB")
    reading.cards()
    since = reading.now

    for _ in range(30):
        reading.now += 0.1
        sample = reading.gpus.read(reading.now, busy=False)
        time.sleep(0.01)

    assert before is not None
    assert since == sample.read_mono_s
    assert monitor.reader_pid is not None


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_no_damaged_file_raises(tmp_path, name):
    """Every row that comes out of damaged trees is valid for the daemon."""
    tree = Tree(tmp_path / "root")
    MACHINES[name](tree)
    files = [
        file
        for file in tree.folder.rglob("*")
        if file.is_file() and not file.is_symlink() and file.name not in ("pci.ids", "meminfo")
    ]
    whole = {file: file.read_bytes() for file in files}
    chance = random.Random(name)
    backend = DrmBackend(root=str(tree.folder))

    for turn in range(12):
        for file, content in whole.items():
            damaged = bytearray(content)
            if damaged and chance.random() < 0.4:
                at = chance.randrange(len(damaged))
                damaged[at : at + chance.randrange(9)] = chance.randbytes(chance.randrange(9))
            file.write_bytes(damaged)
        for index in backend.devices(turn * 11.0, None):
            with contextlib.suppress(DeviceError):
                for row in backend.read(index, turn * 11.0):
                    known = json.loads(json.dumps(row))
                    validate_row(known)
                    parse_processes(known["processes"], lambda pid: (False, None))


def test_the_list_of_devices_names_no_device_of_another_maker(machine):
    """The same number is another device there."""
    reading = machine("amd_new")
    for file in reading.tree.folder.rglob("product_name"):
        file.unlink()

    assert "AMD GPU [1002:744c]" == reading.cards()[0].name


def test_a_card_given_to_a_virtual_machine_is_no_integrated_graphics(tmp_path):
    """Such a machine has it on its first bus."""
    tree = Tree(tmp_path / "root")
    tree.card("0000:00:05.0", "i915", "56a0")
    backend = DrmBackend(root=str(tree.folder))
    (index,) = backend.devices(1.0, None)

    (row,) = backend.read(index, 1.0)

    assert "unified_memory" not in row


def test_trees_name_regions_as_the_kernel_does():
    """The table of machines has the key names of every driver."""
    assert "drm-resident-local0" in i915_client(A, 1, MIB, 0)
    assert "drm-resident-vram0" in xe_client(A, 1, MIB)
    assert "drm-resident-vram" in amd_client(A, 1, MIB)
    assert len(MACHINES) >= 9
    assert AMD_CARD
    assert AMD_SENSORS
