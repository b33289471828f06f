"""One monitored resource: stages, pace and the two tiers."""

from __future__ import annotations

import math

import pytest

from watchdog_app.core.forecast import Outlook
from watchdog_app.core.forecast.stages import ResourceMonitor
from watchdog_app.core.model.decisions import Assessment, Caution, Regime, SaveCost, Stage
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
    """A steady leak opens the rescue tier before the limit, at the monitor's own sampling rate."""
    watch = ResourceMonitor(WatchSettings(), StageSettings())
    t, used, rescued = 0.0, 0.4 * limit, None
    while used < limit:
        a = watch.step(t, used * MIB, limit * MIB, SaveCost(save_s=0.1, step_s=0.05))
        if a.rescue:
            rescued = used
            break
        t += watch.next_sample_s
        used = (0.4 if t < 30 else 0.4 + rate * (t - 30) / limit) * limit

    assert rescued is not None
    assert 0.8 <= (limit - rescued) / rate


def test_a_flat_series_stays_at_rest():
    """There is no alarm, and the interval is the longest."""
    watch = ResourceMonitor(WatchSettings(), StageSettings())
    last = played(watch, [(i * 1.0, 500 * MIB) for i in range(200)], 1000 * MIB)[-1]

    assert (Stage.OK, False, False, None) == (last.stage, last.notify, last.rescue, last.forecast)
    assert watch.next_sample_s == 1.0


def test_samples_that_repeat_a_time_or_go_back_change_nothing():
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
    """A division by it would crash; an alarm would be false."""
    watch = ResourceMonitor(WatchSettings(), StageSettings())

    assert Stage.OK is watch.step(1.0, 5.0, 0.0).stage


class Foretold:
    """A forecaster that returns a given outlook."""

    def __init__(self, outlook: Outlook) -> None:
        self.outlook = outlook

    def update(self, mono_s: float, used: float, limit: float) -> None:
        """Read nothing."""

    def set_caution(self, caution: Caution) -> None:
        """Ignore the caution."""

    def assess(self) -> Outlook:
        return self.outlook


KNOWN = SaveCost(save_s=4.0, step_s=1.0)


@pytest.mark.parametrize(
    ("outlook", "settings", "costs", "stage", "notify"),
    [
        ({}, {}, SaveCost(), Stage.OK, False),
        # The low end, six tenths of the time, within `warn_s`.
        ({"strict_eta_s": 199.0}, {}, SaveCost(), Stage.SAVE, True),
        ({"strict_eta_s": 201.0}, {}, SaveCost(), Stage.OK, False),
        ({"strict_eta_s": 399.0}, {"caution": Caution.HIGH}, SaveCost(), Stage.SAVE, True),
        ({"strict_eta_s": 401.0}, {"caution": Caution.HIGH}, SaveCost(), Stage.OK, False),
        ({"strict_eta_s": 99.0}, {"caution": Caution.LOW}, SaveCost(), Stage.SAVE, True),
        ({"strict_eta_s": 101.0}, {"caution": Caution.LOW}, SaveCost(), Stage.OK, False),
        # Three times save plus step: 7 s and 1 s if unknown, at least 10 s.
        ({"eager_eta_s": 39.9}, {}, SaveCost(), Stage.SAVE, False),
        ({"eager_eta_s": 40.1}, {}, SaveCost(), Stage.OK, False),
        ({"eager_eta_s": 24.9}, {}, KNOWN, Stage.SAVE, False),
        ({"eager_eta_s": 25.1}, {}, KNOWN, Stage.OK, False),
        ({"eager_eta_s": 16.6}, {}, SaveCost(0.1, 0.1), Stage.SAVE, False),
        ({"eager_eta_s": 16.7}, {}, SaveCost(0.1, 0.1), Stage.OK, False),
        # One and a half times save plus step, at least 1.5 s.
        ({"last_chance_s": 1.49}, {}, SaveCost(), Stage.SAVE, False),
        ({"last_chance_s": 1.51}, {}, SaveCost(), Stage.OK, False),
        ({"last_chance_s": 7.4}, {}, KNOWN, Stage.SAVE, False),
        ({"last_chance_s": 7.6}, {}, KNOWN, Stage.OK, False),
        ({"last_chance_s": 2.9}, {"caution": Caution.HIGH}, SaveCost(), Stage.SAVE, False),
        ({"last_chance_s": 0.8}, {"caution": Caution.LOW}, SaveCost(), Stage.OK, False),
        ({"strict_eta_s": 3.3, "critical": True}, {}, SaveCost(), Stage.PAUSE, True),
        ({"strict_eta_s": 3.4, "critical": True}, {}, SaveCost(), Stage.SAVE, True),
        ({"strict_eta_s": 0.0}, {}, SaveCost(), Stage.SAVE, True),
        # A heads-up is shown, whatever it will cost to save, and nobody is notified.
        ({"heads_up_eta_s": 170.0}, {}, SaveCost(), Stage.WATCH, False),
        ({"heads_up_eta_s": 20.0, "eager_eta_s": 20.0}, {}, SaveCost(), Stage.SAVE, False),
        # Growth alone makes it look more often, and shows nothing.
        ({"fastest_per_s": 100.0}, {}, SaveCost(), Stage.OK, False),
    ],
)
def test_each_stage_begins_at_its_bound(outlook, settings, costs, stage, notify):
    """The predicted time, the cost of a save and the caution decide."""
    watch = ResourceMonitor(
        WatchSettings(**settings), StageSettings(), Foretold(Outlook(**outlook))
    )

    found = watch.step(1.0, 500.0, 1000.0, costs)

    assert (stage, notify) == (found.stage, found.notify)
    assert (stage >= Stage.SAVE) is found.rescue
    assert 0.5 == found.ratio


def test_a_resource_that_fills_is_sampled_a_hundred_times_on_its_way():
    """Five hundred of room at one a second; the fastest samples within five minutes of the end."""
    foretold = Foretold(Outlook(fastest_per_s=1.0))
    watch = ResourceMonitor(WatchSettings(interval_s=10.0), StageSettings(), foretold)
    watch.step(1.0, 500.0, 1000.0)
    assert pytest.approx(5.0) == watch.next_sample_s

    foretold.outlook = Outlook(fastest_per_s=2.0)
    watch.step(2.0, 500.0, 1000.0)
    assert watch.next_sample_s == WatchSettings().fast_interval_s


@pytest.mark.parametrize(("unit", "outlives_s"), [("bytes", 4.0), ("celsius", 15.0)])
def test_a_stage_outlives_its_evidence_and_ends_later_than_it_began(unit, outlives_s):
    """It ends at one and a half times the time, and then some seconds later."""
    foretold = Foretold(Outlook(strict_eta_s=199.0))
    watch = ResourceMonitor(WatchSettings(), StageSettings(), foretold, unit)
    assert watch.step(0.0, 500.0, 1000.0).notify

    foretold.outlook = Outlook(strict_eta_s=299.0)
    assert watch.step(100.0, 500.0, 1000.0).notify
    foretold.outlook = Outlook(strict_eta_s=301.0)
    assert watch.step(100.0 + outlives_s, 500.0, 1000.0).notify
    assert not watch.step(100.1 + outlives_s, 500.0, 1000.0).notify
    foretold.outlook = Outlook(strict_eta_s=299.0)
    assert not watch.step(200.0, 500.0, 1000.0).notify


def test_before_the_first_reading_nothing_is_said():
    """A reading without a number does not count either."""
    watch = ResourceMonitor(WatchSettings(), StageSettings())

    found = watch.step(math.nan, 1.0, 2.0)

    assert Assessment(Stage.OK, Regime.UNKNOWN, 0.0, 0.0, None, "no readings yet") == found
    assert WatchSettings().interval_s == watch.next_sample_s
    watch.step(1.0, 500.0, 0.0)
    assert Assessment(
        Stage.OK, Regime.UNKNOWN, 0.0, 0.0, None, "the limit is unknown"
    ) == watch.step(1.0, 1.0, 2.0)
