"""The parts of a forecast on a few points: their results and their bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from watchdog_app.core.forecast.evidence import View, convincing_eta_s, read_claims
from watchdog_app.core.forecast.forecaster import STRICT, TrendForecaster
from watchdog_app.core.forecast.scales import Scales
from watchdog_app.core.forecast.shape import TurningPoints, classify_regime
from watchdog_app.core.forecast.slow import Bins
from watchdog_app.core.forecast.stages import ResourceMonitor
from watchdog_app.core.forecast.trends import Trend, TrendKind, read_turns
from watchdog_app.core.model.decisions import Regime
from watchdog_app.core.model.settings import StageSettings, WatchSettings

BOTH, PEAKS, LINE = TrendKind.BOTH, TrendKind.PEAKS, TrendKind.LINE


def blocks(count: int, floor, top) -> list[tuple[float, float, float, float]]:
    """Blocks of a second, each with its lowest value first."""
    return [(float(i), float(floor(i)), i + 0.5, float(top(i))) for i in range(count)]


@pytest.mark.parametrize(
    ("times", "values", "expected"),
    [
        ((0, 20, 40, 60, 80), (100, 110, 120, 130, 140), 0.5),
        ((0, 20, 40), (100, 110, 120), None),  # too few
        ((0, 15, 30, 45), (100, 110, 120, 130), None),  # the scales cover these
        ((0, 16, 32, 48), (100, 110, 120, 130), 0.625),
        ((0, 20, 40, 100), (100, 110, 120, 130), None),  # they are irregular
        ((0, 20, 40, 80), (100, 110, 120, 130), 0.45),
        ((0, 20, 40, 60), (130, 120, 110, 100), None),
        ((0, 20, 40, 60), (100, 100, 100, 100), None),
    ],
)
def test_peaks_far_apart_are_a_trend_where_they_keep_time(times, values, expected):
    """There must be at least four of them, and no gap twice as long as another."""
    peaks = [(float(t), float(v)) for t, v in zip(times, values, strict=True)]
    troughs = [(t + 10.0, 50.0) for t, _ in peaks[:-1]]

    found = read_turns(peaks, troughs)

    assert expected == (None if found is None else pytest.approx(found.slope, abs=0.06))
    if found is not None:
        mean = sum(values) / len(values)
        assert (mean - 50.0) / found.gain == pytest.approx(found.amplitude)
        assert (peaks[-1][0], values[-1]) == (found.reference[0], found.level)
    assert None is read_turns(peaks, [])


def test_bins_are_means_and_repeat_what_was_not_measured():
    """A gap of up to fifteen bins is filled; a longer gap clears them."""
    bins = Bins(2.0, 4)
    ended = [bins.add(t, v) for t, v in ((0.0, 1.0), (1.0, 3.0), (2.0, 5.0), (8.0, 7.0))]
    assert [False, False, True, True] == ended
    assert [2.0, 5.0, 5.0, 5.0] == list(bins.values)
    assert (0.45, 0.5 * math.sqrt(0.27)) == pytest.approx(bins.line(0, 4))
    assert (1.5, 0.0) == bins.line(0, 2)

    bins.add(38.0, 9.0)
    assert 4 == len(bins.values)
    bins.add(68.1, 9.0)
    assert [] == list(bins.values)


# 300 of growth in 30 s to 400, with 100 left: the end is 10 s away.
TREND = Trend(LINE, start_t=70.0, gain=300.0, level=400.0, slope=10.0)
VIEW = View(100.0, 400.0, 500.0, 0.0, TurningPoints(), low_t=98.0, low=380.0)


def eta_of(trend: Trend, view: View) -> float | None:
    """The time to exhaustion that would be notified."""
    return convincing_eta_s(read_claims([trend], view, 0.0), view, STRICT)


@pytest.mark.parametrize(
    ("trend", "view", "convinces"),
    [
        ({}, {}, True),
        ({"recent": 0.79}, {}, False),
        ({"recent": 0.8}, {}, True),
        ({"recent": 2.2}, {}, True),
        ({"recent": 2.21}, {}, False),
        ({"kind": BOTH, "agreement": 0.85, "reference": (98.0, 380.0)}, {}, True),
        ({"kind": BOTH, "agreement": 0.84, "reference": (98.0, 380.0)}, {}, False),
        # the recent growth is only a third
        ({"kind": BOTH, "reference": (98.0, 393.1)}, {}, False),
        ({"kind": BOTH, "reference": (98.0, 392.9)}, {}, True),
        ({"start_t": 85.0}, {}, True),  # started late: 15 s are enough
        ({"start_t": 85.1}, {}, False),
        ({"start_t": 85.0, "gain": 134.0}, {}, True),
        ({"start_t": 85.0, "gain": 132.0}, {}, False),
        ({"start_t": 75.0}, {"start_t": 66.0}, True),  # started with the process: 25 s
        ({"start_t": 75.1}, {"start_t": 66.0}, False),
        ({"start_t": 75.0, "gain": 267.0}, {"start_t": 66.0}, True),
        ({"start_t": 75.0, "gain": 266.0}, {"start_t": 66.0}, False),
        ({"start_t": 75.0}, {"start_t": 65.0}, True),
        ({"start_t": 75.1}, {"start_t": 65.0}, True),  # no longer with the process
        ({"slope": 6.7, "agreement": 0.97}, {}, True),
        ({"slope": 6.6, "agreement": 0.97}, {}, False),  # more than 15 s ahead
        ({"slope": 6.6, "agreement": 0.98}, {}, True),  # but straight
        ({"slope": 5.5, "recent": 0.89}, {}, False),
        ({"slope": 5.5, "recent": 0.9}, {}, True),
        ({"slope": 5.5, "recent": 1.3}, {}, True),
        ({"slope": 5.5, "recent": 1.31}, {}, False),
        ({"slope": 2.8}, {}, True),
        ({"slope": 2.7}, {}, False),  # more than 36 s ahead
        ({"slope": 5.5, "start_t": 74.0}, {}, True),
        ({"slope": 5.5, "start_t": 74.1}, {}, False),
        ({"slope": 5.5, "gain": 83.0}, {}, True),  # 0.8 of the room
        ({"slope": 5.5, "gain": 81.0}, {}, False),
        ({"slope": 5.5, "start_t": 70.0}, {"start_t": 66.0}, True),  # with the process: 30 s
        ({"slope": 5.5, "start_t": 70.1}, {"start_t": 66.0}, False),
        ({"slope": 5.5, "gain": 266.0}, {"start_t": 66.0}, False),
        ({"slope": 2.2, "start_t": -82.0}, {"start_t": -200.0}, True),  # a quarter of its span
        ({"slope": 2.2, "start_t": -81.0}, {"start_t": -200.0}, False),
        # 0.7 of the limit, 0.55 if straight
        ({"level": 351.0, "slope": 12.0, "agreement": 0.97}, {"used": 351.0, "low": 320.0}, True),
        ({"level": 349.0, "slope": 12.0, "agreement": 0.97}, {"used": 349.0, "low": 320.0}, False),
        ({"level": 276.0}, {"used": 276.0, "low": 250.0}, True),
        ({"level": 274.0}, {"used": 274.0, "low": 250.0}, False),
        ({"level": 415.1}, {}, False),  # the line is too far above the value
        ({"level": 414.9}, {}, True),
        ({"gain": 99.0, "level": 375.0}, {}, False),  # the value is far above the line
        ({}, {"low": 392.1, "still_s": 0.1}, False),  # the series is flat
        ({}, {"low": 391.9, "still_s": 0.1}, True),
        ({}, {"low": 399.0, "still_s": 2.0, "pauses": ((80.0, 3.0), (90.0, 2.0))}, True),
        ({}, {"low": 399.0, "still_s": 2.1, "pauses": ((80.0, 3.0), (90.0, 2.0))}, False),
        ({}, {"low": 399.0, "still_s": 2.0, "pauses": ((69.9, 3.0), (90.0, 2.0))}, False),
    ],
)
def test_growth_convinces_where_nothing_innocent_explains_it(trend, view, convinces):
    """Each figure is tested at its bound and just beyond it."""
    eta_s = eta_of(replace(TREND, **trend), replace(VIEW, **view))

    assert convinces is (eta_s is not None)


@pytest.mark.parametrize(
    ("peaks", "convinces"),
    [
        ([], True),
        ([(20.0, 369.0)], True),
        ([(20.0, 371.0)], False),  # not 6 % of the limit above the earlier level
        ([(60.0, 499.0)], False),
        ([(39.0, 499.0), (80.0, 499.0)], False),
        ([(80.0, 499.0)], True),  # a peak of the growth itself
    ],
)
def test_a_level_that_was_reached_before_is_no_news(peaks, convinces):
    """The level was reached and left once, and may be so again."""
    turns = TurningPoints()
    turns.peaks.extend(peaks)

    view = replace(VIEW, turning_points=turns)
    assert convinces is (eta_of(TREND, view) is not None)


@pytest.mark.parametrize(
    ("peaks", "convinces"),
    [
        ([(10.0, 398.0)], True),
        ([(10.0, 398.0), (20.0, 398.0)], False),  # it comes back
        ([(10.0, 398.0), (20.0, 397.0)], True),
        ([(40.1, 398.0)], False),  # less than a minute ago
        ([(39.9, 398.0)], True),
    ],
)
def test_peaks_need_no_new_height_but_must_not_have_been_there_twice(peaks, convinces):
    """They must not have been there once within the last minute either."""
    turns = TurningPoints()
    turns.peaks.extend(peaks)
    trend = replace(TREND, kind=PEAKS, reference=(99.0, 4.0))

    found = eta_of(trend, replace(VIEW, turning_points=turns))

    assert convinces is (found is not None)


@pytest.mark.parametrize(
    ("changes", "convinces"),
    [
        ({}, True),
        ({"agreement": 0.85, "misfit": 0.18}, True),
        ({"agreement": 0.84}, False),
        ({"misfit": 0.19}, False),
        ({"amplitude": 3.0}, True),
        ({"amplitude": 3.1}, False),
        ({"reference": (96.0, 4.0)}, True),
        ({"reference": (95.9, 4.0)}, False),  # the next peak is overdue
    ],
)
def test_peaks_convince_by_their_own_bounds(changes, convinces):
    """The bounds are on agreement, straightness, height, and the time since the last peak."""
    trend = replace(TREND, kind=PEAKS, **{"reference": (99.0, 4.0), **changes})

    assert convinces is (eta_of(trend, VIEW) is not None)


@pytest.mark.parametrize(
    ("start_t", "gain", "slope", "view_start_t", "convinces"),
    [
        (94.0, 144.0, 21.0, 64.0, True),
        (94.1, 144.0, 21.0, 64.0, False),  # at least 6 s of growth
        (94.0, 143.0, 21.0, 64.0, False),
        (94.0, 144.0, 20.0, 64.0, False),  # more than 4.8 s ahead
        (94.0, 144.0, 21.0, 64.1, False),  # started within the first 30 s
        (97.0, 1333.0, 10.0, 0.0, True),  # overwhelming
        (97.1, 1333.0, 10.0, 0.0, False),
        (97.0, 1332.0, 10.0, 0.0, False),
    ],
)
def test_growth_too_fast_for_a_long_look_has_bounds_of_its_own(
    start_t, gain, slope, view_start_t, convinces
):
    """It must start late, or far exceed what is left."""
    trend = replace(TREND, start_t=start_t, gain=gain, slope=slope)
    view = replace(VIEW, start_t=view_start_t, low=300.0)

    assert convinces is (eta_of(trend, view) is not None)


def movement(level, lasts_s: float, limit: float = 100.0, *, grows: bool = True) -> Regime:
    """The regime of a series at its end, with eight samples a second."""
    scales, turns = Scales(), TurningPoints()
    for i in range(int(8 * lasts_s) + 1):
        scales.add(i / 8, level(i / 8))
        turns.add(i / 8, level(i / 8), 0.04 * limit)
    rise = level(lasts_s) - level(0.0)
    return classify_regime(lasts_s, scales, turns, rise, limit, grows)


@pytest.mark.parametrize(
    ("level", "lasts_s", "limit", "grows", "expected"),
    [
        (lambda t: 10 * (t // 3), 8.5, 100.0, True, Regime.STAIRCASE),
        (lambda t: 10 * (t // 3), 8.5, 150.0, True, Regime.LINEAR),  # an allocator's blocks
        (lambda t: 20 * (t // 4.5), 8.5, 100.0, True, Regime.LINEAR),  # one jump
        (lambda t: 5 * t, 8.5, 100.0, True, Regime.LINEAR),
        (lambda t: 90 - t, 4.75, 100.0, False, Regime.FLAT),
        (lambda t: 90 - t, 5.0, 100.0, False, Regime.FALLING),
        (lambda t: 90 - 0.02 * t, 5.0, 100.0, False, Regime.FLAT),  # less than 2 in a thousand
        (lambda t: 90 - t, 1.25, 100.0, False, Regime.UNKNOWN),
        (lambda t: 90 - t, 1.5, 100.0, False, Regime.FLAT),
        (lambda t: 20 + 10 * (t % 4), 30.0, 100.0, False, Regime.SAWTOOTH),
        (lambda t: 20 + 40 * (t % 4 < 0.5), 30.0, 100.0, False, Regime.BURST),
        # Growth over three swings is growth.
        (lambda t: 10 + 3 * t + 5 * (t % 2), 30.0, 100.0, True, Regime.LINEAR),
    ],
)
def test_a_movement_has_its_word_from_its_figures(level, lasts_s, limit, grows, expected):
    """Each regime is tested at its bound."""
    assert expected is movement(level, lasts_s, limit, grows=grows)


@pytest.mark.parametrize(
    ("before", "rate", "lasts_s", "expected"),
    [
        (300.0, 100.0, 46.0, 1.0),
        (899.0, 100.0, 46.0, None),  # the level was reached before, and left
        (890.0, 100.0, 46.0, 1.0),
        (300.0, 100.0, 43.4, None),  # below 65 % of the limit
        (300.0, 100.0, 43.6, 3.4),
        (300.0, 140.0, 44.0, None),  # a burst
        (300.0, 140.0, 44.6, 0.4),  # ... as high as this it is the end
        (300.0, 9.0, 95.0, None),  # too slow
    ],
)
def test_the_last_chance_is_growth_too_fast_to_wait_for(before, rate, lasts_s, expected):
    """It uses the last seconds only, from two thirds of the limit on."""

    def level(t):
        if 20 <= t < 22:
            return before
        return 300.0 + rate * max(0.0, t - 40.0)

    forecaster = TrendForecaster()
    for i in range(round(10 * lasts_s) + 1):
        forecaster.update(i / 10, level(i / 10), 1000.0)
    found = forecaster.last_chance(forecaster.view())

    assert expected == (None if found is None else pytest.approx(found, abs=0.15))


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(1.0, 7.0), (1.4, 5.0), (2.3, 3.04), (2.4, 0.1), (0.5, 10.0), (0.0, 10.0)],
)
def test_a_resource_is_looked_at_a_hundred_times_on_its_way(rate, expected):
    """It is as fast as allowed in the last five minutes, and never slower than usual."""
    watch = ResourceMonitor(WatchSettings(interval_s=10.0, fast_interval_s=0.1), StageSettings())
    for i in range(600):
        watch.step(i / 10, 300.0 - 60 * rate + rate * i / 10, 1000.0)

    assert expected == pytest.approx(watch.next_sample_s, rel=0.02)
