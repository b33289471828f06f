"""State that the next daemon restores, and the second measurement before an action."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from simulation import MB, UID, WALL_S, Machine, Program, flat, leak

from watchdog_app.core.model.decisions import DecisionKind, Outcome, OutcomeStatus
from watchdog_app.core.model.settings import ActionSettings, Settings
from watchdog_app.core.policy.engine import Engine

NO_PAUSE = Settings(actions=ActionSettings(pause=False))


def machine(**changes) -> Machine:
    program = Program(10, "train.ipynb", leak(25), save_s=0.2, group="g")
    return Machine(program, groups={"g": 1200}, **changes)


def restarted(before: Machine, gap_s: float = 2.0) -> Machine:
    """The same machine with a new engine that has loaded the old engine's state."""
    state = json.loads(json.dumps(before.engine.dump()))
    before.engine = Engine(before.engine.settings, UID)
    before.now += gap_s
    before.engine.load(state, before.now, WALL_S + before.now)
    return before


def test_a_pause_is_known_after_a_restart_and_ends_when_there_is_room():
    """The incident is still open, and the engine may still resume its task."""
    after = restarted(machine().run(60))
    assert after.programs[0].stopped

    after.run(30)
    (incident,) = after.result.incidents
    after.groups["g"] = 8000 * MB
    after.run(30)

    assert "train.ipynb" == incident.contributors[0].name
    assert not after.programs[0].stopped


def test_a_warning_is_not_repeated_after_a_restart():
    """The cool-down and the incident's id survive the restart."""
    before = machine(settings=NO_PAUSE).run(27)
    assert 1 == before.kinds().count("notify:warning")
    identity = before.result.incidents[0].id

    after = restarted(before, 0.5).run(3)

    assert 1 == after.kinds().count("notify:warning")
    assert identity == after.result.incidents[0].id


@pytest.mark.parametrize(("stopped", "warnings"), [(False, 1), (True, 2)])
def test_a_warning_is_repeated_once_after_a_stop_that_removed_it(stopped, warnings):
    """A stopped daemon closes its warnings on the screen; a killed one leaves them there."""
    program = Program(10, "train.ipynb", flat(1190), group="g")
    before = Machine(program, groups={"g": 1200}, settings=NO_PAUSE).run(27)
    assert ["notify:warning"] == before.kinds()
    if stopped:
        before.engine.repeat_warnings()

    after = restarted(before).run(60)

    assert warnings * ["notify:warning"] == after.kinds()


@pytest.mark.parametrize("step_s", [-5.0, -7200.0, 7200.0])
def test_a_wall_clock_that_was_set_in_between_changes_nothing(step_s):
    """A time server may set the clock: the engine must still know its paused tasks."""
    before = machine().run(60)
    state = json.loads(json.dumps(before.engine.dump()))
    engine = Engine(Settings(), UID)

    engine.load(state, before.now + 2.0, WALL_S + before.now + 2.0 + step_s)

    assert state["incidents"][0]["paused"]
    assert state["incidents"] == engine.dump()["incidents"]


@pytest.mark.parametrize(
    "change",
    [
        lambda state: {},
        lambda state: {**state, "version": 99},
        lambda state: {**state, "incidents": [{"id": "x"}]},
        lambda state: {**state, "saves": [[1, 2]]},
        lambda state: {**state, "reports": 7},
        lambda state: {**state, "mono_s": state["mono_s"] - 7200},
        lambda state: {**state, "mono_s": state["mono_s"] + 7200},
    ],
    ids=["empty", "newer", "cut", "short", "wrong type", "old", "of another start"],
)
def test_a_state_that_cannot_be_used_is_a_value_error_and_changes_nothing(change):
    """The engine starts empty, because half a state would be worse."""
    before = machine().run(60)
    engine = Engine(Settings(), UID)

    with pytest.raises(ValueError, match="cannot be used"):
        engine.load(change(before.engine.dump()), before.now, WALL_S + before.now)

    assert [] == engine.dump()["incidents"]


def test_saves_of_before_are_remembered_until_the_agents_are_back():
    """A new daemon does not ask a training to save again right after a save."""
    before = machine(settings=NO_PAUSE)
    while not before.programs[0].saves:
        before.run(0.1)

    after = restarted(before, 0.1)
    asked = len(after.kinds(DecisionKind.CHECKPOINT))
    after.run(0.5)

    assert asked == len(after.kinds(DecisionKind.CHECKPOINT))


# The second measurement


def decision_of(kind: DecisionKind, run_s: float = 60.0):
    before = machine().run(run_s)
    return next(each for each in before.log if each.kind is kind), before


@pytest.mark.parametrize("kind", [DecisionKind.CHECKPOINT, DecisionKind.PAUSE, DecisionKind.NOTIFY])
def test_a_decision_is_off_when_the_danger_is_over(kind):
    """The second measurement shows that the memory was freed in between."""
    decision, before = decision_of(kind)
    (reading,) = [each for each in before.readings() if each.key == decision.resource]
    used = decision.evidence["used"]

    same = replace(reading, used=used)
    relieved = replace(reading, used=used / 2)

    assert before.engine.is_still_valid(decision, [same])
    assert not before.engine.is_still_valid(decision, [relieved])
    assert not before.engine.is_still_valid(decision, [])


def test_word_of_what_has_happened_is_always_true():
    """The engine reports a pause whatever the memory does."""
    before = machine().run(60)
    (told,) = [each for each in before.log if each.evidence.get("topic") == "paused"]

    assert before.engine.is_still_valid(told, [])


def test_a_resume_is_off_when_the_room_is_gone():
    """The task would be paused again at once."""
    before = machine().run(60)
    before.groups["g"] = 8000 * MB
    before.run(30)
    (decision,) = [each for each in before.log if each.kind is DecisionKind.RESUME]
    (reading,) = [each for each in before.readings() if each.key == decision.resource]

    assert before.engine.is_still_valid(decision, [reading])
    assert not before.engine.is_still_valid(decision, [replace(reading, limit=reading.used * 1.1)])


# Outcomes


def unanswered_save():
    """A machine after its first request of a save, without an answer, and that request."""
    before = machine(settings=NO_PAUSE)
    while not before.kinds(DecisionKind.CHECKPOINT):
        before.run(0.1)
    first = next(each for each in before.log if each.kind is DecisionKind.CHECKPOINT)
    before.programs[0].request = None
    before.programs[0].saving_until = None
    return before, first


def test_an_outcome_of_an_unknown_decision_is_ignored():
    """The answer may belong to a request of an earlier daemon."""
    engine = machine().run(5).engine

    engine.record(Outcome("nobody-1", OutcomeStatus.DONE, WALL_S, 0.0, "done"))

    assert [] == engine.dump()["incidents"]


def test_a_save_that_was_skipped_is_no_failure():
    """The second measurement cancelled it, so the next tick may ask again."""
    before, first = unanswered_save()
    skipped = Outcome(first.id, OutcomeStatus.SKIPPED, WALL_S + before.now, 0.0, "no longer true")

    before.engine.record(skipped)
    before.run(0.3)

    assert 2 == len(before.kinds(DecisionKind.CHECKPOINT))
    assert "notify:rescue_failed" not in before.kinds()


@pytest.mark.parametrize("known", [True, False])
def test_a_suspend_during_a_save_does_not_stop_the_saves_after_it(known):
    """The wall clock jumps by hours before the outcome arrives; memory keeps filling."""
    before, first = unanswered_save()
    wall_s = WALL_S + before.now + 8 * 3600
    at_mono_s = before.now if known else None

    before.engine.record(
        Outcome(first.id, OutcomeStatus.DONE, wall_s, 0.2, "saved", at_mono_s=at_mono_s)
    )
    before.run(60)

    assert len(before.programs[0].saves) >= 3
