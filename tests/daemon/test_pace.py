"""When the next sample is due."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from watchdog_app.core.model.settings import WatchSettings
from watchdog_app.daemon import pace as module
from watchdog_app.daemon.pace import Pace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time, set by the test."""
    now = SimpleNamespace(mono_s=100.0)
    monkeypatch.setattr(
        module, "time", SimpleNamespace(monotonic=lambda: now.mono_s, time=time.time)
    )
    return now


@pytest.fixture
def pace():
    return Pace(WatchSettings(interval_s=1.0, fast_interval_s=0.1))


def test_a_look_that_fails_is_repeated_an_interval_later(pace, clock):
    """A failed sample never reports its end."""
    pace.sample_now()

    assert 100.0 == pace.started()
    assert 101.0 == pace.next_sample_mono_s


def test_the_rate_holds_however_long_a_look_takes(pace, clock):
    """The next sample is due one interval after the start of this one."""
    pace.started()
    clock.mono_s += 0.4
    pace.ended(1.0, 0.01)

    assert 101.0 == pace.next_sample_mono_s


def test_a_look_that_takes_long_to_compute_makes_them_rarer(pace, clock):
    """Sampling uses at most a quarter of a core."""
    pace.started()
    pace.ended(0.1, 0.5)

    assert 2.0 == pace.interval_s
    assert 102.0 == pace.next_sample_mono_s


def test_a_look_is_fresh_for_an_interval_after_its_end(pace, clock):
    """
    Also a sample that takes longer than an interval: otherwise no request would ever be answered.
    """
    assert not pace.is_fresh
    pace.started()
    clock.mono_s += 5.0
    assert not pace.is_fresh
    pace.ended(1.0, 0.01)

    assert pace.is_fresh
    clock.mono_s += 0.9
    assert pace.is_fresh
    clock.mono_s += 0.1
    assert not pace.is_fresh


def test_an_earlier_look_is_not_earlier_than_allowed(pace, clock):
    """A request for an earlier sample waits for the fast interval."""
    pace.started()
    pace.ended(1.0, 0.01)
    pace.sample_soon()

    assert pytest.approx(100.1) == pace.next_sample_mono_s
    pace.sample_now()
    assert 0.0 == pace.next_sample_mono_s
