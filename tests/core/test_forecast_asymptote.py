"""A first-order lag to a level below the limit, and beyond it: whole degrees, once a second."""

from __future__ import annotations

import math
import random

import pytest

from watchdog_app.core.forecast.stages import ResourceMonitor, forecaster_for
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.settings import StageSettings, WatchSettings

LIMIT_C = 95.0


def heated(asymptote, tau_s, seed, lasts_s=600):
    """Assessments of a heating, with the true time left at each, None where it never ends."""
    reading = Reading(ResourceKey(ResourceKind.TEMPERATURE, "gpu0"), "GPU", 40.0, LIMIT_C, True, ())
    watch = ResourceMonitor(WatchSettings(), StageSettings(), forecaster_for(reading), "celsius")
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
    """Neither told of nor saved for, and hardly a look that shows a time."""
    for seed in range(4):
        found = heated(LIMIT_C - 3.0, tau_s, seed)

        assert not any(a.notify or a.rescue for a, _ in found)
        assert sum(a.forecast is not None for a, _ in found) <= 0.05 * len(found)


@pytest.mark.parametrize("tau_s", [60.0, 90.0, 180.0])
def test_heat_that_leads_beyond_its_limit_is_told_of_with_a_good_time(tau_s):
    """Before the end, and the median of the times shown is within a third of the truth."""
    for seed in range(4):
        found = heated(LIMIT_C + 15.0, tau_s, seed)
        errors = sorted(
            abs(a.forecast.eta_s - left) / left
            for a, left in found
            if a.forecast is not None and left > 5.0
        )

        assert any(a.notify for a, left in found if left > 5.0)
        assert errors[len(errors) // 2] < 1 / 3
