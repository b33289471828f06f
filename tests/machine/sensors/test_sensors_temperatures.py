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


def test_a_machine_without_sensors_has_none(reader):
    """A virtual machine has no such folder, which is not an error."""
    assert () == reader.read(0.0)


def test_an_intel_processor_is_its_package_and_slows_down_at_crit(tree, reader):
    """
    Its crit is where throttling begins (TjMax); its max is where fans should be at full speed.
    """
    tree.hwmon(0, "coretemp", **LAPTOP_CPU)

    (cpu,) = heat(reader)

    assert ("CPU", "coretemp/Package id 0", 61.0, 100.0, None, True) == (
        cpu.label,
        cpu.key,
        cpu.celsius,
        cpu.slowdown_c,
        cpu.shutdown_c,
        cpu.is_cpu,
    )


def test_an_amd_processor_is_its_die(tree, reader):
    """Tctl has an offset on some models; Tdie is exact if present."""
    values = {"temp1_input": 82000, "temp1_label": "Tctl", "temp1_max": 70000}
    tree.hwmon(0, "k10temp", **values)
    before = told(reader)
    tree.hwmon(0, "k10temp", temp2_input=62000, temp2_label="Tdie", temp3_input=58000)
    tree.write("class/hwmon/hwmon0", temp3_label="Tccd1")

    assert [("CPU", 82.0, None, None)] == before
    assert [("CPU", 62.0, None, None)] == told(reader, 61.0)


def test_two_processors_are_told_apart(tree, reader):
    """Two sockets, two chips with one name."""
    tree.hwmon(0, "coretemp", temp1_input=50000, temp1_label="Package id 0")
    tree.hwmon(1, "coretemp", temp1_input=60000, temp1_label="Package id 1")

    found = heat(reader)

    assert [("CPU 0", 50.0), ("CPU 1", 60.0)] == [(t.label, t.celsius) for t in found]
    assert 2 == len({t.key for t in found})


def test_processor_without_a_package_sensor_shows_its_cores(tree, reader):
    """Processors before Sandy Bridge have no package sensor."""
    tree.hwmon(0, "coretemp", temp2_input=50000, temp2_label="Core 0", temp3_input=52000)

    assert [50.0, 52.0] == [t.celsius for t in heat(reader)]


def test_a_disk_slows_down_and_switches_off(tree, reader):
    """The composite temperature; a disk's single sensors have no thresholds."""
    tree.hwmon(
        3,
        "nvme",
        temp1_input=44850,
        temp1_label="Composite",
        temp1_max=81850,
        temp1_crit=84850,
        temp2_input=60850,
        temp2_label="Sensor 1",
        temp2_max=65261850,
    )

    assert [("NVMe disk", 44.85, 81.85, 84.85)] == told(reader)


def test_an_amd_card_is_read_with_the_gpus(tree, reader):
    """Else one heat would be reported twice."""
    tree.hwmon(2, "amdgpu", temp1_input=50000, temp1_label="edge", temp1_crit=100000)

    assert [] == told(reader)


def test_what_a_mainboard_says_of_itself_is_not_believed(tree, reader):
    """AUXTIN at 117 of 80 degrees: nothing is connected there."""
    tree.hwmon(0, "coretemp", **LAPTOP_CPU)
    tree.hwmon(
        1, "nct6775", temp1_input=117000, temp1_label="AUXTIN0", temp1_max=80000, temp1_crit=90000
    )

    assert ["CPU"] == [t.label for t in heat(reader)]


@pytest.mark.parametrize(
    "nonsense",
    [-128000, 0, 255000, 127000, 65261850, "N/A", "", b"\xff\xfe", "55", 10**30, -1, "6 1000"],
)
def test_nonsense_is_no_temperature(tree, reader, nonsense):
    """It is skipped and the next sensor is read; 55 lacks the factor of a thousand."""
    tree.hwmon(0, "coretemp", temp1_input=nonsense, temp1_label="Package id 0")
    tree.zone(0, "acpitz", 40000, ("critical", 119000))

    assert ["mainboard"] == [t.label for t in heat(reader)]


@pytest.mark.parametrize("nonsense", [0, -273200, 65261850, 127000000, "N/A", "", 5000])
def test_nonsense_is_no_threshold(tree, reader, nonsense):
    """The temperature is shown without one."""
    tree.hwmon(0, "nvme", temp1_input=40000, temp1_max=nonsense, temp1_crit=nonsense)

    assert [("NVMe disk", 40.0, None, None)] == told(reader)


def test_a_slow_down_above_the_end_is_none(tree, reader):
    """Some firmware has them swapped."""
    tree.hwmon(0, "nvme", temp1_input=40000, temp1_max=90000, temp1_crit=85000)

    assert [("NVMe disk", 40.0, None, 85.0)] == told(reader)


def test_the_kernel_powers_off_at_a_critical_trip_point(tree, reader):
    """The zone throttles at the highest passive one."""
    tree.zone(
        0,
        "acpitz",
        41000,
        ("critical", 103000),
        ("hot", 98000),
        ("passive", 90000),
        ("passive", 60000),
        ("active", 50000),
        ("passive", -274000),
    )

    assert [("mainboard", 41.0, 90.0, 103.0)] == told(reader)


def test_a_passive_trip_point_that_is_passed_all_day_is_not_believed(tree, reader):
    """Some firmware reports 50 degrees."""
    tree.zone(0, "acpitz", 41000, ("critical", 103000), ("passive", 50000))

    assert [("mainboard", 41.0, None, 103.0)] == told(reader)


def test_hot_stands_for_slowing_down_where_there_is_no_passive_one(tree, reader):
    """It is the last step before critical."""
    tree.zone(0, "acpitz", 41000, ("critical", 103000), ("hot", 98000))

    assert [("mainboard", 41.0, 98.0, 103.0)] == told(reader)


@pytest.mark.parametrize("kind", ["B0D4", "TCPU", "TCPU_PCI", "TMEM", "SEN1", "pch_skylake"])
def test_zones_whose_critical_point_is_only_logged_end_nothing(tree, reader, kind):
    """A laptop works at 100 degrees all day, and one of these says critical at 100.05."""
    tree.hwmon(0, "coretemp", **LAPTOP_CPU)
    tree.zone(0, kind, 99_000, ("critical", 100_050), ("hot", 99_050), ("passive", 94_050))

    temperatures = reader.read(0.0)

    assert ["coretemp/Package id 0"] == [each.key for each in temperatures]


def test_a_disabled_zone_ends_nothing(tree, reader):
    """The kernel takes no action then."""
    tree.zone(0, "acpitz", 41000, ("critical", 103000)).joinpath("mode").write_text("disabled\n")

    assert [] == told(reader)


@pytest.mark.parametrize("kind", ["iwlwifi_1", "INT3400 Thermal", "TSR0"])
def test_zones_where_nothing_happens_are_left_out(tree, reader, kind):
    """A wireless card does not concern a training."""
    tree.zone(0, kind, 45000)

    assert [] == told(reader)


@pytest.mark.parametrize("kind", ["cpu-thermal", "cpu_thermal", "soc_thermal", "cpuss-0"])
def test_small_boards_know_their_processor_by_its_zone(tree, reader, kind):
    """A zone that also appears as a chip is one sensor."""
    tree.zone(0, kind, 60000, ("passive", 85000), ("critical", 110000))
    tree.hwmon(0, kind.replace("-", "_"), temp1_input=60000, temp1_crit=110000)

    assert [("CPU", 60.0, 85.0, 110.0)] == told(reader)


def test_a_package_zone_is_the_processor_that_is_known_already(tree, reader):
    """x86_pkg_temp reads the same register as coretemp."""
    tree.hwmon(0, "coretemp", **LAPTOP_CPU)
    tree.zone(1, "x86_pkg_temp", 61000, ("passive", 0), ("passive", 0))

    assert ["coretemp/Package id 0"] == [t.key for t in heat(reader)]


def test_a_package_zone_is_enough(tree, reader):
    """Containers see zones but no chips."""
    tree.zone(1, "x86_pkg_temp", 61000)

    assert [("CPU", 61.0, None, None)] == told(reader)


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


def test_a_disk_that_would_spin_up_is_not_asked(tree, reader):
    """Some SATA disks would."""
    tree.hwmon(1, "drivetemp", temp1_input=40000)

    assert [] == told(reader)


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
