"""Heat through the real ResourceMonitor: curves that saturate, cooling that fails."""

from __future__ import annotations

import math
import random

import pytest

from watchdog_app.core.forecast.heat import HeatForecaster
from watchdog_app.core.forecast.stages import ResourceMonitor
from watchdog_app.core.model.decisions import Caution, Regime, SaveCost, Stage
from watchdog_app.core.model.settings import StageSettings, WatchSettings

LOAD_S, FAILS_S = 30.0, 120.0


def warming(begin, end, tau_s, jump=0.0):
    """A load starts: the silicon jumps within seconds, the heat sink follows."""

    def curve(t):
        passed = max(0.0, t - LOAD_S)
        fast = jump * (1.0 - math.exp(-passed / 1.5))
        return begin + fast + (end - begin - jump) * (1.0 - math.exp(-passed / tau_s))

    return curve


def failing(level, rate=None, end=None, tau_s=60.0):
    """Cooling fails under load: a ramp, or a curve far above the limit."""

    def curve(t):
        passed = max(0.0, t - FAILS_S)
        if rate is not None:
            return level + rate * passed
        return end + (level - end) * math.exp(-passed / tau_s)

    return curve


def played(curve, limit, *, seconds=600.0, noise=0.4, seed=0, caution=Caution.NORMAL):
    """
    (time, assessment) until the limit is reached, and when that was.

    Readings are whole degrees every 2 s with noise, as from a real sensor.
    """
    draw = random.Random(seed)
    watch = ResourceMonitor(
        WatchSettings(caution=caution), StageSettings(), HeatForecaster(), "celsius"
    )
    t, read_s, shown, seen = 0.0, -2.0, 0.0, []
    while t < seconds:
        if t - read_s >= 2.0:
            read_s, shown = t, float(round(curve(t) + draw.gauss(0.0, noise)))
        if curve(t) >= limit:
            return seen, t
        seen.append((t, watch.step(t, shown, limit, SaveCost(save_s=1.0, step_s=0.3))))
        t += watch.next_sample_s
    return seen, None


def first(seen, wanted):
    """The time of the first assessment that matches."""
    return next((t for t, assessment in seen if wanted(assessment)), None)


@pytest.mark.parametrize("jump", [0.0, 25.0])
@pytest.mark.parametrize("tau_s", [15.0, 30.0, 60.0, 120.0])
@pytest.mark.parametrize("end", [85.0, 90.0, 95.0])
def test_a_load_that_warms_up_to_below_the_limit_alarms_nobody(end, tau_s, jump):
    """A straight line through the start of each of these crosses 100."""
    for seed in range(3):
        lasts_s = LOAD_S + 7.0 * tau_s
        seen, _ = played(warming(45.0, end, tau_s, jump), 100.0, seconds=lasts_s, seed=seed)

        assert [] == [(t, a) for t, a in seen if a.notify or a.rescue or a.stage > Stage.OK]


@pytest.mark.parametrize("tau_s", [15.0, 30.0, 60.0])
@pytest.mark.parametrize("end", [90.0, 93.0])
def test_a_noisy_sensor_alarms_nobody_either(end, tau_s):
    """Silicon under a varying load moves three degrees up and down."""
    for seed in range(8):
        seen, _ = played(warming(45.0, end, tau_s), 100.0, seconds=300.0, noise=1.2, seed=seed)

        assert [] == [(t, a) for t, a in seen if a.notify or a.rescue]


def test_a_rise_to_where_it_has_been_before_is_no_news():
    """Repeated straight rises: the first may be a failure, the third is not."""
    seen, _ = played(lambda t: 70.0 + 0.52 * (t % 60.0 if t % 60.0 < 50.0 else 0.0), 100.0)

    assert any(a.rescue for t, a in seen if t < 120.0)
    assert not any(a.notify or a.rescue for t, a in seen if t > 150.0)


@pytest.mark.parametrize(
    ("curve", "least_s"),
    [
        (failing(75.0, rate=0.05), 60.0),
        (failing(75.0, rate=0.2), 20.0),
        (failing(75.0, rate=0.5), 8.0),
        (failing(75.0, rate=1.0), 3.0),
        (failing(75.0, end=130.0, tau_s=60.0), 5.0),
        (failing(75.0, end=110.0, tau_s=60.0), 8.0),
        (failing(70.0, end=105.0, tau_s=120.0), 30.0),
        (warming(40.0, 125.0, 60.0), 10.0),  # it never cooled at all
    ],
)
def test_failing_cooling_saves_before_the_shutdown(curve, least_s):
    """The rescue stage opens before the machine switches off, and stays open."""
    for seed in range(3):
        seen, end_s = played(curve, 98.0, seconds=1500.0, seed=seed)

        rescued_s = first(seen, lambda a: a.rescue and a.stage >= Stage.SAVE)

        assert rescued_s is not None
        assert end_s - rescued_s >= least_s
        assert seen[-1][1].rescue


def test_a_slow_failure_is_told_of_with_a_forecast():
    """The interval of the time until shutdown contains the truth."""
    seen, end_s = played(failing(75.0, rate=0.2), 98.0)

    told_s = first(seen, lambda a: a.notify)
    forecast = next(a.forecast for t, a in seen if t == told_s)

    assert forecast is not None
    assert forecast.low_s <= end_s - told_s <= forecast.high_s


def test_a_processor_that_is_as_hot_as_ever_is_normal():
    """It is at 85 of 100 degrees for an hour."""
    seen, _ = played(lambda t: 85.0 + math.sin(t / 40.0), 100.0, seconds=3600.0)

    assert {Stage.OK} == {a.stage for _, a in seen}
    assert not any(a.notify or a.rescue for _, a in seen)


def test_a_training_that_heats_and_cools_again_and_again_alarms_nobody():
    """Validation after each epoch cools it; it was as hot before."""

    def epochs(t):
        return 60.0 + 28.0 * (1.0 - math.exp(-(t % 120.0) / 25.0)) if t % 120 < 90 else 65.0

    seen, _ = played(epochs, 100.0, seconds=3000.0)

    assert not any(a.notify or a.rescue for _, a in seen)


def test_one_reading_at_the_limit_is_noise():
    """Sensors occasionally return one wrong value."""
    seen, _ = played(lambda t: 99.0 if 300 <= t < 302 else 70.0, 100.0, noise=0.0)

    assert not any(a.notify or a.rescue for _, a in seen)


def test_heat_asks_for_no_faster_looks():
    """The sensor has no new value sooner."""
    seen, _ = played(failing(75.0, rate=0.5), 98.0)

    assert 1.0 == pytest.approx(seen[-1][0] - seen[-2][0])


def test_a_gap_makes_it_forget():
    """After a suspend the machine is cold; that is neither a fall nor a start of heating."""
    forecaster = HeatForecaster()
    for t in range(100):
        forecaster.update(float(t), 60.0 + 0.3 * t, 98.0)
    forecaster.update(5000.0, 40.0, 98.0)
    forecaster.update(5003.0, 40.0, 98.0)

    assert Regime.UNKNOWN is forecaster.assess().regime
    assert forecaster.assess().forecast is None


def test_caution_moves_the_evidence():
    """High caution needs less evidence."""
    low, _ = played(failing(75.0, rate=0.2), 98.0, caution=Caution.LOW)
    high, _ = played(failing(75.0, rate=0.2), 98.0, caution=Caution.HIGH)

    assert first(high, lambda a: a.notify) < first(low, lambda a: a.notify)


@pytest.mark.parametrize("value", [-300.0, 0.0, 1e9])
def test_nonsense_breaks_nothing(value):
    """A sensor can return any value."""
    forecaster = HeatForecaster()
    for t in range(60):
        forecaster.update(float(t), value if t % 7 == 0 else 50.0, 98.0)

    assert forecaster.assess().regime in Regime


def test_a_machine_that_was_as_hot_for_hours_is_believed_to_bear_it():
    """A staircase of loads looks like failing cooling; it may alarm the first time only."""

    def stairs(t):
        steps = (50.0, 66.0, 76.0, 84.0, 93.0)
        at = min(len(steps) - 1, int(t % 1500.0 / 60.0))
        return steps[at] if t % 1500.0 < 900.0 else 50.0

    draw = random.Random(1)
    forecaster, level, alarms = HeatForecaster(), 50.0, []
    for step in range(int(4 * 3600 / 2)):
        t = 2.0 * step
        level += (stairs(t) - level) * (1.0 - math.exp(-2.0 / 40.0))
        forecaster.update(t, float(round(level + draw.gauss(0.0, 0.4))), 105.0)
        if forecaster.assess().strict_eta_s is not None:
            alarms.append(t)

    assert [] == [t for t in alarms if t > 2 * 1500.0]


def test_failing_cooling_is_seen_on_a_machine_that_has_worked_hot_before():
    """The machine was at 90 for hours, is at 75 now, and heats towards 110."""
    forecaster, saved = HeatForecaster(), None
    for step in range(6000):
        t = 2.0 * step
        celsius = 90.0 if t < 7200.0 else 75.0 if t < 10800.0 else 75.0 + 0.1 * (t - 10800.0)
        if celsius >= 105.0:
            break
        forecaster.update(t, float(round(celsius)), 105.0)
        if saved is None and forecaster.assess().eager_eta_s is not None:
            saved = celsius

    assert saved is not None
    assert saved <= 97.0


# First-order heating towards a level below or above the limit: whole degrees, once a second

LIMIT_C = 95.0


def heated(asymptote, tau_s, seed, lasts_s=600):
    """Assessments of a heating, each with the true time left, or None if it never ends."""
    watch = ResourceMonitor(WatchSettings(), StageSettings(), HeatForecaster(), "celsius")
    draw = random.Random(seed)
    end_s = None
    if asymptote > LIMIT_C:
        end_s = -tau_s * math.log((asymptote - LIMIT_C) / (asymptote - 40.0))
    found = []
    for second in range(lasts_s):
        if end_s is not None and second >= end_s:
            break
        level = asymptote - (asymptote - 40.0) * math.exp(-second / tau_s)
        a = watch.step(float(second), float(round(level + draw.gauss(0, 0.3))), LIMIT_C)
        found.append((a, None if end_s is None else end_s - second))
    return found


@pytest.mark.parametrize("tau_s", [15.0, 40.0, 90.0, 180.0])
def test_heat_that_ends_three_degrees_below_its_limit_never_alarms(tau_s):
    """It neither notifies nor saves, and hardly ever shows a time."""
    for seed in range(4):
        found = heated(LIMIT_C - 3.0, tau_s, seed)

        assert not any(a.notify or a.rescue for a, _ in found)
        assert sum(a.forecast is not None for a, _ in found) <= 0.05 * len(found)


@pytest.mark.parametrize("tau_s", [60.0, 90.0, 180.0])
def test_heat_that_leads_beyond_its_limit_is_told_of_with_a_good_time(tau_s):
    """The notice comes before the end; the median error of the times is below a third."""
    for seed in range(4):
        found = heated(LIMIT_C + 15.0, tau_s, seed)
        errors = sorted(
            abs(a.forecast.eta_s - left) / left
            for a, left in found
            if a.forecast is not None and left > 5.0
        )

        assert any(a.notify for a, left in found if left > 5.0)
        assert errors[len(errors) // 2] < 1 / 3


@pytest.mark.parametrize("rate_c_per_s", [0.1, 0.2, 0.3, 0.4, 0.5])
def test_a_straight_rise_is_given_the_time_that_is_left(rate_c_per_s):
    """Rounding errors make a straight line look slightly bent, and must not end it at once."""
    forecaster = HeatForecaster()
    t, level, wrong = 0.0, 50.0, []
    while level < LIMIT_C - 6.0:
        forecaster.update(t, level, LIMIT_C)
        forecast = forecaster.assess().forecast
        left_s = (LIMIT_C - level) / rate_c_per_s
        if forecast is not None and not 0.8 * left_s < forecast.eta_s < 1.2 * left_s:
            wrong.append((t, forecast.eta_s, left_s))
        t += 2.0
        level = 50.0 + rate_c_per_s * max(0.0, t - 120.0)

    assert [] == wrong
