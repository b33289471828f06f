"""One resource under watch: stages, pace and the two tiers."""

from __future__ import annotations

import pytest

from watchdog_app.core.forecast.stages import ResourceMonitor
from watchdog_app.core.model.decisions import SaveCost, Stage
from watchdog_app.core.model.settings import StageSettings, WatchSettings

MIB = 1024.0**2


def played(watch, series, limit):
    return [watch.step(t, used, limit) for t, used in series]


@pytest.mark.parametrize(
    ("rate", "limit"),
    [
        (5.0, 1000.0),
        (20.0, 1000.0),
        (100.0, 1000.0),
        (5.0, 2000.0),
        (100.0, 2000.0),
        (190.0, 2000.0),
    ],
)
def test_every_leak_that_takes_five_seconds_from_half_full_is_rescued(rate, limit):
    """A steady leak opens the rescue tier before the limit, at the pace the watch asks for."""
    watch = ResourceMonitor(WatchSettings(), StageSettings())
    t, used, rescued = 0.0, 0.4 * limit, None
    while used < limit:
        a = watch.step(t, used * MIB, limit * MIB, SaveCost(save_s=0.1, step_s=0.05))
        if a.rescue:
            rescued = used
            break
        t += watch.next_look_s
        used = (0.4 if t < 30 else 0.4 + rate * (t - 30) / limit) * limit

    assert rescued is not None
    assert 0.8 <= (limit - rescued) / rate


def test_a_flat_series_stays_at_rest():
    """Nothing that moves: no alarm, and the slowest pace."""
    watch = ResourceMonitor(WatchSettings(), StageSettings())
    last = played(watch, [(i * 1.0, 500 * MIB) for i in range(200)], 1000 * MIB)[-1]

    assert (Stage.OK, False, False, None) == (last.stage, last.notify, last.rescue, last.forecast)
    assert watch.next_look_s == 1.0


def test_samples_that_repeat_a_time_or_go_back_change_nothing():
    """Order and duplicates do not matter."""
    watch = ResourceMonitor(WatchSettings(), StageSettings())
    first = watch.step(1.0, 10.0, 100.0)

    assert first is watch.step(1.0, 99.0, 100.0)
    assert first is watch.step(0.5, 99.0, 100.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_readings_that_are_no_numbers_are_ignored(bad):
    """A sensor that returns nonsense must not stop the loop."""
    watch = ResourceMonitor(WatchSettings(), StageSettings())

    assert Stage.OK is watch.step(1.0, bad, 100.0).stage
    assert Stage.OK is watch.step(bad, 1.0, 100.0).stage
    assert Stage.OK is watch.step(2.0, 1.0, bad).stage


def test_a_limit_of_zero_is_an_unknown_limit():
    """Division by it would be a crash; alarm on it would be a lie."""
    watch = ResourceMonitor(WatchSettings(), StageSettings())

    assert Stage.OK is watch.step(1.0, 5.0, 0.0).stage
