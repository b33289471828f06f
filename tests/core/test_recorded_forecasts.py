"""
The forecasters' results for synthetic series, compared with a recording.

`support.decisions` compares each outlook: every threshold of these forecasters decides at least one
of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest
from support import decisions

from watchdog_app.core.forecast import Forecaster, Outlook
from watchdog_app.core.forecast.forecaster import TrendForecaster
from watchdog_app.core.forecast.heat import HeatForecaster
from watchdog_app.core.forecast.slow import DeviceMemoryForecaster, DischargeForecaster
from watchdog_app.core.model.decisions import Caution

Curve = Callable[[float], float]


def ramp(begin_s: float, level: float, per_s: float, end: float = math.inf) -> Curve:
    """Level, then a straight line up to `end`."""
    return lambda t: min(end, level + per_s * max(0.0, t - begin_s))


def bend(begin_s: float, level: float, end: float, tau_s: float) -> Curve:
    """Level, then a curve that saturates at `end`."""
    return lambda t: end + (level - end) * math.exp(-max(0.0, t - begin_s) / tau_s)


def bow(begin_s: float, level: float, per_s2: float) -> Curve:
    """Level, then ever steeper."""
    return lambda t: level + per_s2 * max(0.0, t - begin_s) ** 2


def again(period_s: float, up_s: float, low: float, high: float) -> Curve:
    """Up along a line and back at once, repeatedly."""
    return lambda t: low + (high - low) * min(1.0, t % period_s / up_s) * (t % period_s < up_s)


def then(at_s: float, first: Curve, second: Curve) -> Curve:
    """One curve, and from `at_s` on another, which starts at 0."""
    return lambda t: first(t) if t < at_s else second(t - at_s)


def noisy(curve: Curve, deviation: float, step: float = 0.0) -> Curve:
    """The curve with noise, in whole `step`s, as a sensor reports it."""
    draw = random.Random(1)

    def told(t: float) -> float:
        value = curve(t) + draw.gauss(0.0, deviation)
        return step * round(value / step) if step else value

    return told


def recorded(
    forecaster: Forecaster, curve: Curve, limit: float, seconds: float, *, every_s: float, each: int
) -> None:
    """Note each outlook in which more than a figure has changed, and every `each`-th."""
    before: object = None
    for index in range(int(seconds / every_s)):
        t = index * every_s
        used = curve(t)
        if used > 1.1 * limit:
            break
        forecaster.update(t, used, limit)
        line = dict(_figures(forecaster.assess()))
        kinds = tuple((key, value if key == "regime" else None) for key, value in line.items())
        if index % each == 0 or kinds != before:
            decisions.note({"t": t, **line})
        before = kinds


def _figures(outlook: Outlook) -> Iterator[tuple[str, object]]:
    yield "regime", outlook.regime
    if outlook.forecast is not None:
        yield "eta_s", [outlook.forecast.low_s, outlook.forecast.eta_s, outlook.forecast.high_s]
    for name in (
        "slope_per_s",
        "span_s",
        "fastest_per_s",
        "strict_eta_s",
        "eager_eta_s",
        "last_chance_s",
    ):
        value = getattr(outlook, name)
        if value is not None and (value or name.endswith(("eta_s", "chance_s"))):
            yield name, value
    if outlook.critical:
        yield "critical", True


HEAT = {
    "a fan that stops": (ramp(60, 70, 0.4), 98.0),
    "a fan that stops, in whole degrees": (noisy(ramp(60, 70, 0.2), 0.4, 1.0), 98.0),
    "a pump that stops": (ramp(60, 70, 1.5), 98.0),
    "a very fast rise": (ramp(90, 80, 2.5), 98.0),
    "a fast rise that spends itself": (bend(90, 85, 96, 4), 98.0),
    "a slow rise": (ramp(100, 80, 0.05), 98.0),
    "a load that ends well below": (bend(30, 45, 85, 30), 98.0),
    "a load that ends just below": (noisy(bend(30, 45, 95, 40), 0.3, 1.0), 98.0),
    "a load that ends just beyond": (bend(30, 45, 102, 40), 98.0),
    "a load that ends far beyond": (bend(30, 45, 140, 60), 98.0),
    "a long way to far beyond": (noisy(bend(60, 70, 108, 120), 0.3, 1.0), 98.0),
    "an ever steeper rise": (bow(60, 70, 0.004), 98.0),
    "noise": (noisy(lambda _: 80.0, 1.2, 1.0), 98.0),
    "a fall": (ramp(60, 90, -0.1), 98.0),
    "a rise below three degrees": (ramp(60, 94, 0.1, 96.9), 98.0),
    "one reading at the limit": (lambda t: 97.0 if 100 <= t < 102 else 70.0, 98.0),
    "two readings at the limit": (lambda t: 96.5 if 100 <= t < 104 else 70.0, 98.0),
    "two readings just below it": (lambda t: 96.4 if 100 <= t < 104 else 70.0, 98.0),
    "the same rise again and again": (again(80, 60, 70, 92), 98.0),
    "loads that get hotter": (lambda t: again(80, 60, 70, 88)(t) + t / 100, 98.0),
    "a rise after a gap": (
        lambda t: ramp(0, 60, 0.3)(t) if t < 100 else ramp(400, 50, 0.4)(t), 98.0,
    ),
    "a rise to where it was for long": (then(400, lambda _: 90.0, ramp(300, 70, 0.2)), 105.0),
}  # fmt: skip


@pytest.mark.parametrize("name", HEAT)
def test_heat_is_foretold_as_before(name: str) -> None:
    curve, limit = HEAT[name]
    recorded(HeatForecaster(), curve, limit, 700.0, every_s=2.0, each=12)


@pytest.mark.parametrize("caution", [Caution.LOW, Caution.HIGH])
def test_heat_is_foretold_as_before_with_another_caution(caution: Caution) -> None:
    forecaster = HeatForecaster()
    forecaster.set_caution(caution)
    recorded(forecaster, noisy(ramp(60, 70, 0.2), 0.4, 1.0), 98.0, 700.0, every_s=2.0, each=12)


@pytest.mark.parametrize("rest_s", [1000.0, 9000.0, 16000.0])
def test_heat_that_was_borne_is_known_for_hours_as_before(rest_s: float) -> None:
    """It is hot for ten minutes, cool for `rest_s`, then hot again along a line."""
    curve = then(600, lambda _: 92.0, ramp(rest_s, 70, 0.1))
    recorded(HeatForecaster(), curve, 105.0, 1000.0 + rest_s, every_s=2.0, each=600)


def test_heat_that_is_read_more_often_or_late_is_foretold_as_before() -> None:
    """Between two bins a forecast ages by the seconds that passed."""
    forecaster, times = HeatForecaster(), random.Random(2)
    t = 0.0
    while t < 200.0:
        t += times.choice((0.3, 0.7, 1.9, 5.0))
        forecaster.update(t, ramp(60, 70, 0.3)(t), 98.0)
        decisions.note({"t": t, **dict(_figures(forecaster.assess()))})


BATTERY = {
    "a steady drain": (ramp(0, 0.2, 1e-4), 1500.0),
    "a steady drain in percents": (noisy(ramp(0, 0.2, 3e-4), 0.0, 0.01), 1500.0),
    "a slow drain in percents": (noisy(ramp(0, 0.5, 3e-5), 0.0, 0.01), 3000.0),
    "a drain in large steps": (noisy(ramp(0, 0.4, 3e-4), 0.0, 0.05), 1500.0),
    "large steps near the end": (noisy(ramp(0, 0.86, 2e-4), 0.0, 0.05), 900.0),
    "a load that begins": (then(600, ramp(0, 0.2, 5e-5), ramp(0, 0.23, 4e-4)), 1500.0),
    "a load that ends": (then(600, ramp(0, 0.2, 4e-4), ramp(0, 0.44, 5e-5)), 1500.0),
    "worn cells": (bow(300, 0.3, 8e-7), 1200.0),
    "charged": (ramp(0, 0.8, -1e-4), 900.0),
    "beyond the reserve": (ramp(0, 0.9, 2e-4), 400.0),
}


@pytest.mark.parametrize("name", BATTERY)
def test_a_battery_is_foretold_as_before(name: str) -> None:
    curve, seconds = BATTERY[name]
    recorded(DischargeForecaster(), curve, 0.95, seconds, every_s=4.0, each=20)


CARD = {
    "taken as a whole": (then(20, lambda _: 0.02, lambda _: 0.95), 120.0),
    "taken as a whole, then it grows": (then(20, lambda _: 0.02, ramp(30, 0.6, 0.004)), 120.0),
    "taken as a whole and beyond the threshold": (
        then(20, lambda _: 0.02, lambda t: 0.60 + 0.0049 * (t > 20) + 0.0002 * (t > 40)), 80.0,
    ),
    "taken in parts": (lambda t: min(0.9, 0.04 * (t // 2)), 80.0),
    "a leak": (ramp(20, 0.5, 0.005), 120.0),
    "full and still": (ramp(0, 0.975, 0.0), 60.0),
    "full and rising": (ramp(20, 0.9, 0.002), 80.0),
}  # fmt: skip


@pytest.mark.parametrize("name", CARD)
def test_device_memory_is_foretold_as_before(name: str) -> None:
    curve, seconds = CARD[name]
    recorded(
        DeviceMemoryForecaster(), lambda t: 1e10 * curve(t), 1e10, seconds, every_s=1.0, each=5
    )


def stairs(every_s: float, step: float, rise_s: float) -> Curve:
    """One step in each span, which takes `rise_s`."""
    return lambda t: 0.1 + step * (t // every_s + min(1.0, t % every_s / rise_s))


def swinging(period_s: float, height: float, per_s: float, up: float = 0.5) -> Curve:
    """Swings over a leak; `up` is the share of the period that rises."""

    def level(t: float) -> float:
        at = t % period_s / period_s
        swing = at / up if at < up else (1.0 - at) / (1.0 - up)
        return 0.2 + per_s * t + height * swing

    return level


MEMORY = {
    "flat": lambda _: 0.4,
    "noise": noisy(lambda _: 0.4, 0.003),
    "a fall": ramp(20, 0.9, -0.005),
    "a leak": ramp(30, 0.3, 0.008),
    "a noisy leak": noisy(ramp(30, 0.3, 0.008), 0.002),
    "a slow leak": noisy(ramp(0, 0.6, 0.002), 0.001),
    "a fast leak": ramp(40, 0.2, 0.1),
    "a leak that pauses": lambda t: 0.3 + 0.008 * (t - 3.0 * (t // 12) - max(0.0, t % 12 - 9.0)),
    "a leak that quickens": then(40, ramp(0, 0.2, 0.003), ramp(0, 0.32, 0.012)),
    "a leak that slows": then(40, ramp(0, 0.2, 0.012), ramp(0, 0.68, 0.003)),
    "ever faster": bow(10, 0.1, 0.00011),
    "ever slower": bend(10, 0.1, 0.85, 25),
    "ever slower and beyond": bend(10, 0.1, 1.3, 60),
    "stairs": stairs(10, 0.09, 2),
    "fine stairs": stairs(3, 0.02, 0.3),
    "bursts": again(15, 3, 0.3, 0.7),
    "swings": swinging(12, 0.3, 0.0),
    "swings over a leak": swinging(12, 0.2, 0.005),
    "high swings over a slow leak": swinging(25, 0.5, 0.002, 0.1),
    "rare peaks that rise": swinging(40, 0.4, 0.002, 0.05),
    "to the limit and away again": again(20, 12, 0.3, 1.0),
    "a warm-up, then a leak": then(15, ramp(0, 0.05, 0.03), ramp(20, 0.5, 0.008)),
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_foretold_as_before(name: str) -> None:
    curve = MEMORY[name]
    recorded(TrendForecaster(), lambda t: 1e9 * curve(t), 1e9, 130.0, every_s=0.2, each=40)


def test_memory_is_foretold_as_before_after_a_gap() -> None:
    def level(t: float) -> float:
        return 1e9 * (0.3 + 0.004 * t)

    forecaster = TrendForecaster()
    recorded(forecaster, level, 1e9, 60.0, every_s=0.5, each=10)
    for index in range(80):
        t = 100.0 + 0.5 * index
        forecaster.update(t, level(t), 1e9)
        if index % 8 == 0:
            decisions.note({"t": t, **dict(_figures(forecaster.assess()))})
