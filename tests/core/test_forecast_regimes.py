"""The regime of each kind of series, and which of them cause a notice."""

from __future__ import annotations

import math
import random

import pytest

from watchdog_app.core.forecast.scales import concordance, sen_slope
from watchdog_app.core.forecast.shape import LineFit, TurningPoints
from watchdog_app.core.forecast.stages import ResourceMonitor
from watchdog_app.core.model.decisions import Caution, Regime, Stage
from watchdog_app.core.model.settings import StageSettings, WatchSettings

LIMIT = 1000.0


def play(level, lasts, hz=10, **settings):
    """Assessments of a series until it reaches its limit."""
    watch = ResourceMonitor(WatchSettings(**settings), StageSettings(), unit="units")
    draw, found = random.Random(3), []
    for i in range(int(lasts * hz)):
        used = level(i / hz, draw)
        if used >= LIMIT:
            break
        found.append(watch.step(i / hz, used, LIMIT))
    return found


SERIES = {
    Regime.FLAT: lambda t, d: 400 + d.gauss(0, 0.2),
    Regime.FALLING: lambda t, d: 900 - 5 * t,
    Regime.LINEAR: lambda t, d: 200 + 6 * t + d.gauss(0, 1),
    Regime.STAIRCASE: lambda t, d: 100 + 100 * (t // 8 + min(1.0, (t % 8) / 1.5)),
    Regime.SAWTOOTH: lambda t, d: 300 + 40 * (t % 9),
    Regime.BURST: lambda t, d: 300 + (400 if 0 < t % 15 < 1.5 else 0),
}


@pytest.mark.parametrize("regime", SERIES)
def test_a_movement_is_called_by_its_name(regime):
    """After half a minute over 40 % of the answers name the right regime."""
    named = [a.regime for a in play(SERIES[regime], 70)][300:]

    assert named.count(regime) > 0.4 * len(named), {r: named.count(r) for r in named}


@pytest.mark.parametrize(
    "level",
    [
        pytest.param(lambda t, d: min(700, 60 + 35 * t), id="data set loaded"),
        pytest.param(lambda t, d: 300 + 40 * (t % 9), id="garbage collected"),
        pytest.param(lambda t, d: 300 + (450 if 20 < t % 25 < 22 else 0), id="validation"),
        pytest.param(
            lambda t, d: 100 + 300 * (1 - math.exp(-t / 4)) + min(150, max(0, t - 15) * 15),
            id="imports, model, first epoch",
        ),
        pytest.param(lambda t, d: 650 + d.gauss(0, 15), id="noise on a high plateau"),
        pytest.param(lambda t, d: 200 + 500 * t / (t + 15), id="cache that fills"),
        pytest.param(
            lambda t, d: 300 + (350 + 60 * (t // 20 % 3) if t % 20 > 14 else 0),
            id="validations of different sizes",
        ),
    ],
)
def test_innocent_growth_is_not_told_of(level):
    """They cause no notice, no pause and no checkpoint."""
    found = play(level, 120)

    assert not any(a.notify or a.rescue or a.stage is Stage.PAUSE for a in found)


@pytest.mark.parametrize(
    "level",
    [
        pytest.param(lambda t, d: 200 + 8 * max(0, t - 30), id="leak"),
        pytest.param(lambda t, d: 80 * math.exp(t / 32), id="ever faster"),
        pytest.param(lambda t, d: 150 + 60 * (t // 6), id="steps"),
        pytest.param(lambda t, d: 150 + 5 * t + 20 * (t % 6), id="garbage over a leak"),
        pytest.param(lambda t, d: (60 + 5 * t) * (1 if t % 2 < 1 else 2), id="copies of a table"),
        pytest.param(lambda t, d: 1000 * (t / 90) ** 0.7, id="slower, and arrives"),
        pytest.param(
            lambda t, d: 200 + 1.7 * t + (200 if t % 60 > 50 else 0),
            id="validations over a slow leak",
        ),
    ],
)
def test_growth_that_kills_is_told_of_ten_seconds_ahead(level):
    """The notice stays until the end."""
    found = play(level, 400)
    first = next(i for i, a in enumerate(found) if a.notify)

    assert len(found) - first >= 100
    assert found[-1].notify


def test_a_silent_checkpoint_may_come_before_the_notice():
    """The eager tier alone: stage SAVE and no notice."""
    found = play(lambda t, d: 300 + 25 * max(0, t - 15), 60)
    silent = [a for a in found if a.rescue and not a.notify]

    assert silent
    assert {Stage.SAVE} == {a.stage for a in silent}


def test_what_sits_at_its_limit_is_not_paused():
    """A group may be at 99 % for days."""
    found = play(lambda t, d: 990.0, 60)

    assert Stage.PAUSE not in {a.stage for a in found}


def test_more_caution_asks_for_less_evidence():
    """The first notice of a leak: high is no later than normal, normal no later than low."""
    firsts = []
    for caution in (Caution.HIGH, Caution.NORMAL, Caution.LOW):
        found = play(lambda t, d: 200 + 10 * max(0, t - 20), 200, caution=caution)
        firsts.append(next(i for i, a in enumerate(found) if a.notify))

    assert sorted(firsts) == firsts
    assert firsts[0] < firsts[2]


def test_the_reason_is_said_in_words():
    """The reason gives rate, duration, kind and level, with readable units."""
    watch = ResourceMonitor(WatchSettings(), StageSettings())
    for i in range(400):
        a = watch.step(i * 0.1, (2 + 0.02 * i / 10) * 1024**3, 7.0 * 1024**3)

    assert a.why.startswith("rising 20.5 MiB/s for ")
    assert ", steady; 2.80 GiB of 7.00 GiB" in a.why


def test_growth_read_from_peaks_is_said_to_be_of_peaks():
    """The present level alone would not support the forecast."""
    found = play(lambda t, d: (60 + 5 * t) * (1 if t % 2 < 1 else 2), 80)

    assert found[-1].why.startswith("peaks rising ")


def test_a_bend_and_a_beginning_widen_the_interval():
    """A steady line long after its start has the narrowest interval."""

    def width(level):
        found = play(level, 60)[300:]
        shares = [a.forecast.high_s / a.forecast.low_s for a in found if a.forecast]
        return sorted(shares)[len(shares) // 2]

    steady = width(lambda t, d: 200 + 8 * t)
    begun = play(lambda t, d: 200 + 8 * t, 6)[-1].forecast

    assert steady < width(lambda t, d: 100 * math.exp(t / 32))
    assert steady < begun.high_s / begun.low_s


def test_one_spike_does_not_move_sens_slope():
    """Sen's slope is a median, so an outlier hardly changes it."""
    times = [float(i) for i in range(9)]
    values = [2.0 * i for i in range(9)]
    values[4] = 500.0

    assert pytest.approx(2.0) == sen_slope(times, values)
    assert 0.6 < concordance(values, 0.0) < 1.0


def test_a_line_starts_afresh_where_the_course_changes():
    """Flat, then rising: the slope is that of the rise only."""
    line_fit = LineFit()
    for i in range(400):
        line_fit.add(i * 0.1, 100.0 + max(0.0, i * 0.1 - 20.0) * 3.0, 200.0)

    assert 20.0 == pytest.approx(line_fit.origin, abs=1.5)
    assert 3.0 == pytest.approx(line_fit.line()[0], rel=0.02)


def test_high_peaks_are_remembered_longer_than_ripples():
    """Sixteen are kept; the lowest of the older ones are dropped first."""
    turning_points, t = TurningPoints(), 0.0
    for height in (900.0, *[300.0] * 40):
        for v in (100.0, height, 100.0):
            turning_points.add(t, v, 50.0)
            t += 1.0

    assert len(turning_points.peaks) <= 16
    assert (1, 900.0) == (
        turning_points.visits(800.0, t).times,
        turning_points.visits(800.0, t).highest,
    )
