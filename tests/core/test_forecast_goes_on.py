"""Whether growth continues, and whether its end is new information."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchdog_app.core.forecast.scales import concordance
from watchdog_app.core.forecast.stages import ResourceMonitor
from watchdog_app.core.model.settings import StageSettings, WatchSettings

LIMIT = 1000.0


def told(level, lasts, hz=10):
    """(time, notify, rescue) of each sample of a series."""
    watch, draw, found = ResourceMonitor(WatchSettings(), StageSettings()), random.Random(1), []
    for i in range(int(lasts * hz)):
        a = watch.step(i / hz, level(i / hz, draw), LIMIT)
        found.append((i / hz, a.notify, a.rescue))
    return found


def stopped_ramp(t, draw):
    return 100 + 17 * min(t, 44) + draw.gauss(0, 0.5)


def test_a_ramp_that_stops_closes_its_alarm_soon():
    """It alarms while the series rises, and rests a few seconds after it stopped."""
    found = told(stopped_ramp, 80)
    notices = [t for t, notify, _ in found if notify]

    assert notices[0] < 44
    assert 44 <= notices[-1] < 52
    assert not any(rescue for t, _, rescue in found if t > 54)


def test_what_has_stopped_opens_nothing():
    """Evidence that is complete only after the last rise does not count."""
    found = told(lambda t, d: min(860.0, 100 + 36 * t) + d.gauss(0, 0.5), 60)

    assert not any(notify for _, notify, _ in found)


def test_an_alarm_lasts_through_the_treads_of_a_staircase():
    """Pauses no longer than the earlier ones do not end the alarm."""
    found = told(lambda t, d: 60 + 70 * (t // 6 + min(1.0, (t % 6) / 2)), 77)
    notices = [t for t, notify, _ in found if notify]

    assert len(notices) == round(10 * (notices[-1] - notices[0])) + 1
    assert notices[-1] == pytest.approx(76.9)


def test_one_spike_is_no_envelope():
    """A table is copied once when it grows, and then grows ever less."""

    def vocabulary(t, _):
        grown = 420 * (t / (t + 15))
        return 100 + grown + (150 if t > 45 else 0) + (160 if 45 < t < 45.6 else 0)

    assert not any(notify for _, notify, _ in told(vocabulary, 100))


def test_a_tooth_as_high_as_those_before_is_no_news():
    """Garbage is collected at varying heights, sometimes a little higher than ever."""
    heights = [800, 740, 815, 700, 830]

    def teeth(t, _):
        return 300 + min((t % 17) * 31.25, heights[int(t // 17) % 5] - 300)

    assert not any(notify for t, notify, _ in told(teeth, 85) if t > 20)


def test_what_often_touches_its_limit_lives_there():
    """Short peaks at 99 % that come back alarm at most at first."""
    found = told(lambda t, d: 500 + (490 if 0 < t % 8 < 0.5 else 0) + d.gauss(0, 1), 160)

    assert not any(notify for t, notify, _ in found if t > 40)


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6), max_size=9), st.floats(0, 1e3), st.sampled_from([0.3, 0.5, 0.9])
)
def test_a_bound_on_the_concordance_is_never_above_what_was_asked(values, ignore, least):
    """Stopping early changes nothing for values that rise enough."""
    exact, early = concordance(values, ignore), concordance(values, ignore, least)

    assert (exact >= least) == (early >= least)
    if exact >= least:
        assert exact == early
