"""Which tasks are saved, paused and named for one resource, in small figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import records
from support.records import UID, process

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import (
    Assessment,
    Attribution,
    Contributor,
    DecisionKind,
    Expected,
    Forecast,
    Outcome,
    OutcomeStatus,
    Regime,
    Stage,
)
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.settings import ActionSettings, RuleSettings, Settings, StageSettings
from watchdog_app.core.policy.danger import Danger, Tick, is_still_valid, with_final_stage
from watchdog_app.core.policy.incidents import OpenIncident, PausedTask
from watchdog_app.core.policy.pausing import (
    may_pause,
    pause,
    pause_target,
    record_outcome,
    unsaved_agent,
    update_paused,
)
from watchdog_app.core.policy.reporting import Reporting, blamed_task
from watchdog_app.core.policy.saving import Saving
from watchdog_app.core.policy.schedule import CheckpointSchedule

MB = 1024**2
KEY = ResourceKey(ResourceKind.CGROUP, "/g")
ALARM = Assessment(
    Stage.PAUSE,
    Regime.LINEAR,
    50.0,
    0.9,
    Forecast(2.0, 1.0, 3.0),
    "rising",
    notify=True,
    rescue=True,
)


def task(pid: int, mb: int, **more) -> Task:
    return replace(records.task(process(pid, start_time=7, rss=mb * MB, cpu_s=1.0)), **more)


def agent(pid: int, **more) -> AgentState:
    values = {"training": True, "step": 100, "step_s": 0.1, "save_s": 0.5, **more}
    return AgentState(ProcessKey(pid, 7), "keras", "/r", **values)


def danger(
    *tasks: Task,
    shares: tuple[float, ...] = (),
    agents: tuple[AgentState, ...] = (),
    others: float = 0.0,
    settings: Settings | None = None,
    assessment: Assessment = ALARM,
    schedules: dict | None = None,
    used: float = 600.0,
    **reading,
) -> Danger:
    """A danger in a group of 1000 MB; the first tasks cause these shares of its growth."""
    there = {each.key: each for each in tasks}
    incident = OpenIncident("i", KEY, "g", 1.7e9, 900.0, pace_per_s=100.0 * MB)
    blame = tuple(
        Contributor(each.key, each.name, 1.0, share)
        for each, share in zip(tasks, shares, strict=False)
    )
    incident.attribution = Attribution(blame, others, 2.0)
    tick = Tick(
        1000.0,
        1.7e9,
        settings or Settings(),
        UID,
        None,
        True,
        {each.key: CheckpointSchedule() for each in agents} if schedules is None else schedules,
        frozenset(),
        lambda: "d",
    )
    values = {"fatal": True, "key": KEY, "tasks": tuple(there), **reading}
    at = Reading(label="g", used=used * MB, limit=1000.0 * MB, **values)
    by_task = {each.key: (each,) for each in agents}
    return Danger(tick, at, assessment, incident, there, by_task)


def asked(found: Danger) -> list[int]:
    """The pids whose agents are asked to save, in order."""
    saving = Saving(dict(found.tick.schedules))
    return [decision.task.pid for decision in saving.due(found)]


@pytest.mark.parametrize(
    ("mb", "changes", "saved"),
    [
        # the growing task reaches 500 by then; a victim needs three quarters of that
        (374, {}, []),
        (376, {}, [2]),
        (374, {"shares": (0.9,)}, [2]),  # ... 460: 345
        (10, {"shares": (), "others": 0.9}, [2]),
        (10, {"others": 0.51}, [2]),  # most growth has no known task: any task may be killed
        (10, {"others": 0.5}, []),
        (376, {"assessment": replace(ALARM, notify=False, stage=Stage.SAVE)}, []),
        (376, {"fatal": False}, []),
        (376, {"fatal": False, "throttles": True}, [2]),
        (376, {"assessment": replace(ALARM, notify=False, rescue=False, stage=Stage.WARN)}, []),
    ],
)
def test_who_could_be_killed_in_place_of_another_is_saved_as_well(mb, changes, saved):
    """The kernel kills the largest: one that is nearly as large as the growing task will be."""
    values = {"shares": (1.0,), "agents": (agent(2),), **changes}

    assert saved == asked(danger(task(1, 100), task(2, mb), **values))


def test_those_that_grow_are_saved_first_and_the_others_by_size():
    """Rules with a priority come before that."""
    there = (task(1, 100), task(2, 900), task(3, 950), task(4, 800))
    everybody = tuple(agent(pid) for pid in (1, 2, 3, 4))
    rules = Settings(rules=(RuleSettings(task="4.py", priority="high"),))

    assert [1, 3, 2, 4] == asked(danger(*there, shares=(1.0,), agents=everybody))
    assert [4, 1, 3, 2] == asked(danger(*there, shares=(1.0,), agents=everybody, settings=rules))


@pytest.mark.parametrize(
    ("changes", "paused"),
    [
        ({}, 1),
        ({"shares": (0.6, 0.4)}, 1),
        ({"shares": (0.4, 0.6)}, 1),  # in the order of the attribution
        ({"others": 0.6}, None),
        ({"assessment": replace(ALARM, stage=Stage.SAVE)}, None),
        ({"settings": Settings(actions=ActionSettings(pause=False))}, None),
        # a task that grows as much is not paused in its stead
        ({"settings": Settings(rules=(RuleSettings(task="1.py", pause=False),)),
          "shares": (0.5, 0.5)}, None),
        ({"settings": Settings(rules=(RuleSettings(task="2.py", priority="low"),)),
          "shares": (0.5, 0.5)}, 2),
        ({"settings": Settings(rules=(RuleSettings(task="2.py", priority="low"),)),
          "shares": (0.9, 0.1)}, 1),  # a task that grows little is not paused
        ({"fatal": False}, None),
    ],
)  # fmt: skip
def test_the_task_to_pause_is_the_one_that_grows(changes, paused):
    """Only if the task may be paused and a pause helps."""
    values = {"shares": (1.0,), "used": 990.0, **changes}

    found = pause_target(danger(task(1, 100), task(2, 100), **values), frozenset())

    assert paused == (None if found is None else found.key.pid)


def test_a_second_task_is_paused_only_when_the_first_pause_did_not_help():
    """A quarter of the room has filled since, and there was time to notice it."""
    found = danger(task(1, 100), shares=(1.0,), used=990.0)
    found.incident.paused_mono_s, found.incident.paused_used = 999.99, 900.0 * MB
    assert pause_target(found, frozenset()) is None  # too soon

    found.incident.paused_mono_s = 990.0
    assert pause_target(found, frozenset()) is not None
    found.incident.paused_used = 987.0 * MB  # 3 of 13: less than a quarter
    assert pause_target(found, frozenset()) is None
    found.incident.paused_used = 986.0 * MB
    assert pause_target(found, frozenset()) is not None
    assert pause_target(found, frozenset({ProcessKey(1, 7)})) is None  # its pause is under way


@pytest.mark.parametrize(
    ("state", "schedule", "used", "waits"),
    [
        ({}, {}, 950.0, True),
        ({"saving": True}, {"saved_mono_s": 1000.0}, 950.0, True),
        ({}, {"saved_mono_s": 999.95}, 950.0, False),  # half a step old
        ({}, {"saved_mono_s": 999.85}, 950.0, True),
        ({}, {"failures": 1}, 950.0, False),
        ({"training": False}, {}, 950.0, False),
        ({}, {"pending": "d1", "asked_mono_s": 999.9}, 999.0, True),
        ({}, {"pending": "d1", "asked_mono_s": 999.7}, 950.0, True),
        ({}, {"pending": "d1", "asked_mono_s": 999.7}, 999.0, False),  # two steps, and no time left
        # Less than three samples are left: a save would end too late.
        ({}, {"saved_mono_s": 999.85}, 962.0, True),
        ({}, {"saved_mono_s": 999.85}, 963.0, False),
        ({}, {}, 963.0, False),
        ({"saving": True}, {}, 999.0, True),  # a save that has begun is never interrupted
    ],
)
def test_a_pause_waits_for_a_save_that_can_be_had(state, schedule, used, waits):
    """Unsaved work stays in memory while the task is paused."""
    there = agent(1, **state)
    found = danger(
        task(1, 100),
        shares=(1.0,),
        agents=(there,),
        schedules={there.key: CheckpointSchedule(**schedule)},
        used=used,
    )

    assert waits is (unsaved_agent(found, found.tasks[there.key]) is not None)


@pytest.mark.parametrize(
    ("used", "since", "resumed"),
    [
        (900.0, 980.0, True),
        (901.0, 980.0, False),  # less than twice the 50 that were left
        (900.0, 990.0, False),  # not for long enough
        (900.0, None, False),
    ],
)
def test_a_paused_task_runs_again_when_there_is_twice_the_room(used, since, resumed):
    """The room must last as long as a danger takes to settle."""
    stopped = task(1, 100)
    stopped = replace(stopped, members=(replace(stopped.members[0], state="T"),))
    found = danger(stopped, shares=(1.0,), used=used)
    found.incident.paused[stopped.key] = PausedTask(950.0, 50.0 * MB, 0.0, since)

    decisions = update_paused(found)

    assert resumed is (DecisionKind.RESUME in [each.kind for each in decisions])
    assert stopped.key in found.incident.paused


def test_a_resume_that_failed_is_tried_again_after_a_minute():
    """The room must have lasted as long as usual by then."""
    stopped = task(1, 100)
    stopped = replace(stopped, members=(replace(stopped.members[0], state="T"),))
    found = danger(stopped, shares=(1.0,), used=900.0)
    found.incident.paused[stopped.key] = PausedTask(950.0, 50.0 * MB, 0.0, 980.0)
    (decision,) = update_paused(found)

    record_outcome(
        found.incident, decision, Outcome("d", OutcomeStatus.FAILED, 1.7e9, 0.1, ""), 1000.0
    )

    paused = found.incident.paused[stopped.key]
    assert (None, 1060.0) == (paused.resuming, paused.room_since_mono_s)


def test_a_task_that_a_person_has_resumed_is_left_running():
    """One second after the pause, since the signal takes time; a task that has ended is dropped."""
    running, gone = task(1, 100), ProcessKey(9, 7)
    found = danger(running, shares=(1.0,), used=990.0)
    found.incident.paused = {
        running.key: PausedTask(999.0, 5.0, 2.0),
        gone: PausedTask(999.9, 5.0, 2.0),
    }
    update_paused(found)
    assert {running.key} == found.incident.paused.keys()

    found.incident.paused[running.key].since_mono_s = 998.9
    update_paused(found)
    assert ({}, {running.key}) == (found.incident.paused, found.incident.overruled)
    assert not may_pause(found, running)


def test_a_pause_says_what_becomes_of_the_work():
    """The answer must come before a sensible deadline."""
    there = agent(1)
    saved = {there.key: CheckpointSchedule(saved_mono_s=997.0)}
    found = danger(task(1, 100), shares=(1.0,), agents=(there,), schedules=saved, used=990.0)
    decision = pause(found, found.tasks[there.key])

    assert "its rescue is 3.0 s old" in decision.reason
    assert {decision.id: there.key} == found.incident.pausing
    assert 1.0 == decision.deadline_s
    assert (1000.0, 990.0 * MB) == (found.incident.paused_mono_s, found.incident.paused_used)


@pytest.mark.parametrize(
    ("kind", "used", "holds"),
    [
        (DecisionKind.PAUSE, 600.0, True),
        (DecisionKind.PAUSE, 496.0, True),  # a quarter more room, plus noise
        (DecisionKind.PAUSE, 495.0, False),
        (DecisionKind.CHECKPOINT, 495.0, False),
        (DecisionKind.RESUME, 495.0, True),
        (DecisionKind.RESUME, 684.0, True),
        (DecisionKind.RESUME, 685.0, False),
    ],
)
def test_a_decision_holds_while_the_room_is_about_the_same(kind, used, holds):
    """The second measurement comes some milliseconds later."""
    found = danger(task(1, 100), shares=(1.0,))
    decision = found.decide(kind, None, "because")

    assert holds is is_still_valid(decision, (replace(found.reading, used=used * MB),))
    assert not is_still_valid(decision, ())


def warned(found: Danger, reporting: Reporting, now: float, eta_s: float, **changes) -> bool:
    """Whether a warning is due at that time."""
    assessment = replace(ALARM, forecast=Forecast(eta_s, 1.0, 99.0), **changes)
    later = replace(found, tick=replace(found.tick, mono_s=now), assessment=assessment)
    return reporting.warning(later, pausing=False) is not None


def test_a_warning_is_repeated_when_the_end_is_half_as_far_after_the_cool_down():
    """At once if the stage is higher."""
    found, reporting = danger(task(1, 100), shares=(1.0,)), Reporting()
    cooldown_s = Settings().stages.cooldown_s
    assert warned(found, reporting, 1000.0, 60.0, stage=Stage.WARN)
    assert not warned(found, reporting, 1001.0, 10.0, stage=Stage.WARN)
    assert not warned(found, reporting, 1000.0 + cooldown_s - 0.1, 10.0, stage=Stage.WARN)
    assert not warned(found, reporting, 1000.0 + cooldown_s, 30.0, stage=Stage.WARN)
    assert warned(found, reporting, 1000.0 + cooldown_s, 29.9, stage=Stage.WARN)
    assert warned(found, reporting, 1001.0 + cooldown_s, 29.9, stage=Stage.PAUSE)
    assert not warned(found, reporting, 1002.0 + cooldown_s, 0.1, stage=Stage.PAUSE)


def test_one_cause_is_told_once_for_all_its_resources():
    """The same task under another limit is not news within the cool-down; another card is."""
    reporting, cooldown_s = Reporting(), Settings().stages.cooldown_s
    assert warned(danger(task(1, 100), shares=(1.0,)), reporting, 1000.0, 9.0)
    assert not warned(danger(task(1, 100), shares=(1.0,)), reporting, 1001.0, 9.0)
    assert warned(danger(task(1, 100), shares=(1.0,), device="GPU-1"), reporting, 1001.0, 9.0)
    assert warned(danger(task(1, 100), shares=(1.0,)), reporting, 1000.0 + cooldown_s, 9.0)


@pytest.mark.parametrize(
    ("changes", "pid"),
    [
        ({}, 1),
        ({"others": 0.5}, 1),
        ({"others": 0.51}, None),
        ({"shares": ()}, None),
        ({"shares": (), "key": ResourceKey(ResourceKind.TEMPERATURE, "g"), "device": "g"}, 2),
        ({"shares": (), "key": ResourceKey(ResourceKind.TEMPERATURE, "cpu")}, None),
    ],
)
def test_a_notification_is_filed_under_the_first_that_grows(changes, pid):
    """For a hot card it is a training on the card."""
    values = {"shares": (1.0,), "agents": (agent(2),), **changes}

    found = blamed_task(danger(task(1, 100), task(2, 100), **values))

    assert pid == (None if found is None else found.key.pid)


# The stage: a training whose saves are cheap is saved on doubtful evidence

TASK = ProcessKey(10, 1)
HEAT = ResourceKey(ResourceKind.TEMPERATURE, "cpu")
READING = Reading(ResourceKey(ResourceKind.CGROUP, "/g"), "g", 80, 100, True, (TASK,))
DOUBTFUL = Assessment(Stage.WATCH, Regime.LINEAR, 5.0, 0.85, Forecast(8.0, 5.0, 20.0), "rising")
AGENT = AgentState(TASK, "keras", "/r", training=True, step=100, step_s=0.05, save_s=0.1)


def judged(assessment: Assessment, reading: Reading, *agents: AgentState) -> Assessment:
    """The final stage with these agents in the one task, no expected need and no known pace."""
    return with_final_stage(assessment, reading, agents, StageSettings())


def test_a_doubtful_end_within_reach_opens_the_eager_tier_alone():
    """It requests a silent checkpoint without a notice."""
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
    """The assessment stays unchanged."""
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
    """A level without a trend causes a notice, and a save if the limit is fatal."""
    level = Assessment(Stage.OK, Regime.FLAT, 0.0, 1.0, None, "level")

    found = judged(level, replace(READING, stalled=True, **reading))

    assert (stage, True, saves) == (found.stage, found.notify, found.rescue)


COMING = Expected("the validation needs 2 GiB", Stage.SAVE, None)
CERTAIN = replace(DOUBTFUL, notify=True, rescue=True, stage=Stage.SAVE)


@pytest.mark.parametrize(
    ("assessment", "reading", "expected", "pace", "stage"),
    [
        # 2 units of 100 are left: the pause is due at 2 s, elsewhere at 0.6 s.
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
    """Only if the trend alone is certain, and only for fatal resources."""
    found = with_final_stage(
        assessment,
        replace(READING, **reading),
        (),
        StageSettings(),
        expected=expected,
        pace_per_s=pace,
    )

    assert stage == found.stage


@pytest.mark.parametrize(
    ("coming", "rescue"), [(COMING, True), (replace(COMING, stage=Stage.WARN), False)]
)
def test_a_need_that_no_trend_shows_is_told_first(coming, rescue):
    """Its reason comes before that of the trend; the need's stage decides about a save."""
    level = Assessment(Stage.OK, Regime.FLAT, 0.0, 0.5, None, "level")

    found = with_final_stage(level, READING, (), StageSettings(), expected=coming)

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
    """At most a tenth of the least time for a save, in a running training."""
    stages = StageSettings(save_floor_s=7.0 if agent.get("step_s") else 10.0)

    found = with_final_stage(DOUBTFUL, READING, [replace(AGENT, **agent)], stages)

    assert due is found.rescue
