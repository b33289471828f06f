"""Memory of a card and the charge of a battery, through the real ResourceMonitor."""

from __future__ import annotations

import math

import pytest

from watchdog_app.core.forecast.forecaster import TrendForecaster
from watchdog_app.core.forecast.heat import HeatForecaster
from watchdog_app.core.forecast.slow import (
    ClockForecaster,
    DeviceMemoryForecaster,
    DischargeForecaster,
)
from watchdog_app.core.forecast.stages import ResourceMonitor, forecaster_for
from watchdog_app.core.model.decisions import SaveCost, Stage
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.settings import StageSettings, WatchSettings

GIB = 1 << 30
CARD = 24.0 * GIB


def played(curve, forecaster, limit, seconds, read_every_s):
    """(time, assessment) until the limit is reached, and when that was."""
    unit = "ratio" if limit < 2.0 else "bytes"
    watch = ResourceMonitor(WatchSettings(), StageSettings(), forecaster, unit)
    t, read_s, used, seen = 0.0, -1e9, 0.0, []
    while t < seconds:
        if t - read_s >= read_every_s:
            read_s, used = t, curve(t)
        seen.append((t, watch.step(t, used, limit, SaveCost(save_s=1.0, step_s=0.3))))
        if used >= limit:
            return seen, t
        t += watch.next_sample_s
    return seen, None


def first(seen, wanted):
    """The time of the first assessment that matches."""
    return next((t for t, assessment in seen if wanted(assessment)), None)


@pytest.mark.parametrize(
    "curve",
    [
        lambda t: (0.02 if t < 20 else 0.988) * CARD,
        lambda t: (0.02 if t < 20 else 0.5 if t < 22 else 0.995) * CARD,
        lambda t: min(0.99, 0.02 + max(0.0, t - 20) * 0.12) * CARD,
        lambda t: 0.99 * CARD,
    ],
    ids=["at once", "in two steps", "within eight seconds", "long ago"],
)
def test_a_framework_that_takes_the_whole_card_is_no_danger(curve):
    """TensorFlow without memory growth: the card is nearly full and stays so."""
    seen, _ = played(curve, DeviceMemoryForecaster(), CARD, 300.0, 2.0)

    assert {Stage.OK} == {a.stage for _, a in seen}
    assert not any(a.notify or a.rescue for _, a in seen)


@pytest.mark.parametrize(
    ("curve", "least_s"),
    [
        (lambda t: 4 * GIB + max(0.0, t - 30) * 0.05 * GIB, 20.0),
        (lambda t: 4 * GIB + max(0.0, t - 30) * 0.3 * GIB, 8.0),
        (lambda t: (0.02 if t < 20 else 0.8) * CARD + max(0.0, t - 60) * 0.03 * GIB, 20.0),
    ],
    ids=["slow", "fast", "after taking most of it"],
)
def test_growth_on_a_card_is_rescued_before_it_is_full(curve, least_s):
    """Growth counts even after a framework has reserved most of the card."""
    seen, end_s = played(curve, DeviceMemoryForecaster(), CARD, 1000.0, 2.0)

    rescued_s = first(seen, lambda a: a.rescue)

    assert rescued_s is not None
    assert end_s - rescued_s >= least_s


def drain(hours, begin=0.3, step=0.0):
    """A battery that drains at a constant rate, reported in steps."""

    def curve(t):
        level = begin + t * (1.0 - begin) / (3600.0 * hours)
        return round(level / step) * step if step else level

    return curve


@pytest.mark.parametrize("step", [0.0, 0.01])
@pytest.mark.parametrize("hours", [0.3, 1.0, 2.0])
def test_a_battery_is_foretold_told_of_and_answered_with_a_save(hours, step):
    """This also holds for a charge in whole percents."""
    seen, end_s = played(drain(hours, step=step), DischargeForecaster(), 0.95, 8000.0, 10.0)

    early = next(a.forecast for t, a in seen if t > 0.6 * end_s)
    rescued_s = first(seen, lambda a: a.rescue and a.stage >= Stage.SAVE)

    assert early.low_s <= 0.4 * end_s <= early.high_s
    assert first(seen, lambda a: a.notify) is not None
    assert 60.0 <= end_s - rescued_s <= 400.0


def expected(curve, end_s):
    """Each forecast of a drain, sampled every 10 s, as a share of the true time left."""
    forecaster, found = DischargeForecaster(), []
    for step in range(int(end_s / 10.0)):
        t = 10.0 * step
        forecaster.update(t, curve(t), 0.95)
        forecast = forecaster.assess().forecast
        if forecast is not None:
            found.append((t, forecast.eta_s / (end_s - t)))
    return found


@pytest.mark.parametrize("begin", [0.0, 0.5, 0.69])
@pytest.mark.parametrize("hours", [1.5, 3.0, 6.0, 10.0])
def test_time_until_empty_is_right_in_whole_percents(hours, begin):
    """One step every six minutes: there is no rate before the second step."""
    curve = drain(hours * (1.0 - begin), begin, step=0.01)  # hours of a full battery
    end_s = 3600.0 * hours * (0.95 - begin)

    shares = [share for t, share in expected(curve, end_s) if curve(t) < 0.9]

    assert shares
    assert sum(0.8 <= share <= 1.25 for share in shares) >= 0.9 * len(shares)
    assert min(shares) > 0.5
    assert max(shares) < 2.0


@pytest.mark.parametrize("step", [0.0, 0.01])
def test_a_battery_that_gives_way_at_its_end_is_seen_to_do_so(step):
    """Its gauge shows up to 9 % too much, and falls ever faster."""

    def curve(t):
        left = 1.0 - t / 3600.0
        shown = left if left > 0.5 else left + 0.09 * math.sin(math.pi * (0.5 - left) / 0.45)
        return round((1.0 - shown) / step) * step if step else 1.0 - shown

    shares = dict(expected(curve, 3420.0))

    assert shares[3420.0 - 300.0] == pytest.approx(1.0, abs=0.25)
    assert shares[3420.0 - 600.0] == pytest.approx(1.0, abs=0.6)


def test_a_battery_that_nothing_drains_has_no_forecast():
    """A constant level has no end."""
    seen, _ = played(lambda t: 0.6, DischargeForecaster(), 0.95, 3000.0, 10.0)

    assert not any(a.forecast or a.notify or a.rescue for _, a in seen)


def test_a_battery_at_its_reserve_is_answered_at_once():
    """It was unplugged when nearly empty, and there is no trend yet."""
    seen, _ = played(lambda t: 0.95, DischargeForecaster(), 0.95, 5.0, 10.0)

    assert seen[0][1].rescue
    assert seen[0][1].notify


def test_a_heavier_load_brings_the_end_nearer_soon():
    """A training starts on battery: the last minutes count, not the last hour."""

    def curve(t):
        return 0.2 + t * 0.00002 + max(0.0, t - 1800.0) * 0.0004

    seen, end_s = played(curve, DischargeForecaster(), 0.95, 8000.0, 10.0)

    forecast = next(a.forecast for t, a in seen if t > 1800.0 + 420.0)

    assert forecast.eta_s == pytest.approx(end_s - 2220.0, rel=0.35)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ResourceKind.TEMPERATURE, HeatForecaster),
        (ResourceKind.BATTERY, DischargeForecaster),
        (ResourceKind.WALLTIME, ClockForecaster),
        (ResourceKind.GPU_MEMORY, DeviceMemoryForecaster),
        (ResourceKind.GPU_ALLOCATOR, DeviceMemoryForecaster),
        (ResourceKind.RAM, TrendForecaster),
        (ResourceKind.DISK, TrendForecaster),
    ],
)
def test_each_kind_has_its_forecaster(kind, expected):
    reading = Reading(ResourceKey(kind), "", 1.0, 2.0, True, ())

    assert isinstance(forecaster_for(reading), expected)
