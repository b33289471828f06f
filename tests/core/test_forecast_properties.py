"""Properties that hold for every series: units, order, headroom, bounded memory, no exception."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from watchdog_app.core.forecast.forecaster import TrendForecaster
from watchdog_app.core.forecast.stages import ResourceMonitor
from watchdog_app.core.model.decisions import SaveCost, Stage
from watchdog_app.core.model.settings import StageSettings, WatchSettings

LIMIT = 1000.0
finite = st.floats(allow_nan=False, allow_infinity=False)
levels = st.floats(0.0, 1.0)


def watch():
    return ResourceMonitor(WatchSettings(), StageSettings())


def wandering(seed, n=300):
    """A series with ramps, noise, jumps and falls, drawn from a seed."""
    draw = random.Random(seed)
    value, rate, out = draw.uniform(50, 400), 0.0, []
    for _ in range(n):
        if draw.random() < 0.03:
            rate = draw.choice([0.0, draw.uniform(-4, 8), draw.uniform(0, 2)])
        if draw.random() < 0.01:
            value += draw.uniform(-200, 200)
        value = min(950.0, max(1.0, value + rate))
        out.append(value + draw.uniform(-1, 1) * draw.choice([0, 0, 3]))
    return out


def etas(values, limit=LIMIT, dt=0.1, t0=0.0):
    forecaster, out = TrendForecaster(), []
    for i, v in enumerate(values):
        forecaster.update(t0 + i * dt, v, limit)
        f = forecaster.assess().forecast
        out.append(None if f is None else (f.low_s, f.eta_s, f.high_s))
    return out


@given(st.lists(st.tuples(finite, finite, finite), max_size=60))
@settings(max_examples=150, deadline=None)
def test_no_finite_input_raises(samples):
    """Times that go back, absurd values, moving and negative limits get an answer."""
    w = watch()
    for t, used, limit in samples:
        a = w.step(t, used, limit)
        assert 0.0 <= w.next_sample_s <= 1.0
        if a.forecast is not None:
            assert 0.0 <= a.forecast.low_s <= a.forecast.eta_s <= a.forecast.high_s


@given(st.integers(0, 10**6), st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_gaps_resets_and_moving_limits_never_raise(seed, every):
    """This covers suspends, counters that restart, and limits that jump, also to zero."""
    draw, w, t = random.Random(seed), watch(), 0.0
    for i, v in enumerate(wandering(seed)):
        t += draw.choice([0.1, 0.1, 1.0]) if i % every else draw.choice([31.0, 3600.0])
        a = w.step(t, 0.0 if draw.random() < 0.02 else v, draw.choice([LIMIT, 500.0, 0.0, 2000.0]))
        assert math.isfinite(a.ratio)


@given(factor=st.sampled_from([2.0**10, 2.0**30, 2.0**-8]), seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_the_unit_of_the_series_changes_nothing(factor, seed):
    """Bytes or GiB give the same forecast and the same stage."""
    values = wandering(seed)
    plain, scaled = watch(), watch()
    for i, v in enumerate(values):
        a = plain.step(i * 0.1, v, LIMIT)
        b = scaled.step(i * 0.1, v * factor, LIMIT * factor)
        assert (a.stage, a.regime, a.notify, a.rescue) == (b.stage, b.regime, b.notify, b.rescue)
        assert a.forecast == b.forecast


@given(seed=st.integers(0, 10**6), shift=st.sampled_from([0.0, 1024.0, 2.0**20]))
@settings(max_examples=20, deadline=None)
def test_when_the_clock_began_changes_nothing(seed, shift):
    """Monotonic time may start anywhere."""
    values = wandering(seed)
    for here, there in zip(etas(values, dt=0.125), etas(values, dt=0.125, t0=shift), strict=True):
        assert (here is None) == (there is None)
        if here is not None:
            assert here == pytest.approx(there, rel=1e-6, abs=1e-6)


@given(rate=st.floats(0.5, 20.0), start=st.floats(0.0, 500.0), shift=st.floats(0.0, 1e5))
@settings(max_examples=30, deadline=None)
def test_a_constant_slope_gives_the_exact_time(rate, start, shift):
    """This holds for any slope, level, and offset of both series and limit."""
    forecaster = TrendForecaster()
    for i in range(150):
        used = start + rate * i * 0.1
        assume(used < 0.9 * LIMIT)
        forecaster.update(i * 0.1, shift + used, shift + LIMIT)
    left = (LIMIT - used) / rate
    forecast = forecaster.assess().forecast
    assume(rate * 14.9 > 0.03 * (LIMIT - used) + 0.003 * shift)

    assert forecast is not None
    # The last reading may be a quarter of a second old.
    assert left == pytest.approx(forecast.eta_s, rel=1e-3, abs=1e-3)
    assert forecast.low_s <= left <= forecast.high_s


@settings(deadline=None)
@given(scale=st.sampled_from([1.0, 2.0, 10.0]))
def test_slower_time_is_a_slower_end(scale):
    """The same ramp, `scale` times slower, ends `scale` times later."""
    values = [100.0 + 2.0 * i for i in range(150)]
    first = etas(values)[-1]
    slow = etas(values, dt=0.1 * scale)[-1]

    assert scale * first[1] == pytest.approx(slow[1], rel=1e-6)


@given(values=st.lists(levels, min_size=5, max_size=200))
@settings(max_examples=60, deadline=None)
def test_a_falling_series_has_no_time_of_exhaustion(values):
    """There is no ETA for a falling series, at any pace."""
    falling = sorted((1.0 + v * 900 for v in values), reverse=True)

    assert [None] * len(falling) == etas(falling)


@given(level=st.floats(0.0, 999.0), n=st.integers(1, 300))
@settings(max_examples=30, deadline=None)
def test_a_flat_series_has_no_time_of_exhaustion(level, n):
    """There is no ETA for a constant series."""
    assert [None] * n == etas([level] * n)


@given(seed=st.integers(0, 10**6), more=st.floats(1.0, 3.0))
@settings(max_examples=60, deadline=None)
def test_more_headroom_never_brings_the_end_nearer(seed, more):
    """A higher limit gives a later end, or none."""
    values = wandering(seed)
    for near, far in zip(etas(values), etas(values, limit=LIMIT * more), strict=True):
        if near is not None and far is not None:
            assert near[1] <= far[1] + 1e-9


@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_order_and_repetition_of_samples_change_nothing(seed):
    """Late and repeated samples are dropped."""
    values, draw = wandering(seed), random.Random(seed)
    clean, dirty = watch(), watch()
    for i, v in enumerate(values):
        a = clean.step(i * 0.1, v, LIMIT)
        b = dirty.step(i * 0.1, v, LIMIT)
        dirty.step(i * 0.1, draw.uniform(0, LIMIT), LIMIT)
        dirty.step(i * 0.1 - 5.0, draw.uniform(0, LIMIT), LIMIT)
        assert a == b


def test_memory_is_bounded():
    """3,000 samples need less than 1.3 times the memory of 1,500."""
    import tracemalloc

    def held(n):
        tracemalloc.start()
        w, draw = watch(), random.Random(1)
        for i in range(n):
            w.step(i * 1.0, 500 + draw.gauss(0, 60), LIMIT)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return size

    held(100)  # what a process allocates once does not belong to the series

    assert held(3000) < 1.3 * held(1500)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_dearer_saves_are_rescued_no_later(seed):
    """A longer checkpoint is never requested later."""
    values = wandering(seed)
    cheap, dear = watch(), watch()
    for i, v in enumerate(values):
        early = dear.step(i * 0.1, v, LIMIT, SaveCost(save_s=20.0, step_s=2.0)).rescue
        late = cheap.step(i * 0.1, v, LIMIT, SaveCost(save_s=0.2, step_s=0.1)).rescue
        assert early or not late
        assert Stage.SAVE <= dear.step(i * 0.1, v, LIMIT).stage or not early
