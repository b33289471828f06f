"""A training that saves in no time is saved on doubtful evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Assessment, Forecast, Regime, Stage
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.settings import StageSettings
from watchdog_app.core.policy.danger import stage_of

KEY = ProcessKey(10, 1)
READING = Reading(ResourceKey(ResourceKind.CGROUP, "/g"), "g", 80, 100, True, (KEY,))
DOUBTFUL = Assessment(Stage.WATCH, Regime.LINEAR, 5.0, 0.85, Forecast(8.0, 5.0, 20.0), "rising")
AGENT = AgentState(KEY, "keras", "/r", training=True, step=100, step_s=0.05, save_s=0.1)


def judged(assessment: Assessment, reading: Reading, *agents: AgentState) -> Assessment:
    """With these agents in the one task, no need foreseen, and no pace known."""
    return stage_of(assessment, reading, {KEY: agents}, StageSettings())


def test_a_doubtful_end_within_reach_opens_the_eager_tier_alone():
    """A silent checkpoint, and no notice."""
    found = judged(DOUBTFUL, READING, AGENT)

    assert found.rescue
    assert Stage.SAVE == found.stage
    assert not found.notify


@pytest.mark.parametrize(
    ("assessment", "reading", "agent"),
    [
        (replace(DOUBTFUL, forecast=None), {}, {}),
        (replace(DOUBTFUL, forecast=Forecast(60.0, 30.0, 90.0)), {}, {}),
        (replace(DOUBTFUL, ratio=0.7), {}, {}),
        (DOUBTFUL, {"fatal": False}, {}),
        (DOUBTFUL, {}, {"save_s": None}),
        (DOUBTFUL, {}, {"save_s": 8.0}),
        (DOUBTFUL, {}, {"step": 3}),
        (DOUBTFUL, {}, {"training": False}),
    ],
    ids=["no end", "far", "little used", "only slow", "cost unknown", "dear", "starting", "over"],
)
def test_otherwise_the_evidence_decides_as_before(assessment, reading, agent):
    """Nothing is added."""
    found = judged(assessment, replace(READING, **reading), replace(AGENT, **agent))

    assert assessment == found


@pytest.mark.parametrize(
    ("reading", "stage", "saves"),
    [
        ({"fatal": True}, Stage.SAVE, True),
        ({"fatal": False, "throttles": True}, Stage.SAVE, True),
        ({"fatal": False}, Stage.WARN, False),
    ],
    ids=["nothing left at all", "memory.high", "RAM, and swap is left"],
)
def test_what_stands_still_at_its_limit_is_never_ok(reading, stage, saves):
    """A level without any trend: it is told, and saved where that is the end."""
    level = Assessment(Stage.OK, Regime.FLAT, 0.0, 1.0, None, "level")

    found = judged(level, replace(READING, stalled=True, **reading))

    assert (stage, True, saves) == (found.stage, found.notify, found.rescue)
