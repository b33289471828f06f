"""What the engine does about a full card, heat and an empty battery, and for which tasks."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from card_world import GIB, UID, WALL_S, CardWorld, task

from watchdog_app.core.diagnosis.causes import device_full, diagnose
from watchdog_app.core.model.decisions import DecisionKind
from watchdog_app.core.model.devices import devices_by_task, total_memory_bytes
from watchdog_app.core.model.exits import ExitFacts
from watchdog_app.core.model.hardware import GpuProcess, Hardware
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.settings import ActionSettings, RuleSettings, Settings
from watchdog_app.core.model.status import Allocator, Battery
from watchdog_app.core.policy.engine import Engine
from watchdog_app.core.policy.rules import allowed_actions

CHECKPOINT, PAUSE = DecisionKind.CHECKPOINT, DecisionKind.PAUSE


def of(world: CardWorld, *kinds: DecisionKind) -> list[str]:
    """Names of the tasks of these decisions."""
    return [str(each.evidence.get("name")) for each in world.log if each.kind in kinds]


def texts(world: CardWorld, topic: str) -> list[str]:
    return [f"{each.title}\n{each.body}" for each in world.notices if each.topic == topic]


# Memory of a card


def filling(settings: Settings | None = None) -> CardWorld:
    """One notebook grows on a card that it shares with an idle one; a script has another card."""
    world = CardWorld(cards=2, settings=settings)
    world.on(
        0, world.program(100, "grow.ipynb", agent=True), world.program(300, "idle.ipynb", cores=0)
    )
    world.on(1, world.program(200, "other.py", agent=True))
    world.run(20)

    def grow(second):
        used = int((4 + 0.15 * second) * GIB)
        on_it = (GpuProcess(100, used - GIB), GpuProcess(300, GIB))
        world.set(0, memory_used_bytes=used, processes=on_it)

    return world.run(132, grow)


def test_a_card_that_fills_up_names_who_grows_on_it_and_saves_that_one_alone():
    """The memory of each process on the card decides; trainings on other cards are left alone."""
    world = filling()

    first = texts(world, "warning")[0]
    assert first.startswith("GPU memory full in about ")
    assert "grow.ipynb\n" in first
    for words in (
        "GPU 0 memory (NVIDIA RTX 4090): ",
        " of 24.0 GiB",
        "grow.ipynb grows by 154 MiB/s, 100 %",
        "ends with an error: out of GPU memory",
    ):
        assert words in first
    assert {"grow.ipynb"} == set(of(world, CHECKPOINT))
    assert 3 <= len(of(world, CHECKPOINT))


def test_each_of_two_cards_that_one_task_fills_is_told_of():
    """GPU 1 ends the training as GPU 0 does, and sooner, so a notice for GPU 0 is not enough."""
    world = CardWorld(cards=2)
    train = world.program(100, "train.ipynb", agent=True)
    world.on(0, train)
    world.on(1, train)
    world.run(20)

    def grow(second):
        for index, (base, slope) in enumerate(((4.0, 0.15), (2.0, 0.17))):
            used = int((base + slope * second) * GIB)
            world.set(index, memory_used_bytes=used, processes=(GpuProcess(train, used),))

    world.run(125, grow)

    told = texts(world, "warning")
    assert {"GPU 0", "GPU 1"} == {f"GPU {index}" for index in (0, 1) for text in told
                                  if f"GPU {index} memory" in text}  # fmt: skip
    assert 2 == len([text for text in told if "full in about" in text])


def test_what_was_told_of_two_cards_outlives_the_daemon():
    """The next daemon repeats neither notice."""
    world = CardWorld(cards=2)
    train = world.program(100, "train.ipynb", agent=True)

    def grow(second):
        for index in (0, 1):
            used = int((4 + 0.15 * second) * GIB)
            world.set(index, memory_used_bytes=used, processes=(GpuProcess(train, used),))

    world.run(115, grow)
    told = len(texts(world, "warning"))
    state = json.loads(json.dumps(world.engine.dump()))
    world.engine = Engine(Settings(), UID)
    world.engine.load(state, world.now, WALL_S + world.now)
    world.run(15, lambda second: grow(115 + second))

    assert 2 == told
    assert told == len(texts(world, "warning"))
    for row in state["reports"]:
        del row[5:]
    world.engine.load(state, world.now, WALL_S + world.now)  # as an earlier version wrote it


def test_nobody_is_paused_for_a_full_card_unless_a_rule_names_it():
    """The program ends with an error, not a kill: a pause would only keep the card's memory."""
    assert [] == of(filling(), PAUSE)

    wanted = Settings(rules=(RuleSettings(resource="gpu_*", pause=True),))
    assert {"grow.ipynb"} == set(of(filling(wanted), PAUSE))


@pytest.mark.parametrize(
    ("rule", "paused"),
    [
        (RuleSettings(resource="gpu_memory", pause=True), True),
        (RuleSettings(resource="gpu_*", task="*.ipynb", pause=True), True),
        (RuleSettings(resource="*", pause=True), False),  # does not name cards
        (RuleSettings(resource="ram", pause=True), False),
        (RuleSettings(resource="gpu_memory"), False),
    ],
)
def test_a_rule_that_names_the_ceiling_allows_the_pause(rule, paused):
    """A rule for all tasks and resources does not cover cards."""
    about = task(100, "a.ipynb")

    found = allowed_actions(ActionSettings(), (rule,), about, ResourceKind.GPU_MEMORY)

    assert paused is found.pause
    assert found.checkpoint


def test_who_grows_is_asked_where_the_driver_does_not_say_who_holds_what():
    """Each program on the card may be the one; saving them costs little."""
    world = CardWorld()
    world.program(100, "a.ipynb", agent=True)
    world.program(200, "b.ipynb", agent=True)
    world.on(0, 100, 200, memory=None)
    world.run(20)

    world.run(125, lambda s: world.set(0, memory_used_bytes=int((4 + 0.15 * s) * GIB)))

    assert {"a.ipynb", "b.ipynb"} == set(of(world, CHECKPOINT))


def test_an_allocator_that_fills_up_warns_its_own_task():
    """TensorFlow reserves the whole card at its start, so only its agent knows the usage."""
    world = CardWorld()
    world.on(0, world.program(100, "tf.ipynb", agent=True), world.program(200, "b.py", agent=True))
    world.set(0, memory_used_bytes=23 * GIB)
    world.run(20)

    def report(second):
        live = int((5 + 0.1 * second) * GIB)
        card = {"device": "GPU:0", "gpu_uuid": "GPU-0", "retries": 3}
        allocator = Allocator(used_bytes=live, limit_bytes=20 * GIB, **card)
        world.agent(100, allocators=(allocator,))

    world.run(148, report)

    assert "Keras's memory on GPU 0" in texts(world, "warning")[0]
    assert {"tf.ipynb"} == set(of(world, CHECKPOINT))
    assert [] == of(world, PAUSE)


# Heat


def heating(per_s: float, seconds: int, *, cools: bool = True) -> CardWorld:
    """A card that heats up while its training runs; shutdown at 95 °C."""
    world = CardWorld(cards=2)
    world.set(0, slowdown_c=83.0, shutdown_c=95.0)
    world.on(0, world.program(100, "hot.ipynb", agent=True))
    world.on(1, world.program(200, "cool.ipynb", agent=True))
    world.run(30)
    celsius = [70.0]

    def heat(_):
        paused = world._tasks[100].members[0].state == "T"
        celsius[0] = max(45.0, celsius[0] + (-0.5 if paused and cools else per_s))
        world.set(0, temperature_c=float(round(celsius[0])))

    return world.run(seconds, heat)


def test_a_shutdown_ahead_saves_and_then_pauses_so_that_the_card_cools():
    """The training on the other card is not asked for anything; the pause ends after cooling."""
    world = heating(0.15, 320)

    kinds = world.kinds()
    assert "checkpoint:hot.ipynb" in kinds
    assert kinds.index("checkpoint:hot.ipynb") < kinds.index("pause:hot.ipynb")
    assert {"hot.ipynb"} == set(of(world, CHECKPOINT, PAUSE))
    assert ["hot.ipynb"] == of(world, DecisionKind.RESUME)
    paused = texts(world, "paused")[0]
    assert "It was about to overheat GPU 0 (" in paused
    assert "Let it cool down" in paused
    assert "At the very end it is paused, so that it cools down." in texts(world, "warning")[0]
    assert "GPU 0 has cooled down: " in texts(world, "resumed")[0]


# Battery


def on_battery(percent: float) -> Hardware:
    """A machine without mains whose battery holds 200 kJ when full."""
    battery = Battery(
        name="BAT0",
        percent=percent,
        discharging=True,
        energy_j=percent * 2000,
        full_j=200_000.0,
    )
    return Hardware(batteries=(battery,), on_mains=False)


def test_an_empty_battery_ahead_saves_every_training_and_pauses_none():
    """A pause saves little energy; a save keeps the work."""
    world = CardWorld(cards=0)
    world.program(100, "a.ipynb", agent=True)
    world.program(200, "b.ipynb", agent=True)
    world.program(300, "plain.py")

    def drain(second):
        left = max(0.0, 30.0 - second / 30)
        world.hardware = on_battery(left)

    world.run(780, drain)

    assert {"a.ipynb", "b.ipynb"} == set(of(world, CHECKPOINT))
    assert [] == of(world, PAUSE)
    warned = texts(world, "warning")[0]
    assert warned.startswith("Battery empty in about ")
    assert "% left" in warned
    assert "Plug the machine in" in warned
    # Long before it is empty, so that the user can fetch the charger.
    first = next(each for each in world.log if each.evidence.get("topic") == "warning")
    assert 400 < float(first.evidence["eta_s"] or 0)


def test_saves_on_an_emptying_battery_keep_their_distance():
    """The duration of the last part is unknown: about one rescue a minute until the end."""
    world = CardWorld(cards=0)
    world.program(100, "a.ipynb", agent=True)
    world.agent(100, save_s=0.01, step_s=0.01)

    def drain(second):
        left = max(1.0, 9.0 - second / 60)  # beyond the reserve it lasts some minutes more
        world.hardware = on_battery(left)

    world.run(600, drain)

    times = [each.at_mono_s for each in world.log if each.kind is CHECKPOINT]
    assert 3 <= len(times) <= 14
    assert all(later - one >= 30 for one, later in pairwise(times))
    assert max(later - one for one, later in pairwise(times)) <= 200
    assert world.now - times[-1] <= 120  # also after its own figures say that it is empty
    last = [each for each in world.notices if each.topic == "warning"][-1]
    assert ("Battery at its end: a.ipynb", "critical") == (last.title, last.urgency)


# Which task uses which card


def test_memory_of_a_card_belongs_to_the_task_that_has_the_process():
    """Workers count for their task, MIG parts count once, and unknown processes do not count."""
    world = CardWorld(cards=2)
    trainer = task(100, "a.py", workers=2)
    part = replace(
        world.gpus[0], id="MIG-1", parent_id="GPU-0", processes=(GpuProcess(101, 2 * GIB),)
    )
    world.on(0, 100, 101, 101, memory=2 * GIB)
    world.set(1, processes=(GpuProcess(102, None), GpuProcess(999, GIB, foreign=True)))

    found = devices_by_task(Hardware(gpus=(*world.gpus, part)), (trainer, task(999, "b.py")))

    uses = {use.id: use.memory_bytes for use in found[trainer.key]}
    assert {"GPU-0": 2 * GIB, "MIG-1": 2 * GIB, "GPU-1": None} == uses
    assert total_memory_bytes(found[trainer.key]) is None  # one part is unknown
    assert {trainer.key} == set(found)


# Deaths


def test_the_notice_of_a_death_by_a_fault_names_the_fault():
    """The incident is that of the fault."""
    world = CardWorld()
    world.on(0, world.program(100, "a.ipynb", agent=True))
    world.run(3)
    cause = diagnose(ExitFacts(wait_status=1 << 8, card_fault="GPU 0: Xid 79, off the bus"))
    about = task(100, "a.ipynb")
    snapshot = type("S", (), {"mono_s": world.now, "unix_s": 1.7e9})

    (decision,) = world.engine.task_ended(about, None, cause, snapshot)
    notice = decision.notification

    assert "Ended by a GPU fault: a.ipynb" == notice.title
    assert "Xid 79" in notice.body


@pytest.mark.parametrize(
    ("kind", "used", "mine", "full"),
    [
        (ResourceKind.GPU_MEMORY, 23.0, True, True),
        (ResourceKind.GPU_ALLOCATOR, 23.5, True, True),
        (ResourceKind.GPU_MEMORY, 12.0, True, False),
        (ResourceKind.GPU_MEMORY, 23.9, False, False),
        (ResourceKind.RAM, 23.9, True, False),
    ],
)
def test_a_card_was_full_when_what_was_left_is_less_than_a_large_tensor(kind, used, mine, full):
    """Only cards that the task used count."""
    about = task(100, "a.py")
    hit = (about.key,) if mine else ()
    reading = Reading(ResourceKey(kind, "GPU-0"), "GPU 0 memory", used * GIB, 24 * GIB, True, hit)

    assert full is (device_full(about, (reading,)) is not None)


def test_the_level_of_an_end_is_that_of_the_fullest_memory_it_had():
    """A program may allow itself a part of a card, which then fills before the card does."""
    about = task(100, "a.ipynb")
    card = Reading(
        ResourceKey(ResourceKind.GPU_MEMORY, "0"), "card", 93.0, 100.0, True, (about.key,)
    )
    own = replace(
        card, key=ResourceKey(ResourceKind.GPU_ALLOCATOR, "1:cuda:0"), label="torch", used=99.0
    )

    for readings in ((card, own), (own, card)):
        assert (device_full(about, readings) or "").startswith("torch")
    assert UID == about.uid


def test_a_card_about_to_switch_off_names_who_is_on_it_what_dies_and_a_whole_command():
    """It also names tasks that use no processor time; the power command can be copied."""
    world = CardWorld(cards=2)
    world.on(0, world.program(100, "quiet.py", cores=0.0), world.program(300, "other.py", cores=0))
    world.set(0, power_w=300.0, power_limit_w=350.0, slowdown_c=93.0, shutdown_c=98.0)

    world.run(120, lambda second: world.set(0, temperature_c=60.0 + min(37.5, 0.4 * second)))

    told = next(text for text in texts(world, "warning") if "will switch off" in text)
    title, _, body = told.partition("\n")
    assert title.endswith(": quiet.py")
    assert "On it: quiet.py, other.py." in body
    assert "what is held on the card is lost" in body
    assert "its state cannot be saved" in body
    assert "sudo nvidia-smi -i 0 -pl 280" in body


def test_a_card_that_is_full_and_steady_is_not_called_out_of_danger():
    """At 23.9 of 24.0 GiB it no longer grows, but has no memory left."""
    world = CardWorld()
    world.on(0, world.program(100, "grow.py"))
    world.run(20)

    def grow(second):
        used = int(min(23.9, 4 + 0.15 * second) * GIB)
        world.set(0, memory_used_bytes=used, processes=(GpuProcess(100, used - GIB),))

    world.run(400, grow)

    over = texts(world, "resolved")
    assert over
    assert over[0].startswith("No longer growing: grow.py")
    assert "all but full" in over[0]
