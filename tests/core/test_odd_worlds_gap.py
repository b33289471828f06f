"""Gaps in the samples and a suspended machine: neither counts as growth."""

from __future__ import annotations

import pytest
from simulation import Machine, Program, flat, leak
from support.records import host

from watchdog_app.core.model.hardware import Hardware
from watchdog_app.core.model.machine import Snapshot
from watchdog_app.core.model.readings import readings
from watchdog_app.core.model.resource import ResourceKind
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.model.status import Battery
from watchdog_app.core.policy.engine import Engine

UNIX_S = 1_800_000_000.0
SLEPT_AT_S = 1200.0


def battery(engine: Engine, t: float, percent: float):
    """The assessment of a battery at that charge, and the tick's result."""
    hardware = Hardware(
        batteries=(Battery(name="BAT0", percent=percent, discharging=True),), on_mains=False
    )
    snapshot = Snapshot(t, UNIX_S + t, host(), (), infos={}, hardware=hardware)
    result = engine.tick(snapshot, (), readings(snapshot, (), ()), {})
    return next(a for k, a in result.assessments.items() if k.kind is ResourceKind.BATTERY), result


@pytest.mark.parametrize("asleep", [pytest.param(True, id="slept"), pytest.param(False, id="fell")])
def test_what_a_battery_lost_in_a_sleep_is_no_pace(asleep):
    """A suspend takes 40 percent between two samples; only later samples make a forecast."""
    engine = Engine(Settings(), own_uid=0)
    t, told = 0.0, []
    while t < SLEPT_AT_S + 60:
        left = 90 - t / 600 - (40 if t >= SLEPT_AT_S else 0)
        if asleep and SLEPT_AT_S <= t < SLEPT_AT_S + 1:
            engine.reset_trends()
        assessment, result = battery(engine, t, left)
        if t >= SLEPT_AT_S and assessment.forecast is not None:
            told.append(assessment.forecast.eta_s)
        t += 1.0

    assert asleep == (not told), "without a word about the sleep it reads as a fall"
    assert not result.decisions


def test_a_gap_in_the_looks_is_no_trend():
    """Growth during a gap is not extrapolated: two samples decide nothing."""
    machine = Machine(
        Program(7, "train.ipynb", lambda t: 300e6 if t < 60 else 700e6, save_s=0.5, group="g"),
        groups={"g": 1000},
    )
    machine.run(58)
    assert [] == machine.log

    machine._advance(machine.now + 45)
    result = machine.tick()

    assert [] == machine.log
    assert all(each.forecast is None for each in result.assessments.values())
    machine.run(60)
    assert [] == machine.log, "it stands still since"


def test_an_open_danger_is_found_again_after_a_gap():
    """Forecasts start again after the gap and find a leak that continues."""
    machine = Machine(
        Program(7, "train.ipynb", leak(10), save_s=0.5, group="g"),
        Program(8, "idle.ipynb", flat(100)),
        groups={"g": 2000},
    )
    machine.run(60)
    machine.engine.reset_trends()
    before = len(machine.log)

    machine.run(100)

    assert len(machine.log) > before
    assert machine.programs[0].saves, "it was saved in time"
