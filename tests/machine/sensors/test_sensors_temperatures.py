"""Temperatures, from trees as kernels show them."""

from __future__ import annotations

import shutil

import psutil
import pytest
from device_trees import LAPTOP_CPU, DeviceTree

from watchdog_app.machine.sensors.temperatures import TemperatureReader


@pytest.fixture
def tree(tmp_path):
    """An empty /sys."""
    return DeviceTree(tmp_path / "sys")


@pytest.fixture
def reader(tree):
    """A reader of it."""
    return TemperatureReader(str(tree.root))


def heat(reader, now=0.0):
    """Only the temperatures."""
    return reader.read(now)


def told(reader, now=0.0):
    """Label, degrees, slowdown, shutdown of each."""
    return [(t.label, t.celsius, t.slowdown_c, t.shutdown_c) for t in heat(reader, now)]


def chip(number: int, name: str, **values):
    """What adds a chip to a tree."""
    return lambda tree: tree.hwmon(number, name, **values)


def zone(number: int, kind: str, now: object, *points: tuple[str, int]):
    """What adds a thermal zone with its trip points to a tree."""
    return lambda tree: tree.zone(number, kind, now, *points)


def disk(number: int = 0, now: object = 40000, **values):
    return chip(number, "nvme", temp1_input=now, **values)


CPU, CPU_TOLD = chip(0, "coretemp", **LAPTOP_CPU), ("CPU", 61.0, 100.0, None)
TCTL = {"temp1_input": 82000, "temp1_label": "Tctl", "temp1_max": 70000}
TDIE = {"temp2_input": 62000, "temp2_label": "Tdie", "temp3_input": 58000, "temp3_label": "Tccd1"}
COMPOSITE = {"temp1_label": "Composite", "temp1_max": 81850, "temp1_crit": 84850}
NO_TEMPERATURE = (
    -128000, 0, 255000, 127000, 65261850, "N/A", "", b"\xff\xfe", "55", 10**30, -1, "6 1000"
)  # fmt: skip
TREES = {
    "none in a virtual machine": ([], []),
    "the package of an Intel processor, which slows down at its crit": ([CPU], [CPU_TOLD]),
    "an AMD processor, by Tctl with its offset":
        ([chip(0, "k10temp", **TCTL)], [("CPU", 82.0, None, None)]),
    "an AMD processor, by Tdie where there is one":
        ([chip(0, "k10temp", **TCTL, **TDIE)], [("CPU", 62.0, None, None)]),
    "two processors, with a number each":
        ([chip(n, "coretemp", temp1_input=(5 + n) * 10000, temp1_label=f"Package id {n}")
          for n in (0, 1)], [("CPU 0", 50.0, None, None), ("CPU 1", 60.0, None, None)]),
    "the cores where there is no package":
        ([chip(0, "coretemp", temp2_input=50000, temp2_label="Core 0", temp3_input=52000)],
         [("CPU 0", 50.0, None, None), ("CPU 1", 52.0, None, None)]),
    "a disk by its composite, as its single sensors have no thresholds":
        ([disk(3, 44850, **COMPOSITE, temp2_input=60850, temp2_label="Sensor 1",
               temp2_max=65261850)], [("NVMe disk", 44.85, 81.85, 84.85)]),
    "a disk whose firmware slows down above its end":
        ([disk(temp1_max=90000, temp1_crit=85000)], [("NVMe disk", 40.0, None, 85.0)]),
    "no disk that the question would spin up": ([chip(1, "drivetemp", temp1_input=40000)], []),
    "no AMD card, which is read with the GPUs":
        ([chip(2, "amdgpu", temp1_input=50000, temp1_label="edge", temp1_crit=100000)], []),
    "no unconnected sensor of a mainboard": (
        [CPU, chip(1, "nct6775", temp1_input=117000, temp1_label="AUXTIN0", temp1_max=80000,
                   temp1_crit=90000)], [CPU_TOLD]),
    "a zone that slows down at its highest passive point": (
        [zone(0, "acpitz", 41000, ("critical", 103000), ("hot", 98000), ("passive", 90000),
              ("passive", 60000), ("active", 50000), ("passive", -274000))],
        [("mainboard", 41.0, 90.0, 103.0)]),
    "a zone whose passive point is passed all day":
        ([zone(0, "acpitz", 41000, ("critical", 103000), ("passive", 50000))],
         [("mainboard", 41.0, None, 103.0)]),
    "a zone that is hot before it is critical":
        ([zone(0, "acpitz", 41000, ("critical", 103000), ("hot", 98000))],
         [("mainboard", 41.0, 98.0, 103.0)]),
    "no zone that is disabled":
        ([zone(0, "acpitz", 41000, ("critical", 103000)),
          lambda tree: tree.write("class/thermal/thermal_zone0", mode="disabled")], []),
    "the package of a container, which has a zone alone":
        ([zone(1, "x86_pkg_temp", 61000)], [("CPU", 61.0, None, None)]),
    "one processor with a zone and a chip":
        ([CPU, zone(1, "x86_pkg_temp", 61000, ("passive", 0), ("passive", 0))], [CPU_TOLD]),
    **{f"no zone where nothing happens: {kind}": ([zone(0, kind, 45000)], [])
       for kind in ("iwlwifi_1", "INT3400 Thermal", "TSR0")},
    # A laptop works at 100 degrees all day, and one of these says critical at 100.05.
    **{f"no zone whose critical point is only logged: {kind}":
       ([CPU, zone(0, kind, 99000, ("critical", 100050), ("hot", 99050), ("passive", 94050))],
        [CPU_TOLD]) for kind in ("B0D4", "TCPU", "TCPU_PCI", "TMEM", "SEN1", "pch_skylake")},
    **{f"the processor of a small board, which is a zone and a chip: {kind}":
       ([zone(0, kind, 60000, ("passive", 85000), ("critical", 110000)),
         chip(0, kind.replace("-", "_"), temp1_input=60000, temp1_crit=110000)],
        [("CPU", 60.0, 85.0, 110.0)])
       for kind in ("cpu-thermal", "cpu_thermal", "soc_thermal", "cpuss-0")},
    # 55 lacks the factor of a thousand.
    **{f"no temperature of {value!r}":
       ([chip(0, "coretemp", temp1_input=value, temp1_label="Package id 0"),
         zone(0, "acpitz", 40000, ("critical", 119000))], [("mainboard", 40.0, None, 119.0)])
       for value in NO_TEMPERATURE},
    **{f"no threshold of {value!r}":
       ([disk(temp1_max=value, temp1_crit=value)], [("NVMe disk", 40.0, None, None)])
       for value in (0, -273200, 65261850, 127000000, "N/A", "", 5000)},
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_what_the_kernel_shows_is_read_once_and_nonsense_is_left_out(tree, reader, name):
    """Label, degrees, and where the part slows down and switches off."""
    parts, expected = TREES[name]
    for part in parts:
        part(tree)

    assert expected == told(reader)
    assert len(expected) == len({each.key for each in heat(reader)})


def test_a_processor_is_known_as_one(tree, reader):
    CPU(tree)

    (cpu,) = heat(reader)

    assert ("coretemp/Package id 0", True) == (cpu.key, cpu.is_cpu)


def test_a_chip_that_vanishes_and_comes_back(tree, reader):
    """A dock, or a reloaded driver: the others are still read."""
    tree.hwmon(0, "coretemp", **LAPTOP_CPU)
    disk = tree.hwmon(1, "nvme", temp1_input=40000)
    seen = [len(heat(reader, 0.0))]
    shutil.rmtree(disk)
    seen.append(len(heat(reader, 61.0)))
    tree.hwmon(1, "nvme", temp1_input=41000)
    seen.append(len(heat(reader, 122.0)))

    assert [2, 1, 2] == seen


def test_another_chip_with_the_same_number_is_another_chip(tree, reader):
    """The kernel reuses numbers."""
    chip = tree.hwmon(0, "nvme", temp1_input=40000)
    before = told(reader, 0.0)
    shutil.rmtree(chip)
    tree.hwmon(0, "coretemp", **LAPTOP_CPU)

    assert [("NVMe disk", 40.0, None, None)] == before
    assert [("CPU", 61.0, 100.0, None)] == told(reader, 61.0)


def test_a_sensor_that_fails_for_a_while_is_left_out_for_a_while(tree, reader):
    """EIO, or a folder in the file's place: the rest is read."""
    tree.hwmon(0, "coretemp", **LAPTOP_CPU)
    disk = tree.hwmon(1, "nvme", temp1_input=40000)
    first = len(heat(reader, 0.0))
    (disk / "temp1_input").write_bytes(b"")
    second = len(heat(reader, 10.0))
    (disk / "temp1_input").write_text("42000\n")

    assert [2, 1] == [first, second]
    assert 42.0 == heat(reader, 20.0)[1].celsius


def test_a_disk_is_asked_every_ten_seconds(tree, reader):
    """Each read keeps it from its power-saving states."""
    tree.hwmon(1, "nvme", temp1_input=40000)
    first = heat(reader, 0.0)
    tree.hwmon(1, "nvme", temp1_input=50000)

    assert [40.0, 40.0, 50.0] == [
        first[0].celsius,
        heat(reader, 8.0)[0].celsius,
        heat(reader, 10.0)[0].celsius,
    ]


def test_a_disk_that_sleeps_is_left_asleep(tree, reader):
    """Reading its sensor would wake it."""
    chip = tree.hwmon(2, "nvme", temp1_input=50000, temp1_label="Composite")
    status = tree.write("class/hwmon/hwmon2/device/power", runtime_status="active")
    awake = heat(reader, 0.0)
    (status / "runtime_status").write_text("suspended\n")
    asleep = heat(reader, 10.0)
    (status / "runtime_status").write_text("active\n")
    (chip / "temp1_input").write_text("45000\n")

    assert (1, 0) == (len(awake), len(asleep))
    assert 45.0 == heat(reader, 20.0)[0].celsius


def test_labels_of_firmware_are_safe_to_show(tree, reader):
    """A vendor can write anything there."""
    tree.hwmon(0, "coretemp", temp1_input=50000, temp1_label="\x1b[31mPackage\x07")

    (found,) = heat(reader)

    assert "\x1b" not in found.key
    assert "\x07" not in found.key


def test_a_thousand_sensors_are_bounded(tree, reader):
    """An unexpected tree costs no more."""
    for number in range(40):
        tree.hwmon(number, "nvme", temp1_input=40000)

    assert 32 == len(heat(reader))


def test_this_machine_agrees_with_psutil():
    """It needs a machine with sensors."""
    names = set(psutil.sensors_temperatures() or {})
    chips = names & {"coretemp", "k10temp", "nvme"}
    if not chips:
        pytest.skip(f"this machine has no sensor that both know (psutil: {sorted(names)})")
    reader = TemperatureReader()
    ours = {t.key.split("/")[0].split(" ")[0]: t.celsius for t in heat(reader)}

    for chip in chips:
        truth = [each.current for each in psutil.sensors_temperatures()[chip]]
        assert min(truth) - 10 <= ours[chip] <= max(truth) + 10
