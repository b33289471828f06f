"""Whole scenarios, tick by tick on a simulated clock: which decisions come, in which order."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from simulation import MB, UID, Machine, Program, flat, leak
from support.records import host

from watchdog_app.core.model.decisions import DecisionKind, Stage
from watchdog_app.core.model.machine import Snapshot, TaskKind
from watchdog_app.core.model.readings import readings
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.settings import ActionSettings, RuleSettings, Settings, StageSettings
from watchdog_app.core.policy.engine import Engine

NO_PAUSE = Settings(actions=ActionSettings(pause=False))
CHECKPOINT, NOTIFY, PAUSE, RESUME = (
    DecisionKind.CHECKPOINT,
    DecisionKind.NOTIFY,
    DecisionKind.PAUSE,
    DecisionKind.RESUME,
)


def training(rate: float = 25.0, name: str = "train.ipynb", **changes) -> Program:
    return Program(10, name, leak(rate), **{"save_s": 0.2, "group": "g", **changes})


def bystander(mb: float = 200.0, **changes) -> Program:
    return Program(20, "healthy.py", flat(mb), **{"save_s": 0.2, "group": "g", **changes})


def leaking(*more: Program, limit_mb: float = 1200.0, program: Program | None = None, **changes):
    return Machine(program or training(), *more, groups={"g": limit_mb}, **changes)


def lost_s(program: Program) -> float:
    """Seconds of work since its last rescue."""
    return (program.step - program.rescue.step) * program.step_s


# The rescue


@pytest.mark.parametrize("save_s", [0.02, 0.6])
@pytest.mark.parametrize("rate", [5, 20, 100, 300])
def test_a_leak_is_told_and_saved_and_loses_a_second_at_most(rate, save_s):
    """Without a pause the kernel kills it, and its last rescue is about a second old."""
    limit_mb = max(1200, 300 + 12 * rate)
    program = training(rate, save_s=save_s)
    machine = leaking(program=program, limit_mb=limit_mb, settings=NO_PAUSE)
    machine.run(1.5 * (limit_mb - 300) / rate + 20, lambda: program.dead)

    assert program.dead
    assert program.rescue is not None
    assert lost_s(program) <= 1.2  # a second, a step, a sample
    assert "notify:warning" in machine.kinds()
    assert [] == machine.kinds(PAUSE)
    assert min(late - early for early, late in pairwise(program.saves)) >= 1.0


def test_saves_come_at_ever_shorter_times_and_not_too_many():
    """About the logarithm of the time, because a save costs more than a step."""
    machine = leaking(settings=NO_PAUSE).run(60)
    saves = machine.programs[0].saves
    gaps = [late - early for early, late in pairwise(saves)]

    assert 4 <= len(saves) <= 16
    assert gaps[0] > 2 * gaps[len(gaps) // 2] > gaps[-1]


def test_the_warning_comes_before_the_save_and_the_save_before_the_pause():
    """The gentlest action comes first."""
    machine = leaking().run(60)
    kinds = machine.kinds()

    assert kinds.index("notify:warning") < kinds.index("pause:train.ipynb")
    assert kinds.index("checkpoint:train.ipynb") < kinds.index("pause:train.ipynb")
    assert kinds.index("notify:paused") == kinds.index("pause:train.ipynb") + 1
    assert 1 == kinds.count("pause:train.ipynb")


@pytest.mark.parametrize("rate", [5, 25, 100, 300])
def test_a_pause_comes_right_after_a_last_save_and_nothing_is_lost(rate):
    """The process lives; even if the user kills it, its rescue has every step."""
    limit_mb = max(1200, 300 + 12 * rate)
    program = training(rate)
    leaking(program=program, limit_mb=limit_mb).run(1.5 * limit_mb / rate, lambda: program.stopped)

    assert program.stopped
    assert not program.dead
    assert program.step == program.rescue.step


def test_nothing_happens_after_the_pause():
    """The incident stays open and silent as long as the task is paused."""
    machine = leaking().run(60)
    before = machine.kinds()

    machine.run(600)

    assert before == machine.kinds()
    (incident,) = machine.result.incidents
    assert Stage.PAUSE == incident.stage == incident.peak


def test_a_paused_task_and_the_limit_that_it_filled_have_no_forecast():
    """A paused task is not "full in 17 s", although it grew a moment ago."""
    machine = leaking()
    while not machine.programs[0].stopped:
        machine.run(1)

    machine.run(1)

    paused = machine.result.tasks[machine.programs[0].key]
    assert paused.assessment is None
    assert 0.0 == paused.trend_bytes_per_s
    assert all(each.forecast is None for each in machine.result.assessments.values())


def test_every_decision_carries_its_figures_and_an_id_of_its_own():
    """The evidence holds the figures that decided; a replay can check them."""
    machine = leaking().run(60)

    assert len(machine.log) == len({decision.id for decision in machine.log})
    for decision in machine.log:
        evidence = decision.evidence
        assert decision.reason
        assert 0 < evidence["used"] <= evidence["limit"] == 1200 * MB
        assert evidence["name"] == "train.ipynb"
        assert evidence["save_s"] == 0.2
        assert evidence["step_s"] == 0.05
        assert evidence["share"] == pytest.approx(1.0)
    assert "continue" == next(d for d in machine.log if d.kind is CHECKPOINT).evidence["then"]


# What the engine leaves alone


def test_a_big_warm_up_is_left_alone():
    """
    Memory fills three quarters of the limit in six seconds and stays flat: there is no decision.
    """
    machine = leaking(program=training(0)).run(0)
    machine.programs[0].grows = lambda t: (300 + 600 * min(1.0, t / 6)) * MB

    machine.run(120)

    assert [] == machine.log


def test_hovering_below_the_limit_is_left_alone():
    """Some trainings constantly vary around 96 % of their limit."""
    program = training(0)
    program.grows = lambda t: (1150 + 30 * math.sin(t / 5)) * MB

    machine = leaking(program=program).run(300)

    assert [] == machine.kinds(PAUSE)
    assert program.ran_s >= 0.9 * 300


def test_only_the_guilty_of_two_is_acted_on():
    """The healthy task under the same limit is neither paused nor asked to save."""
    machine = leaking(bystander()).run(60)
    actionable, healthy = machine.programs

    assert actionable.stopped
    assert not healthy.stopped
    assert [] == healthy.saves
    assert {actionable.key} == {decision.task for decision in machine.log}


def test_a_warm_up_at_the_same_time_is_not_paused_after_the_guilty():
    """The pause has stopped the growth: what the other task grew before is not a reason."""
    healthy = bystander()
    healthy.grows = lambda t: (50 + 250 * min(1.0, t / 12)) * MB
    machine = leaking(
        healthy, program=Program(10, "train.ipynb", leak(35.0, 50.0), save_s=0.02, group="g")
    ).run(120)

    assert ["pause:train.ipynb"] == machine.kinds(PAUSE)
    assert not healthy.stopped


def test_a_second_culprit_is_paused_when_the_first_pause_was_not_enough():
    """Two tasks leak; the faster is paused first, the other before the limit is reached."""
    second = Program(20, "second.py", leak(15.0, 50.0), save_s=0.02, group="g")
    machine = leaking(second, program=training(25.0, save_s=0.02)).run(120)

    assert ["pause:train.ipynb", "pause:second.py"] == machine.kinds(PAUSE)
    assert not any(program.dead for program in machine.programs)


def test_a_task_in_another_group_is_not_touched():
    """Not even if it is large, grows and has an agent."""
    elsewhere = bystander(3000.0, group="h")
    machine = Machine(training(), elsewhere, groups={"g": 1200, "h": 8000}).run(60)

    assert {machine.programs[0].key} == {decision.task for decision in machine.log}
    assert [] == elsewhere.saves


def test_a_bystander_that_the_kernel_could_choose_is_saved_and_never_paused():
    """The kernel kills the largest process, whichever leaks."""
    machine = leaking(bystander(900.0), limit_mb=1800.0).run(80)
    actionable, healthy = machine.programs

    assert actionable.stopped
    assert healthy.saves
    assert not healthy.stopped
    assert {"pause:train.ipynb"} == set(machine.kinds(PAUSE))


def test_a_finished_warm_up_is_not_blamed_for_a_later_leak():
    """A task that grew little recently is not a contributor."""
    warm = bystander(save_s=None)
    warm.grows = lambda t: (200 + 900 * min(1.0, t / 10)) * MB
    machine = leaking(
        warm, program=training(20, starts_s=12.0), limit_mb=2400.0, settings=NO_PAUSE
    ).run(60)

    assert machine.kinds(CHECKPOINT)
    assert {"checkpoint:train.ipynb"} == set(machine.kinds(CHECKPOINT))


# Unwatched programs grow


def test_where_other_programs_eat_the_memory_all_are_saved_and_none_is_paused():
    """A pause would not help; the warning names no task."""
    machine = Machine(
        Program(10, "a.ipynb", flat(3000), save_s=0.1),
        Program(20, "b.ipynb", flat(2900), save_s=0.1),
        ram_mb=16_000,
        others=lambda t: (4000 + 100 * t) * MB,
    ).run(85)

    assert {"checkpoint:a.ipynb", "checkpoint:b.ipynb"} == set(machine.kinds(CHECKPOINT))
    assert [] == machine.kinds(PAUSE)
    warning = next(d for d in machine.log if d.kind is NOTIFY)
    assert warning.task is None
    assert warning.evidence["others_share"] > 0.9


# Failures


def test_a_save_that_fails_is_told_once_and_the_task_is_paused_instead_of_lost():
    """Without the pause the kernel would kill it; while it is paused, its state stays in memory."""
    machine = leaking(program=training(fails=True)).run(60)
    program = machine.programs[0]

    assert program.stopped
    assert 1 == machine.kinds().count("notify:rescue_failed")
    assert 1 < len(machine.kinds(CHECKPOINT)) < 8
    failure = next(d for d in machine.log if d.evidence.get("topic") == "rescue_failed")
    assert "the disk is full" == failure.reason


def test_an_agent_that_never_answers_does_not_keep_its_task_from_the_pause():
    """A request without an answer fails after its deadline."""
    machine = leaking(program=training(deaf=True)).run(60)

    assert machine.programs[0].stopped
    assert "notify:rescue_failed" in machine.kinds()


def test_a_task_without_an_agent_is_warned_of_and_paused():
    """It cannot be saved, and without the pause the kernel would kill it."""
    machine = leaking(program=training(save_s=None)).run(60)

    assert ["notify:warning", "pause:train.ipynb", "notify:paused"] == machine.kinds()


def test_a_training_that_has_ended_in_a_danger_is_not_said_to_have_had_no_agent():
    """The advice from its training time stays: it has rescues, and its workers were counted."""
    train = Program(1, "train.ipynb", leak(20.0), save_s=0.1, group="g")
    settings = Settings(actions=ActionSettings(pause=False))
    machine = Machine(train, groups={"g": 2000.0}, settings=settings)
    while machine.tick().incidents[:1] == () or machine.result.incidents[0].stage < Stage.WARN:
        machine.run(1.0)
    # an exception ended the training: its agent has disconnected
    train.save_s, train.request = None, None

    machine.run(2.0)

    (incident,) = machine.result.incidents
    assert Stage.WARN <= incident.stage
    assert any("keep float(loss)" in line for line in incident.advice)
    assert not any("watchdog agent enable" in line for line in incident.advice)


def test_a_pause_that_fails_is_told_and_saving_goes_on():
    """A task that cannot be paused is saved up to its last second; the pause is not tried again."""
    machine = leaking()
    machine.refuse.add(PAUSE)

    machine.run(60)

    program = machine.programs[0]
    assert 1 == len(machine.kinds(PAUSE))
    assert "notify:pause_failed" in machine.kinds()
    assert program.dead
    assert lost_s(program) <= 1.2  # a second, a step, a sample


@pytest.mark.parametrize(
    "changes",
    [
        {"program": training(uid=UID + 1)},
        {"program": training(kind=TaskKind.SERVER)},
        {"settings": NO_PAUSE},
        {"settings": Settings(rules=(RuleSettings(task="train*", pause=False),))},
        {"settings": Settings(rules=(RuleSettings(resource="cgroup", pause=False),))},
    ],
    ids=["another user's", "a server", "switched off", "rule of task", "rule of ceiling"],
)
def test_what_may_not_be_paused_is_not(changes):
    """
    Another user's task, a Jupyter server, and tasks that the settings exclude are never paused.
    """
    program = changes.get("program")
    if program is not None:
        changes["program"] = replace(program, saves=[])
    machine = leaking(**changes).run(60)

    assert [] == machine.kinds(PAUSE)
    assert machine.programs[0].dead


def test_what_may_not_be_saved_is_not_asked():
    """With checkpoints off the engine warns and pauses; the first pause waits for no save."""
    settings = Settings(actions=ActionSettings(checkpoint=False))

    machine = leaking(settings=settings).run(60)

    assert [] == machine.kinds(CHECKPOINT)
    assert machine.programs[0].stopped


def test_notices_can_be_switched_off_alone():
    """The engine still acts as usual."""
    settings = Settings(rules=(RuleSettings(task="/home/ann/*.ipynb", notify=False),))

    machine = leaking(settings=settings).run(60)

    assert [] == machine.kinds(NOTIFY)
    assert machine.programs[0].stopped


# Notices are few


def test_people_hear_of_one_leak_once_though_it_fills_two_ceilings():
    """The group's limit and the machine's RAM are reached at about the same time."""
    both = leaking(program=training(50), limit_mb=3000.0, ram_mb=3100.0, settings=NO_PAUSE).run(50)

    warnings = [d for d in both.log if d.evidence.get("topic") == "warning"]
    assert {ResourceKind.CGROUP} == {d.resource.kind for d in warnings}
    assert len(warnings) <= 2


def test_a_long_slow_leak_makes_few_notices():
    """A quarter of an hour of growth makes a few staged notices."""
    machine = leaking(program=training(1.0), settings=NO_PAUSE).run(950)

    warnings = [d for d in machine.log if d.evidence.get("topic") == "warning"]
    assert machine.programs[0].dead
    assert 1 <= len(warnings) <= 5


def test_the_end_of_a_danger_is_told_to_those_who_heard_of_it():
    """It stopped growing: one quiet notice, and the incident is closed."""
    program = training(25)
    program.grows = lambda t: (300 + 25 * min(t, 30.0)) * MB

    machine = leaking(program=program).run(200)

    assert "notify:warning" in machine.kinds()
    assert "notify:resolved" == machine.kinds()[-1]
    assert 1 == machine.kinds().count("notify:resolved")
    assert () == machine.result.incidents
    assert 1 == len(machine.closed)


# Pause and resume


def test_a_paused_task_runs_again_when_there_is_room():
    """The limit was raised: after a while the engine resumes it and says so."""
    machine = leaking().run(60)
    machine.groups["g"] = 8000 * MB

    machine.run(10)
    assert machine.programs[0].stopped
    machine.run(20)

    assert not machine.programs[0].stopped
    assert ["resume:train.ipynb", "notify:resumed"] == machine.kinds()[-2:]


@pytest.mark.parametrize("waits_s", [0.5, 1.5, 30.0, math.inf])
def test_a_task_that_waits_in_the_kernel_at_its_pause_runs_again_when_there_is_room(waits_s):
    """Swapped out, throttled by its group or blocked by a dead disk: its pause still counts."""
    machine = leaking(program=training(waits_s=waits_s)).run(60)
    after = machine.kinds()[machine.kinds().index("pause:train.ipynb") + 1 :]
    assert machine.programs[0].stopped
    assert ["notify:paused"] == after

    machine.groups["g"] = 8000 * MB
    machine.run(30)

    assert not machine.programs[0].stopped
    assert ["resume:train.ipynb", "notify:resumed"] == machine.kinds()[-2:]


def test_a_person_who_resumes_it_in_its_wait_is_heard_when_it_runs():
    """The engine cannot know before the task runs; from then on it leaves the task running."""
    machine = leaking(program=training(waits_s=5.0)).run(60)
    program = machine.programs[0]
    program.paused_s = machine.now

    machine.run(3)
    program.stopped = False
    machine.run(30)

    assert 1 == len(machine.kinds(PAUSE))
    assert program.dead


def test_one_that_waits_in_the_kernel_is_not_paused_on_another_account_as_well():
    """Two limits come near together: one pause, and neither incident ends the other's."""
    machine = leaking(program=training(waits_s=math.inf), ram_mb=1250).run(120)

    assert 1 == len(machine.kinds(PAUSE))
    assert machine.programs[0].stopped


def test_a_pause_ends_when_there_is_room_though_pauses_were_forbidden_since():
    """A task that is already paused must not stay paused for ever."""
    machine = leaking().run(60)
    machine.engine.settings = Settings(actions=ActionSettings(pause=False))
    assert machine.programs[0].stopped

    machine.groups["g"] = 8000 * MB
    machine.run(30)

    assert not machine.programs[0].stopped


def test_a_little_room_is_not_enough_to_run_again():
    """The engine would have to pause it again at once."""
    machine = leaking().run(60)
    machine.groups["g"] = 1300 * MB

    machine.run(300)

    assert machine.programs[0].stopped


def test_a_task_that_a_person_resumed_is_not_paused_again():
    """The user's decision counts; the engine saves it up to its end instead."""
    machine = leaking().run(60)
    program = machine.programs[0]
    program.stopped = False

    machine.run(30)

    assert 1 == len(machine.kinds(PAUSE))
    assert program.dead
    assert lost_s(program) <= 1.2  # a second, a step, a sample


def test_a_resume_that_fails_is_tried_again_later():
    """The retry does not come in every tick."""
    machine = leaking().run(60)
    machine.refuse.add(RESUME)
    machine.groups["g"] = 8000 * MB

    machine.run(60)
    tries = len(machine.kinds(RESUME))
    machine.refuse.clear()
    machine.run(120)

    assert 1 == tries
    assert not machine.programs[0].stopped


def test_a_resume_without_room_is_no_end_of_the_danger():
    """
    Long paused, then resumed by the user: the engine neither reports safety nor promises a pause.
    """
    machine = leaking().run(120)
    program = machine.programs[0]
    assert program.stopped
    before = len(machine.log)

    program.stopped = False
    machine.run(10)

    since = machine.log[before:]
    assert "resolved" not in [decision.evidence.get("topic") for decision in since]
    assert not any(decision.evidence.get("may_pause") for decision in since)
    assert PAUSE not in [decision.kind for decision in since]


def test_the_incident_of_a_paused_task_that_was_killed_is_closed():
    """A task that has ended leaves no open incident."""
    machine = leaking(bystander()).run(60)
    machine.programs[0].dead = True

    machine.run(30)

    assert () == machine.result.incidents
    assert 1 == len(machine.closed)


# Swap


def test_ram_with_swap_behind_it_is_warned_of_but_nothing_is_paused_before_the_end_of_swap():
    """Full RAM is slow; full RAM and full swap kill."""
    machine = Machine(training(100, group=""), ram_mb=8000, swap_mb=4000).run(100)

    assert {ResourceKind.RAM} == {d.resource.kind for d in machine.log if d.at_mono_s < 72}
    assert [] == machine.kinds(PAUSE)
    machine.run(60)
    assert machine.programs[0].stopped
    assert ResourceKind.RAM_SWAP == next(d for d in machine.log if d.kind is PAUSE).resource.kind


# Bounds


def test_the_share_of_time_spent_saving_is_bounded_while_the_end_does_not_come():
    """Twenty minutes close to the limit cost at most a tenth of the time."""
    program = training(0, save_s=1.0)
    program.grows = lambda t: (1100 + 90 * (1 - math.exp(-t / 400))) * MB

    leaking(program=program, settings=NO_PAUSE).run(1200)

    assert len(program.saves) * 1.0 <= 0.1 * 1200 + 30


def test_the_settings_can_be_replaced_in_the_middle():
    """The series continue; the new settings apply from the next tick."""
    machine = leaking().run(20)

    machine.engine.settings = Settings(
        actions=ActionSettings(pause=False), stages=StageSettings(pause_s=1.0)
    )
    machine.run(40)

    assert [] == machine.kinds(PAUSE)
    assert machine.programs[0].saves


def test_what_is_gone_is_forgotten():
    """Thousands of short programs leave no state in the engine."""
    machine = Machine(ram_mb=64_000)
    for index in range(300):
        machine.programs = [
            Program(index + 100, "short.py", flat(100), save_s=0.1, group=f"g{index}")
        ]
        machine.groups = {f"g{index}": 4000 * MB}
        machine.tick()
        machine.now += 1.0

    engine = machine.engine
    assert 2 >= len(engine._tracker._series)
    assert 1 == len(engine._tracker.usage) == len(engine._saving.schedules)


def test_the_engine_asks_for_a_look_at_once_when_a_save_is_done():
    """The next save, or the pause that waited for it, must not wait for the usual interval."""
    machine = leaking()
    while not machine.kinds(CHECKPOINT):
        machine.run(0.1)
    assert not machine.engine.wants_tick

    machine._advance(machine.now + 5)

    assert machine.engine.wants_tick
    machine.tick()
    assert not machine.engine.wants_tick


@pytest.mark.parametrize("agent", [True, False])
def test_what_is_advised_to_a_steady_leak_is_the_same_from_the_notice_to_after_its_death(agent):
    """Its last moments and the gaps in between do not change its growth record."""
    program = training(12, save_s=0.5 if agent else None)
    machine = leaking(bystander(), program=program, settings=NO_PAUSE)
    said: list[tuple[str, ...]] = []
    for _ in range(1200):
        machine.run(0.1)
        said += [each.advice for each in machine.result.incidents if each.advice]

    assert program.dead
    growth = {line for lines in said for line in lines if "grow" in line.lower()}
    assert ["It grows steadily"] == [line.partition(":")[0] for line in growth]
    assert 1 == len(set(said))


@pytest.mark.parametrize(("swap", "stage"), [(0, Stage.SAVE), (8 << 30, Stage.WARN)])
def test_a_machine_without_memory_is_in_danger_though_nothing_grows(swap, stage):
    """MemAvailable is 0 for minutes, with or without a watched task."""
    machine = host(16 << 30, 0, swap_total_bytes=swap, swap_free_bytes=swap // 2)
    engine = Engine(Settings(), 1000)
    for now in range(120):
        snapshot = Snapshot(float(now), 1e9 + now, machine, ())
        result = engine.tick(snapshot, (), readings(snapshot, ()), {})

    assert stage <= result.assessments[ResourceKey(ResourceKind.RAM)].stage
    assert result.incidents


@pytest.mark.parametrize(
    ("share", "told"),
    [
        (lambda t: 0.98, []),
        (lambda t: 0.986, ["notify:warning"]),
        (lambda t: 0.97 if t == 0.0 else 0.986, ["notify:warning"]),
        (lambda t: 0.3 if t == 0.0 else 0.99, ["notify:warning"]),
        (
            lambda t: min(0.99, 0.1 + 0.04 * t),
            ["notify:warning", "pause:train.ipynb", "notify:paused"],
        ),
    ],
    ids=["near from the start", "full from the start", "a step", "a large step", "a leak"],
)
def test_an_address_space_that_stands_still_at_its_limit_pauses_nobody(share, told):
    """Programs reserve it in large steps: two readings are no growth."""
    machine = Machine(Program(10, "train.ipynb", flat(500)))
    key = ResourceKey(ResourceKind.RLIMIT_AS, "10")
    label, tasks = "address space of train.ipynb", (machine.programs[0].key,)
    machine.readings = lambda: [
        Reading(key, label, share(machine.now) * 10_000 * MB, 10_000 * MB, True, tasks)
    ]

    machine.run(5)
    early = machine.kinds()
    machine.run(85)

    assert [] == early
    assert told == machine.kinds()
    assert all(
        "train.ipynb" in each.notification.title for each in machine.log if each.notification
    )
