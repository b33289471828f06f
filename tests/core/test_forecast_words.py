"""A steady leak is always called steady; another word needs time."""

from __future__ import annotations

import math
import random
from itertools import groupby

import pytest

from watchdog_app.core.forecast.shape import RegimeFilter
from watchdog_app.core.forecast.stages import ResourceMonitor
from watchdog_app.core.model.decisions import Assessment, Regime, Stage
from watchdog_app.core.model.settings import StageSettings, WatchSettings

LIMIT, BASE = 1200.0, 300.0  # as if in MB
LINEAR, STAIRCASE = Regime.LINEAR, Regime.STAIRCASE
ADAPTIVE = None


def played(level, hz: float | None, limit: float = LIMIT) -> list[tuple[float, Assessment]]:
    """Assessments until the limit is reached, at a fixed or at the adaptive rate."""
    watch = ResourceMonitor(WatchSettings(), StageSettings(), unit="units")
    t, found = 0.0, []
    while t < 600 and (used := level(t)) < limit:
        found.append((t, watch.step(t, used, limit)))
        t += 1 / hz if hz else watch.next_sample_s
    return found


def words(found: list[tuple[float, Assessment]]) -> list[Regime]:
    """The regimes while a notice was due, without repeats."""
    told = [each.regime for _, each in found if each.notify or each.stage >= Stage.WARN]
    return [word for word, _ in groupby(told)]


def leak(
    rate: float, *, noise: float = 0, piece: float = 0, load_s: float = 0, saw: float = 0, seed=1
):
    """A steady leak after loading, in allocator blocks, with garbage that comes and goes."""
    draw = random.Random(seed)

    def level(t: float) -> float:
        if t < load_s:
            return BASE * (0.15 + 0.85 * t / load_s)
        grown = rate * max(0.0, t - load_s - (5 if load_s else 0))
        if piece:
            grown = math.floor(grown / piece) * piece
        return BASE + grown + saw * ((1.7 * t) % 1.0) + draw.gauss(0, noise)

    return level


@pytest.mark.parametrize("hz", [1, 10, ADAPTIVE])
@pytest.mark.parametrize("rate", [pytest.param(3, marks=pytest.mark.slow), 10, 40, 100])
@pytest.mark.parametrize("noise", [0, 1, 5, 15])
def test_a_steady_leak_is_called_steady_from_the_first_to_the_last_word(rate, noise, hz):
    for piece in (0, 4, 32, 64):
        for load_s, saw in ((0, 0), (8, 0), (0, 20), (8, 20)):
            level = leak(rate, noise=noise, piece=piece, load_s=load_s, saw=saw)

            found = words(played(level, hz))

            # One reading a second may miss a leak of nine seconds.
            missed = not found and (rate, hz) == (100, 1)
            assert missed or [LINEAR] == found, (piece, load_s, saw)


@pytest.mark.parametrize("hz", [1, 10])
@pytest.mark.parametrize("pause_s", [0.2, 0.5, 1.0])
def test_saves_that_hold_a_leak_up_in_its_last_seconds_do_not_change_its_word(pause_s, hz):
    """With one save a second the leak is slower by the clock, but not by the step."""

    def level(t: float) -> float:
        running = min(t, 60.0)
        rest = max(0.0, t - 60.0)
        period = 1.0 + pause_s
        running += rest // period + min(1.0, rest % period)
        return BASE + 12 * running

    assert [LINEAR] == words(played(level, hz))


@pytest.mark.parametrize("hz", [1, 10])
@pytest.mark.parametrize("slower", [0.4, 2.5])
def test_one_change_of_rate_is_no_curve(slower, hz):
    """The program now does something else, and does it steadily."""
    assert [LINEAR] == words(
        played(lambda t: BASE + 10 * min(t, 40) + 10 * slower * max(0.0, t - 40), hz)
    )


def test_another_word_has_to_be_right_for_a_while_before_it_is_said():
    wording = RegimeFilter()
    said = [wording.update(t, STAIRCASE if t % 5 else LINEAR) for t in range(30)]
    later = [wording.update(30.0 + t, STAIRCASE) for t in range(10)]

    assert {LINEAR} == set(said)
    assert (LINEAR, STAIRCASE) == (later[0], later[-1])


def test_growth_that_goes_on_after_a_rest_goes_by_the_word_that_it_had():
    wording = RegimeFilter()
    for t in range(10):
        wording.update(t, STAIRCASE)

    assert Regime.FLAT is wording.update(10, Regime.FLAT)
    assert STAIRCASE is wording.update(11, LINEAR)
