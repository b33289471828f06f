"""The state of an incident: pace, calm, and the round trip to disk."""

from __future__ import annotations

import json

import pytest

from watchdog_app.base import codec
from watchdog_app.core.model.decisions import Attribution, Contributor, Stage
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.policy.incidents import (
    LastReport,
    OpenIncident,
    PausedTask,
    time_left_s,
    updated_pace,
)

KEY = ProcessKey(10, 7)


def incident(**changes) -> OpenIncident:
    values = {
        "id": "i1",
        "resource": ResourceKey(ResourceKind.CGROUP, "/g"),
        "label": "memory limit of the group g",
        "opened_unix_s": 1.7e9,
        "opened_mono_s": 100.0,
    }
    return OpenIncident(**{**values, **changes})


def reading(used: float, limit: float = 1000.0) -> Reading:
    key = ResourceKey(ResourceKind.CGROUP, "/g")
    return Reading(key, "g", used, limit, True, (KEY,))


def test_the_pace_rises_at_once_and_falls_slowly():
    """It halves in ten seconds."""
    assert 50.0 == updated_pace(0.0, 10.0, 50.0, 0.1, saving=False)

    later = updated_pace(50.0, 10.0, None, 10.0, saving=False)

    assert 25.0 == pytest.approx(later)
    assert 20.0 == pytest.approx(time_left_s(reading(500.0), later))


def test_the_pace_is_kept_while_a_save_holds_the_training_up():
    """The growth stops only for the duration of the save."""
    assert 50.0 == updated_pace(50.0, 0.0, 0.0, 10.0, saving=True)


def test_without_a_pace_there_is_no_end():
    """The time is infinite without a division by zero; beyond the limit it is zero."""
    assert float("inf") == time_left_s(reading(500.0), 0.0)
    assert 0.0 == time_left_s(reading(1500.0), 5.0)


def test_an_incident_is_over_after_a_calm_of_some_length():
    """One tick of danger in between restarts the calm."""
    state = incident()
    state.update_stage(Stage.SAVE, 100.0, "rising", rising=True)
    state.update_stage(Stage.WATCH, 101.0, "level", rising=False)
    state.update_stage(Stage.SAVE, 110.0, "rising again", rising=True)
    state.update_stage(Stage.OK, 111.0, "level", rising=False)

    assert not state.is_over(125.0, 15.0)
    assert state.is_over(126.0, 15.0)
    assert Stage.SAVE == state.peak
    assert "rising again" == state.why


def test_an_incident_is_not_over_while_it_holds_a_task():
    """The user waits for the task."""
    state = incident(calm_since_mono_s=0.0, paused={KEY: PausedTask(1.0, 5.0, 2.0)})

    assert not state.is_over(1000.0, 15.0)
    assert Stage.PAUSE == state.to_incident().stage


def test_an_incident_survives_the_way_to_disk_and_back():
    """Everything except pending requests, which end with the daemon."""
    contributor = Contributor(KEY, "train.ipynb", 1e6, 0.9)
    state = incident(
        stage=Stage.PAUSE,
        peak=Stage.PAUSE,
        why="rising",
        advice=("one", "two"),
        attribution=Attribution((contributor,), 0.1, 5.0),
        pace_per_s=3.0,
        last_report=LastReport(120.0, Stage.SAVE, 9.0),
        paused={KEY: PausedTask(130.0, 5.0, 2.0)},
        paused_mono_s=129.0,
        overruled={ProcessKey(11, 7)},
        unpausable={ProcessKey(12, 7)},
    )

    again = codec.decode(OpenIncident, json.loads(json.dumps(codec.encode(state))))

    assert state == again


def test_a_closed_incident_says_when_and_keeps_its_worst():
    """The journal keeps this record."""
    closed = incident(stage=Stage.SAVE, peak=Stage.PAUSE).to_incident(1.7e9 + 60)

    assert (Stage.OK, Stage.PAUSE, 1.7e9 + 60) == (closed.stage, closed.peak, closed.closed_unix_s)
