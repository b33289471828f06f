"""A training that saves in no time is saved on doubtful evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Assessment, Expected, Forecast, Regime, Stage
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.settings import StageSettings
from watchdog_app.core.policy.danger import stage_of

KEY = ProcessKey(10, 1)
HEAT = ResourceKey(ResourceKind.TEMPERATURE, "cpu")
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


COMING = Expected("the validation needs 2 GiB", Stage.SAVE, None)
CERTAIN = replace(DOUBTFUL, notify=True, rescue=True, stage=Stage.SAVE)


@pytest.mark.parametrize(
    ("assessment", "reading", "expected", "pace", "stage"),
    [
        # 2 units are left of 100: the pause is due at 2 s, elsewhere at 0.6 s.
        (CERTAIN, {"used": 98}, None, 1.0, Stage.PAUSE),
        (CERTAIN, {"used": 98}, None, 0.9, Stage.SAVE),
        (CERTAIN, {"used": 97}, None, 1.5, Stage.PAUSE),
        (CERTAIN, {"used": 96}, None, 2.0, Stage.SAVE),
        (CERTAIN, {"used": 96}, None, 6.7, Stage.PAUSE),
        (CERTAIN, {"used": 98}, None, 0.0, Stage.SAVE),
        (DOUBTFUL, {"used": 98}, None, 9.0, Stage.WATCH),
        (DOUBTFUL, {"used": 98}, COMING, 9.0, Stage.SAVE),
        (CERTAIN, {"used": 98, "fatal": False}, None, 9.0, Stage.SAVE),
        (replace(CERTAIN, stage=Stage.PAUSE), {"fatal": False}, None, 0.0, Stage.SAVE),
        (CERTAIN, {"fatal": True, "key": HEAT}, None, 0.0, Stage.SAVE),
    ],
)
def test_the_pace_of_the_training_makes_the_very_end(assessment, reading, expected, pace, stage):
    """Only where the trend alone is certain, and only of what kills."""
    found = stage_of(
        assessment,
        replace(READING, **reading),
        {},
        StageSettings(),
        expected=expected,
        pace_per_s=pace,
    )

    assert stage == found.stage


@pytest.mark.parametrize(
    ("coming", "rescue"), [(COMING, True), (replace(COMING, stage=Stage.WARN), False)]
)
def test_a_need_that_no_trend_shows_is_told_first(coming, rescue):
    """Its reason comes before that of the trend; work is saved where it asks for that."""
    level = Assessment(Stage.OK, Regime.FLAT, 0.0, 0.5, None, "level")

    found = stage_of(level, READING, {}, StageSettings(), expected=coming)

    assert (coming.stage, True, rescue) == (found.stage, found.notify, found.rescue)
    assert ("the validation needs 2 GiB; level", coming.why) == (found.why, found.expected)


@pytest.mark.parametrize(
    ("agent", "due"),
    [
        ({"step": 20}, True),
        ({"step": 19}, False),
        ({"step": None}, False),
        ({"save_s": 1.0}, True),  # a tenth of the least time
        ({"save_s": 1.01}, False),
        ({"step_s": None}, False),
        ({"step_s": 2.5}, False),  # the end is 8 s away: 3 times save and step are 7.8 s
        ({"step_s": 3.0}, True),  # ... and here 9.3 s
    ],
)
def test_a_save_is_cheap_by_its_own_figures(agent, due):
    """A tenth of the time that a save is given at the least, and a training under way."""
    stages = StageSettings(save_floor_s=7.0 if agent.get("step_s") else 10.0)
    agents = {KEY: [replace(AGENT, **agent)]}

    found = stage_of(DOUBTFUL, READING, agents, stages)

    assert due is found.rescue
