"""Cards that are lost, broken or throttled: one notice each, and only for the tasks on them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from card_world import WALL_S, CardWorld, card
from support.statuses import status_of_sample

from watchdog_app.core.explain import status
from watchdog_app.core.model.decisions import Stage
from watchdog_app.core.model.hardware import ClockEvent, GpuState, XidEvent
from watchdog_app.core.model.machine import Fault
from watchdog_app.core.model.resource import ResourceKind
from watchdog_app.core.model.settings import ActionSettings, RuleSettings, Settings
from watchdog_app.core.model.status import Status
from watchdog_app.core.policy.engine import Engine


def two_trainings() -> CardWorld:
    """One training per card, both with an agent."""
    world = CardWorld(cards=2)
    world.on(0, world.program(100, "left.ipynb", agent=True))
    world.on(1, world.program(200, "right.ipynb", agent=True))
    return world.run(5)


def incident(world: CardWorld):
    assert world.result is not None
    (found,) = world.result.incidents
    return found


def as_status(world: CardWorld) -> Status:
    """The status of the last sample."""
    return status_of_sample(world.snapshot, tuple(world.tasks()), world.readings, world.result)


def explained(world: CardWorld, pid: int) -> str:
    """The output of `watchdog explain PID`."""
    found = as_status(world)
    return status.describe_task(found, found.task(pid), WALL_S + world.now)


def explained_incident(world: CardWorld) -> str:
    """The part of that output about the only incident."""
    (found,) = as_status(world).incidents
    return status.describe_incident(found, WALL_S + world.now)


@pytest.mark.parametrize(
    ("code", "works", "lost"),
    [(13, True, False), (31, True, False), (43, True, False), (79, False, True)],
)
def test_only_a_card_that_does_not_work_is_called_out_of_order(code, works, lost):
    """A program's own fault does not damage the card; one table decides all the words."""
    world = two_trainings()
    world.set(0, xids=(XidEvent(code, WALL_S + world.now),))
    world.run(3)

    found, text = incident(world), explained(world, 100)

    assert (works, lost) == (found.device_works, found.work_lost)
    assert lost is ("is out of order" in text)
    assert works is ("reports a fault" in text)
    assert lost is ("What it held there is lost" in text)
    body = world.notices[0].body
    assert works is ("may end with a CUDA error" in body) is ("the card itself works" in body)
    assert lost is ("is lost" in body)


def test_an_incident_that_has_cleared_drops_its_advice():
    """The user must not reset a card that works again."""
    world = two_trainings()
    world.set(1, state=GpuState.LOST, processes=())
    world.run(5)
    assert incident(world).advice

    world.set(1, state=GpuState.OK)
    world.run(2)

    found = incident(world)
    assert ((), Stage.OK, True) == (found.advice, found.stage, found.device_works)
    assert "To do" not in explained(world, 200)


# Lost cards


def test_a_lost_card_names_the_notebook_that_was_on_it_and_the_cure():
    """One critical notice says what it means; the training on the other card is not affected."""
    world = two_trainings()
    world.rescued(200)

    world.set(1, state=GpuState.LOST, processes=(), xids=(XidEvent(79, WALL_S + world.now),))
    world.run(30)

    (notice,) = world.notices
    assert "GPU 1 is lost: right.ipynb" == notice.title
    assert ("critical", "gpu_lost", 200) == (notice.urgency, notice.topic, notice.task)
    for words in (
        "Xid 79, the card has fallen off the bus",
        "what it held there is lost, and cannot be saved",
        "A rescue of step 490 is in /rescues/490",
        "Start the machine again",
        "power",
    ):
        assert words in notice.body
    assert "left.ipynb" not in notice.body
    assert ["notify:gpu_lost"] == world.kinds()
    assert ["right.ipynb"] == [each.name for each in incident(world).contributors]
    assert (ResourceKind.GPU_HEALTH, "GPU-1") == (
        incident(world).resource.kind,
        incident(world).resource.subject,
    )


def test_who_died_with_its_card_is_still_named():
    """The program often ends before the daemon reads the loss."""
    world = two_trainings()

    world.ends(200)
    world.run(2)
    world.set(1, state=GpuState.LOST, processes=())
    world.run(5)

    assert "GPU 1 is lost: right.ipynb" == world.notices[0].title
    assert "has no watchdog agent" not in world.notices[0].body  # it had one
    assert world.result is not None
    assert ["GPU 1 (NVIDIA RTX 4090)"] == [
        text.partition(":")[0] for text in world.result.card_faults.values()
    ]


def test_a_card_that_is_no_longer_listed_is_lost_only_where_somebody_was_on_it():
    """Cards are unplugged or passed to virtual machines; a reader that restarts is silent."""
    world = two_trainings()
    world.on(0)
    world.run(70)  # the first card was unused for a while
    kept = list(world.gpus)

    world.gpus = kept[1:]
    world.run(40)
    assert [] == world.notices

    world.gpus = kept[:1]
    world.run(3)
    world.gpus = kept
    world.run(20)
    assert [] == world.notices

    world.gpus = kept[:1]
    world.run(20)
    assert ["GPU 1 is lost: right.ipynb"] == [each.title for each in world.notices]
    world.run(600)
    assert ["GPU-1"] == [each.resource.subject for each in world.result.incidents]


def test_a_driver_that_is_gone_is_told_once_with_its_cure():
    """All cards fail at once, and the sensor knows the reason."""
    world = two_trainings()

    world.gpus = []
    world.faults = (
        Fault(
            "gpu", "The driver was updated under the running system.", "Start the machine again."
        ),
    )
    world.run(30)

    (notice,) = world.notices
    assert "The graphics driver has failed: left.ipynb" == notice.title
    assert "updated under the running system" in notice.body
    assert "right.ipynb" in notice.body
    assert "Start the machine again." in notice.body


def test_a_hung_driver_is_told_after_a_while_and_not_for_a_late_answer():
    """A busy driver may answer late; a hung driver needs the user."""
    world = two_trainings()

    world.set(0, state=GpuState.SILENT)
    world.run(10)
    world.set(0, state=GpuState.OK)
    world.run(20)
    assert [] == world.notices

    world.set(0, state=GpuState.SILENT)
    world.run(40)
    assert ["GPU 0 does not answer: left.ipynb"] == [each.title for each in world.notices]
    assert "normal" == world.notices[0].urgency


def test_cards_that_nobody_reads_any_more_count_as_silent():
    """The reader may hang too; a sleeping card is not silent."""
    world = two_trainings()
    world.set(1, state=GpuState.ASLEEP, processes=())
    world.run(1)

    world.read = False
    world.run(90)

    assert ["GPU 0 does not answer: left.ipynb"] == [each.title for each in world.notices]


# Xids


@pytest.mark.parametrize(
    ("code", "title", "urgency", "remedy"),
    [
        (31, "GPU 0 reports a fault: left.ipynb", "normal", "Start the program again"),
        (94, "GPU 0 reports a fault: left.ipynb", "normal", "Start the program again"),
        # The command can be copied, and starts with a stop of the daemon's reader.
        (48, "GPU 0 reports a fault: left.ipynb", "critical",
         "`watchdog stop; sudo nvidia-smi --gpu-reset -i 0; watchdog start`. If that fails"),
        (119, "GPU 0 reports a fault: left.ipynb", "critical", "nvidia-smi --gpu-reset -i 0"),
        (999, "GPU 0 reports a fault: left.ipynb", "low", "NVIDIA's catalogue"),
    ],
)  # fmt: skip
def test_a_fatal_xid_is_told_with_its_meaning_and_cure(code, title, urgency, remedy):
    """The text follows NVIDIA's catalogue; an unknown code is not guessed."""
    world = two_trainings()

    world.set(0, xids=(XidEvent(code, WALL_S + world.now),))
    world.run(3)

    (notice,) = world.notices
    assert (title, urgency) == (notice.title, notice.urgency)
    assert f"Xid {code}" in notice.body
    assert remedy in notice.body


@pytest.mark.parametrize(
    ("code", "age_s"), [(45, 0), (63, 0), (92, 0), (154, 0), (48, 1800)], ids=str
)
def test_an_xid_that_needs_nobody_or_is_old_is_no_news(code, age_s):
    """They follow from another fault, show in other figures, or are older than the daemon."""
    world = two_trainings()

    world.set(0, xids=(XidEvent(code, WALL_S + world.now - age_s),))
    world.run(3)

    assert [] == world.notices


def test_only_the_program_that_the_driver_names_is_hit():
    """Two notebooks share a card; one has a faulty CUDA kernel."""
    world = CardWorld()
    world.on(0, world.program(100, "left.ipynb"), world.program(200, "right.ipynb", workers=2))
    world.run(3)

    world.on(0, 100, 202)
    world.run(2)
    world.set(0, xids=(XidEvent(13, WALL_S + world.now, pid=202),))
    world.run(3)

    assert ["right.ipynb"] == [each.name for each in incident(world).contributors]


def test_the_same_fault_again_and_again_is_one_notice():
    """A program that faults in a loop makes many log lines, but one notice."""
    world = two_trainings()

    def fault(second):
        world.set(0, xids=(*world.gpus[0].xids[-3:], XidEvent(31, WALL_S + world.now)))

    world.run(300, fault)

    assert 1 == len(world.notices)
    assert 1 == len(world.result.incidents)


@pytest.mark.parametrize("lost", [True, False], ids=["the card goes", "a fault of the card"])
def test_a_fault_that_gets_worse_is_told_again_at_once(lost):
    """The fault of a program grows into a loss or a fault of the whole card."""
    world = two_trainings()
    first = XidEvent(31, WALL_S + world.now)
    world.set(1, xids=(first,))
    world.run(3)

    worse = {"xids": (first, XidEvent(48, WALL_S + world.now))}
    world.set(1, **({"state": GpuState.LOST} if lost else worse))
    world.run(3)

    assert ["normal", "critical"] == [each.urgency for each in world.notices]
    assert 1 == len({each.incident for each in world.notices})


# Memory of the card, and the driver's recommended action


@pytest.mark.parametrize(
    ("change", "words", "urgency"),
    [
        ({"remap_failed": True}, "could not be replaced", "normal"),
        ({"remap_pending": True}, "at the next reset", "low"),
        ({"recovery_action": "reboot"}, "start the machine again", "normal"),
        ({"recovery_action": "drain_and_reset"}, "--gpu-reset -i 0", "normal"),
        ({"ecc_uncorrected": 5}, "2 memory errors that could not be corrected", "normal"),
    ],
)
def test_worn_memory_and_recovery_actions_are_told(change, words, urgency):
    world = two_trainings()
    world.set(0, ecc_uncorrected=3)
    world.run(3)

    world.set(0, **change)
    world.run(3)

    (notice,) = world.notices
    assert words in notice.body
    assert urgency == notice.urgency


@pytest.mark.parametrize(("name", "told"), [("NVIDIA A100", True), ("AMD Instinct MI300X", False)])
def test_only_a_card_of_nvidias_is_reset_with_nvidias_tool(name, told):
    world = two_trainings()
    world.set(0, name=name, ecc_uncorrected=3)
    world.run(3)

    world.set(0, ecc_uncorrected=5)
    world.run(3)

    (notice,) = world.notices
    assert "reset it" in notice.body
    assert told == ("nvidia-smi" in notice.body)


def test_damaged_values_are_not_saved():
    """After memory errors a save would become the newest rescue, with wrong values."""
    world = two_trainings()
    world.set(0, ecc_uncorrected=0)
    world.run(2)

    world.set(0, ecc_uncorrected=9, recovery_action="drain_and_reset")
    world.run(10)

    assert not [kind for kind in world.kinds() if kind.startswith("checkpoint")]


# Throttling


def brake(world: CardWorld, events: set[str], seconds: int, share: float = 1.0) -> CardWorld:
    """Run with these throttle reasons for this share of the time."""

    def each(second):
        world.set(0, throttling=frozenset(events if (second * share) % 1.0 < share else ()))

    return world.run(seconds, each)


@pytest.mark.parametrize(
    ("events", "seconds", "trouble", "words"),
    [
        ({ClockEvent.HARDWARE_THERMAL}, 140, "heat", "fans"),
        ({ClockEvent.SOFTWARE_THERMAL}, 140, "heat", "fans"),
        ({ClockEvent.POWER_BRAKE}, 10, "power_brake", "power supply"),
    ],
)
def test_a_brake_that_lasts_is_told_with_its_own_advice(events, seconds, trouble, words):
    """For heat the advice names the cooling, for power the power supply."""
    world = brake(two_trainings(), events, seconds)

    (notice,) = world.notices
    assert ("slowed", "normal") == (notice.topic, notice.urgency)
    assert trouble == world.log[0].evidence["trouble"]
    assert words in notice.body
    assert "left.ipynb" in notice.title


def test_heat_of_most_of_two_minutes_is_told_then_and_ends_two_minutes_later():
    """The text names 2 min, so heat at a duty of two thirds is found and forgotten in that time."""
    world = brake(two_trainings(), {ClockEvent.HARDWARE_THERMAL}, 130, share=0.67)
    assert "most of the last 2 min" in incident(world).why

    brake(world, {ClockEvent.HARDWARE_THERMAL}, 300)
    brake(world, set(), 120)
    assert Stage.OK is incident(world).stage


def test_a_brake_that_comes_and_goes_is_told_once_an_hour():
    """Each time is a separate incident, but the user already knows."""
    world = two_trainings()
    for _ in range(4):
        brake(world, {ClockEvent.HARDWARE_THERMAL}, 200)
        brake(world, set(), 300)

    assert 1 == len(world.notices)
    assert 4 == len(world.closed)


def test_another_daemon_keeps_quiet_about_a_fault_that_comes_and_goes():
    """The next daemon restores what was reported, and when."""
    world = two_trainings()
    brake(world, {ClockEvent.HARDWARE_THERMAL}, 200)
    brake(world, set(), 300)
    engine = Engine(world.engine.settings, own_uid=0)
    engine.load(world.engine.dump(), world.now, WALL_S + world.now)
    world.engine = engine

    brake(world, {ClockEvent.HARDWARE_THERMAL}, 200)

    assert 1 == len(world.notices)


@pytest.mark.parametrize(
    ("events", "seconds", "share"),
    [
        ({ClockEvent.HARDWARE_THERMAL}, 100, 1.0),  # a hot minute
        ({ClockEvent.SOFTWARE_THERMAL}, 600, 0.1),
        ({ClockEvent.SOFTWARE_POWER_CAP}, 1500, 1.0),
        ({ClockEvent.IDLE, ClockEvent.APPLICATION_CLOCKS}, 1000, 1.0),
        ({ClockEvent.HARDWARE_SLOWDOWN}, 1000, 1.0),
    ],
)
def test_brakes_that_flash_or_are_normal_are_no_news(events, seconds, share):
    """A card at full load must not cause false alarms."""
    world = brake(two_trainings(), events, seconds, share)

    assert [] == world.notices


# Settings, restarts, wording


def test_rules_and_switches_hold_for_faults_as_well():
    """Switched-off notices are not sent, but the incident exists."""
    quiet = Settings(rules=(RuleSettings(resource="gpu_health", notify=False),))
    for settings, expected in ((quiet, 0), (Settings(actions=ActionSettings(pause=False)), 1)):
        world = CardWorld(settings=settings)
        world.on(0, world.program(100, "left.ipynb"))
        world.run(3)
        world.set(0, state=GpuState.LOST)
        world.run(3)
        assert expected == len(world.notices)
        assert 1 == len(world.result.incidents)


def test_a_lost_card_is_told_also_while_protection_is_off():
    """The loss has happened; a mere risk is not reported then."""
    world = two_trainings()
    world.engine.protecting = False

    world.set(0, recovery_action="reset")
    world.run(3)
    assert [] == world.notices

    world.set(1, state=GpuState.LOST)
    world.run(3)
    assert ["gpu_lost"] == [each.topic for each in world.notices]


def test_a_lost_card_that_cannot_say_who_it_is_is_the_one_that_was_lost_before():
    """For a daemon that starts after the loss: no second notice, no false all-clear."""
    world = two_trainings()
    world.set(1, state=GpuState.LOST, processes=())
    world.run(5)
    after = CardWorld(cards=2)
    after.gpus, after.now = list(world.gpus), world.now + 2
    after.set(1, uuid=None, name="NVIDIA GPU")

    after.engine.load(world.engine.dump(), after.now, WALL_S + after.now)
    after.run(120)

    assert [] == after.notices
    assert [] == after.closed
    assert ["right.ipynb"] == [each.name for each in incident(after).contributors]
    assert "GPU 1 (NVIDIA RTX 4090)" == incident(after).label


def test_a_clock_that_is_set_back_hides_no_fault():
    """Events carry wall times; only their age at the first reading counts."""
    world = two_trainings()
    before = XidEvent(31, WALL_S + world.now)

    world.set(0, xids=(replace(before, at_unix_s=before.at_unix_s - 1800),))
    world.run(2)
    world.wall_s -= 7200
    world.set(0, xids=(*world.gpus[0].xids, XidEvent(48, world.wall_s + world.now)))
    world.run(3)

    assert ["GPU 0 reports a fault: left.ipynb"] == [each.title for each in world.notices]


def test_a_storm_of_faults_does_not_hide_the_worst():
    """The card's own fault comes first, however many program faults follow."""
    world = two_trainings()
    world.set(0, xids=(XidEvent(13, WALL_S + world.now), XidEvent(79, WALL_S + world.now + 0.1)))
    world.run(2)

    def storm(second):
        at = WALL_S + world.now
        world.set(0, xids=tuple(XidEvent(13 + n % 20, at + n / 100, pid=n) for n in range(60)))

    world.run(20, storm)

    assert incident(world).why.startswith("Xid 79, the card has fallen off the bus")
    assert Stage.SAVE is incident(world).stage
    assert 1 == len(world.notices)


def test_the_cause_stays_the_first_when_its_program_is_learned_later():
    """The second fault is a consequence, also if the kernel log names the first one later."""
    world = CardWorld()
    world.on(0, world.program(100, "left.ipynb"), world.program(200, "right.ipynb"))
    world.run(3)
    first, second = (XidEvent(code, WALL_S + world.now) for code in (31, 43))
    world.set(0, xids=(first, second))
    world.run(2)

    world.set(0, xids=(replace(first, pid=200), second))
    world.run(2)

    assert incident(world).why.startswith("Xid 31")
    assert ["right.ipynb", "left.ipynb"] == [each.name for each in incident(world).contributors]


def test_a_fault_is_explained_without_a_word_of_growth():
    """A broken card has no trend."""
    world = two_trainings()
    world.set(1, state=GpuState.LOST)
    world.run(5)

    text = explained_incident(world)

    assert "hit: right.ipynb (pid 200)" in text
    assert "critical" in text
    assert "growth" not in text


def test_a_machine_is_explained_with_lost_cards_and_without_heat_that_goes_nowhere():
    """The text lists faults; healthy readings are in the status."""
    world = two_trainings()
    world.set(0, slowdown_c=83.0, shutdown_c=95.0)
    world.set(1, state=GpuState.LOST, xids=(XidEvent(79, WALL_S + world.now),))
    world.run(3)

    text = status.describe_machine(as_status(world), WALL_S + world.now)

    assert "GPU 1 (NVIDIA RTX 4090): critical, noticed" in text
    assert "Xid 79" in text
    assert "heat of GPU 0" not in text


def test_a_task_is_explained_with_what_it_holds_on_its_cards():
    """The driver's count; the framework's own is among the limits."""
    world = two_trainings()

    assert "It holds 1.00 GiB of memory on GPU 0." in explained(world, 100)


def test_a_card_with_a_hostile_name_is_shown_safely():
    """The driver reports the name, and a fake driver can report any."""
    world = CardWorld()
    world.gpus = [card(0, name="evil\x1b[31m\nGPU")]
    world.on(0, world.program(100, "left.ipynb"))
    world.run(3)

    world.set(0, state=GpuState.LOST)
    world.run(3)

    assert "\x1b" not in world.notices[0].body + world.notices[0].title
    assert "\x1b" not in explained_incident(world)


# One notice for one cause


def test_who_had_left_a_card_is_not_named_in_its_loss():
    """Two tasks share a card and one moves away; 12 s later it has lost nothing."""
    world = CardWorld()
    world.on(0, world.program(100, "left.py"), world.program(200, "stays.py"))
    world.run(10)
    world.on(0, 200)
    world.run(12)

    world.set(0, state=GpuState.LOST, processes=(), xids=(XidEvent(79, WALL_S + world.now),))
    world.run(3)

    assert "GPU 0 is lost: stays.py" == world.notices[0].title
    assert "left.py" not in world.notices[0].body


def test_a_card_that_came_back_takes_the_fault_that_took_it_with_it():
    """A reset also clears the Xid: the incident closes, and no second alarm follows."""
    name = "GPU 1 (NVIDIA RTX 4090)"
    world = two_trainings()
    world.set(1, state=GpuState.LOST, processes=(), xids=(XidEvent(79, WALL_S + world.now),))
    world.run(50)

    world.set(1, state=GpuState.OK)
    world.run(120)

    assert [("critical", "GPU 1 is lost: right.ipynb"), ("low", f"{name} is well again")] == [
        (each.urgency, each.title) for each in world.notices
    ]
    assert [name] == world.closed
    assert [] == list(world.result.incidents)


def updated(world: CardWorld) -> Fault:
    return Fault(
        "gpu.driver.updated",
        "The NVIDIA driver was updated under the running system. New jobs fail.",
        "Restart the machine once trainings have saved.",
    )


def test_an_update_underneath_is_one_notice_with_the_cure_and_no_card_is_blamed():
    """The silent cards follow from the update; after it one notice says that the driver works."""
    world = two_trainings()
    world.faults = (updated(world),)
    for index in (0, 1):
        world.set(index, state=GpuState.SILENT, processes=())
    world.run(60)

    (notice,) = world.notices
    assert "The graphics driver was updated under the running system" == notice.title
    assert "Restart the machine once trainings have saved." in notice.body
    assert ["driver"] == [each.resource.subject for each in world.result.incidents]

    world.faults = ()
    for index in (0, 1):
        world.set(index, state=GpuState.OK)
    world.run(30)
    assert ["The graphics driver is well again"] == [each.title for each in world.notices[1:]]


def test_cards_that_are_silent_together_are_one_notice():
    """The driver hangs, not four cards at once; a MIG part follows its card."""
    world = CardWorld(cards=4)
    for index in range(4):
        world.on(index, world.program(100 + index, f"job{index}.py"))
    part = replace(card(0), id="x/gi1.ci0", parent_id=world.gpus[0].id)
    world.gpus.append(part)
    world.run(5)

    for index in range(5):
        world.set(index, state=GpuState.SILENT, processes=())
    world.run(60)

    (notice,) = world.notices
    assert "The graphics driver has failed: job0.py" == notice.title
    assert "none of the cards" in notice.body


def test_a_card_that_is_gone_from_the_readings_is_never_called_well():
    """The driver vanishes under a card that did not answer: an unseen card gets no all-clear."""
    world = two_trainings()
    world.set(0, state=GpuState.SILENT, processes=())
    world.run(30)
    assert ["GPU 0 does not answer: left.ipynb"] == [each.title for each in world.notices]

    world.gpus = []
    world.faults = (Fault("gpu.driver", "The driver's library is gone.", "Install it again."),)
    world.run(60)

    assert 2 == len(world.notices)
    assert "library is gone" in world.notices[1].body
    assert "Install it again." in world.notices[1].body
    assert not [each.title for each in world.notices if "well again" in each.title]


def test_explain_says_of_a_task_on_a_lost_card_that_it_has_lost_its_work():
    """The text must not say that nothing points to an end."""
    world = two_trainings()
    world.set(1, state=GpuState.LOST, processes=())
    world.run(3)

    left, right = explained(world, 100), explained(world, 200)

    assert "What it held there is lost" in right
    assert "Nothing points to an end" not in right
    assert "lost" not in left


def test_a_part_of_a_card_is_told_apart_from_the_others():
    """Three instances share one name, so the title adds the instance."""
    world = CardWorld()
    parts = [replace(card(0), id=f"x/gi{n}.ci0", parent_id=world.gpus[0].id) for n in range(3)]
    world.gpus += parts
    world.run(5)

    world.set(2, state=GpuState.NEEDS_RESET)
    world.run(5)

    assert ["GPU 0 GI 1 / CI 0 needs a reset"] == [each.title for each in world.notices]
