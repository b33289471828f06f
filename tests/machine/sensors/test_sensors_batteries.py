"""Batteries and plugs, from trees as drivers show them."""

from __future__ import annotations

import psutil
import pytest
from device_trees import DeviceTree

from watchdog_app.machine.sensors.power import BatteryReader

BY_ENERGY = {
    "type": "Battery",
    "present": 1,
    "status": "Discharging",
    "capacity": 49,
    "energy_now": 25_000_000,
    "energy_full": 50_000_000,
    "power_now": 32_500_000,
    "voltage_now": 11_400_000,
}
BY_CHARGE = {
    "type": "Battery",
    "status": "Discharging",
    "capacity": 60,
    "charge_now": 3_000_000,
    "charge_full": 5_000_000,
    "current_now": 2_000_000,
    "voltage_now": 11_000_000,
    "voltage_min_design": 10_000_000,
}


@pytest.fixture
def tree(tmp_path):
    """An empty /sys."""
    return DeviceTree(tmp_path / "sys")


@pytest.fixture
def reader(tree):
    """A reader of it."""
    return BatteryReader(str(tree.root))


def test_a_desktop_has_neither(reader):
    """There is no folder, and it is unknown whether it is plugged in."""
    assert ((), None) == reader.read(0.0)


def test_a_battery_by_energy(tree, reader):
    """Micro watt hours become joules; the percent is finer than the driver's rounded one."""
    tree.supply("BAT0", **BY_ENERGY)
    tree.supply("AC", type="Mains", online=0)

    ((battery,), on_mains) = reader.read(0.0)

    assert ("BAT0", 50.0, True, False) == (
        battery.name,
        battery.percent,
        battery.discharging,
        on_mains,
    )
    assert (pytest.approx(90_000.0), pytest.approx(180_000.0)) == (battery.energy_j, battery.full_j)


def test_a_battery_by_charge(tree, reader):
    """The design voltage counts, because it does not sag under load."""
    tree.supply("BAT1", **BY_CHARGE)

    ((battery,), on_mains) = reader.read(0.0)

    assert pytest.approx(3.0 * 10.0 * 3600.0) == battery.energy_j
    assert pytest.approx(5.0 * 10.0 * 3600.0) == battery.full_j
    assert pytest.approx(60.0) == battery.percent
    assert on_mains is False  # it drains, so there is no mains power


def test_a_battery_that_knows_only_its_percent(tree, reader):
    """Many tablets have such a battery."""
    tree.supply("axp20x-battery", type="Battery", status="Discharging", capacity=37)

    ((battery,), _) = reader.read(0.0)

    assert (37.0, None, None) == (battery.percent, battery.energy_j, battery.full_j)


def test_the_battery_of_a_mouse_is_none_of_the_machine(tree, reader):
    """Its scope says so."""
    tree.supply("hidpp_battery_0", **{**BY_ENERGY, "scope": "Device"})
    tree.supply("BAT0", **{**BY_ENERGY, "scope": "System"})

    assert ["BAT0"] == [battery.name for battery in reader.read(0.0)[0]]


@pytest.mark.parametrize(
    ("status", "plugged", "expected"),
    [
        ("Discharging", 0, True),
        ("Discharging", 1, True),  # the supply is too weak
        ("Charging", 1, False),
        ("Full", 1, False),
        ("Not charging", 1, False),  # held at 80 % for a longer life
        ("Unknown", 1, False),
        ("Unknown", 0, True),
        ("Full", 0, False),
    ],
)
def test_which_states_drain(tree, reader, status, plugged, expected):
    """Only a real drain counts."""
    tree.supply("BAT0", **{**BY_ENERGY, "status": status})
    tree.supply("AC", type="Mains", online=plugged)

    ((battery,), on_mains) = reader.read(0.0)

    assert (expected, bool(plugged)) == (battery.discharging, on_mains)


@pytest.mark.parametrize(("plugged", "expected"), [(1, False), (0, True)])
@pytest.mark.parametrize("flow", ["power_now", "current_now"])
def test_a_battery_from_which_nothing_flows_is_not_drained_while_plugged_in(
    tree, reader, flow, plugged, expected
):
    """A dead battery in a laptop on mains says Discharging at 0 % for years."""
    known = BY_ENERGY if flow == "power_now" else BY_CHARGE
    tree.supply("BAT0", **{**known, flow: 0, "capacity": 0})
    tree.supply("AC", type="Mains", online=plugged)

    assert expected is reader.read(0.0)[0][0].discharging


def test_any_plug_that_is_in_counts(tree, reader):
    """USB-C: the old plug is out, one of two sockets delivers."""
    tree.supply("AC", type="Mains", online=0)
    tree.supply("ucsi-source-psy-USBC000:001", type="USB", online=0)
    tree.supply("ucsi-source-psy-USBC000:002", type="USB_PD", online=2)

    assert ((), True) == reader.read(0.0)


def test_two_batteries_are_two(tree, reader):
    """One rests while the other drains; they are ordered by number."""
    tree.supply("BAT10", **{**BY_CHARGE, "status": "Unknown"})
    tree.supply("BAT2", **BY_ENERGY)
    tree.supply("AC", type="Mains", online=1)

    assert [("BAT2", True), ("BAT10", False)] == [
        (battery.name, battery.discharging) for battery in reader.read(0.0)[0]
    ]


def test_a_bay_without_a_battery_is_none(tree, reader):
    """present is 0."""
    tree.supply("BAT1", **{**BY_ENERGY, "present": 0})

    assert ((), None) == reader.read(0.0)


@pytest.mark.parametrize(
    "broken",
    [
        {"energy_now": -5},
        {"energy_now": ""},
        {"energy_full": 0},
        {"energy_now": "N/A", "energy_full": "N/A"},
        {"energy_now": 900_000_000},
    ],
)
def test_nonsense_of_energy_leaves_the_percent(tree, reader, broken):
    """The charge is never negative."""
    tree.supply("BAT0", **{**BY_ENERGY, **broken})

    ((battery,), _) = reader.read(0.0)

    assert (49.0, None, None) == (battery.percent, battery.energy_j, battery.full_j)


@pytest.mark.parametrize("percent", [-1, 255, "", "N/A"])
def test_a_battery_whose_level_nobody_knows_is_left_out(tree, reader, percent):
    """Unknown is not empty."""
    tree.supply("BAT0", type="Battery", status="Discharging", capacity=percent)

    assert () == reader.read(0.0)[0]


def test_more_than_full_is_full(tree, reader):
    """A new battery holds a little more than its nominal charge."""
    tree.supply("BAT0", **{**BY_ENERGY, "energy_now": 51_000_000})

    ((battery,), _) = reader.read(0.0)

    assert (100.0, battery.full_j) == (battery.percent, battery.energy_j)


def test_between_two_looks_the_last_figure_stands(tree, reader):
    """It is read every ten seconds: batteries change slowly, and a read costs milliseconds."""
    tree.supply("BAT0", **BY_ENERGY)
    reader.read(0.0)
    tree.supply("BAT0", energy_now=24_000_000)

    assert 50.0 == reader.read(9.0)[0][0].percent
    assert 48.0 == reader.read(10.0)[0][0].percent


def test_this_machine_agrees_with_psutil():
    """It needs a machine with a battery."""
    truth = psutil.sensors_battery()
    if truth is None:
        pytest.skip("this machine has no battery")

    batteries, on_mains = BatteryReader().read(0.0)

    assert truth.percent == pytest.approx(batteries[0].percent, abs=3.0)
    assert truth.power_plugged == on_mains
