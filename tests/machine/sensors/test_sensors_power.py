"""Power of the CPU packages."""

from __future__ import annotations

import os

import pytest
from device_trees import DeviceTree

from watchdog_app.machine.sensors.power import CpuPowerReader

RANGE_UJ = 262_143_328_850
LIMIT = {"constraint_0_name": "long_term", "constraint_0_power_limit_uw": 65_000_000}


@pytest.fixture
def tree(tmp_path):
    """An empty /sys."""
    return DeviceTree(tmp_path / "sys")


@pytest.fixture
def reader(tree):
    """A reader of it."""
    return CpuPowerReader(str(tree.root))


def test_no_tree_no_power(reader):
    """A virtual machine."""
    assert (None, None) == reader.read(0.0)


def test_power_is_energy_over_time(tree, reader):
    """The first look has no time yet."""
    tree.package(0, 1_000_000_000, **LIMIT)
    first = reader.read(100.0)
    tree.package(0, 1_450_000_000)

    assert (None, 65.0) == first
    assert (45.0, 65.0) == reader.read(110.0)


def test_between_two_looks_at_the_counters_the_last_figure_stands(tree, reader):
    """Five seconds."""
    tree.package(0, 0)
    reader.read(0.0)
    tree.package(0, 100_000_000)
    reader.read(10.0)
    tree.package(0, 900_000_000)

    assert 10.0 == reader.read(12.0)[0]


def test_a_counter_that_begins_anew_is_counted_on(tree, reader):
    """It wraps at its range, within an hour on a busy server."""
    tree.package(0, RANGE_UJ - 100_000_000)
    reader.read(0.0)
    tree.package(0, 200_000_000)

    assert pytest.approx(30.0) == reader.read(10.0)[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [(5_000_000_000, 10), ("N/A", 10), (10, ""), (0, 90_000_000_000), (10, -5)],
    ids=["reset", "unknown before", "unknown after", "9 kW", "negative"],
)
def test_a_counter_that_makes_no_sense_is_unknown(tree, reader, before, after):
    """And no negative, zero or absurd power."""
    tree.package(0, before, max_energy_range_uj=5_000_000_001)
    reader.read(0.0)
    tree.package(0, after, max_energy_range_uj=5_000_000_001)

    watts = reader.read(10.0)[0]

    assert watts is None or watts < 1.0


def test_packages_are_added_up_and_their_parts_are_not(tree, reader):
    """Cores and memory are within a package or beside the point; the platform holds all."""
    for look, energy in ((0.0, 0), (10.0, 500_000_000)):
        tree.package(0, energy, **LIMIT)
        tree.package(1, energy, **LIMIT)
        tree.write("class/powercap/intel-rapl:0:0", name="core", energy_uj=energy)
        tree.write("class/powercap/intel-rapl-mmio:0", name="package-0", energy_uj=energy)
        tree.write("class/powercap/intel-rapl:2", name="psys", energy_uj=energy)
        tree.write("class/powercap/intel-rapl", enabled=1)
        found = reader.read(look)

    assert (100.0, 130.0) == found


@pytest.mark.parametrize("limit", [0, -1, 4_095_875_000_000, "N/A"])
def test_a_limit_beyond_all_sense_is_none(tree, reader, limit):
    """Firmware without one sets the largest that fits."""
    tree.package(0, 0, constraint_0_name="long_term", constraint_0_power_limit_uw=limit)

    assert (None, None) == reader.read(0.0)


def test_a_short_term_limit_is_not_the_sustained_one(tree, reader):
    """By its name and not by its number."""
    tree.package(
        0,
        0,
        constraint_0_name="short_term",
        constraint_0_power_limit_uw=90_000_000,
        constraint_1_name="long_term",
        constraint_1_power_limit_uw=45_000_000,
    )

    assert 45.0 == reader.read(0.0)[1]


@pytest.mark.skipif(os.name != "posix", reason="needs a user that may not read")
def test_a_counter_that_only_root_may_read_leaves_the_limit(tree):
    """Since Linux 5.10: no error, no fault, no watts."""
    folder = tree.package(0, 0, **LIMIT)
    (folder / "energy_uj").chmod(0)
    if os.geteuid() == 0:  # root reads everything: let the file be what root cannot read either
        (folder / "energy_uj").unlink()
        (folder / "energy_uj").mkdir()
    reader = CpuPowerReader(str(tree.root))

    assert [(None, 65.0)] * 2 == [reader.read(0.0), reader.read(10.0)]


def test_after_a_long_sleep_the_power_is_unknown_once(tree, reader):
    """The counter may have begun anew more than once."""
    tree.package(0, 0)
    reader.read(0.0)
    tree.package(0, 1_000_000_000)
    asleep = reader.read(4000.0)
    tree.package(0, 1_100_000_000)

    assert asleep[0] is None
    assert 10.0 == reader.read(4010.0)[0]
