"""A real training runs out of memory in a real memory group and loses nothing."""

from __future__ import annotations

import pytest
from harness import NO_PAUSE, Training, World

pytestmark = [pytest.mark.tensorflow, pytest.mark.cgroup]

BASE_MB = 290  # memory of the training in its group without the leak
SPEEDS = {"slow": (12, 150), "medium": (40, 450), "fast": (100, 900)}  # MB/s, MB above the base
DAILY_SPEED = "medium"  # the nightly tests run the others


def assert_goes_on_identically(world: World, killed: Training, whole: Training) -> None:
    """
    Run the same command again with enough memory; check that it ends as the uninterrupted run.
    """
    before = killed.losses()
    again = world.train(program_of(killed), "--step-s", "0", name="run")
    assert again.wait() == 0, again.tail()
    losses = again.losses()
    resumed = min(step for step, loss in losses.items() if loss != before.get(step))
    assert resumed > 1, "it began from the start"
    assert [whole.losses()[s].exact for s in sorted(losses)] == [
        losses[s].exact for s in sorted(losses)
    ]
    assert sorted(whole.losses()) == sorted(losses)
    assert whole.final() == again.final()


def program_of(training: Training) -> str:
    return next(
        a.rsplit("/", 1)[1]
        for a in training.process.args
        if a.endswith(".py")  # type: ignore[union-attr]
    )


@pytest.mark.parametrize("program", ["fit.py", "loop.py"])
@pytest.mark.parametrize(
    "speed",
    [
        pytest.param(speed, marks=[pytest.mark.slow] if speed != DAILY_SPEED else [])
        for speed in sorted(SPEEDS)
    ],
)
def test_a_leaking_training_is_saved_killed_and_goes_on(world, reference, program, speed):
    """The daemon detects the leak, the agent saves before the kill, and the resume is exact."""
    whole = reference(program)
    rate, room = SPEEDS[speed]
    world.start_daemon(NO_PAUSE)
    group = world.group(BASE_MB + room)

    run = world.train(program, "--leak-mb-s", str(rate), "--step-s", "0.05", group=group)

    assert run.wait() == -9, run.tail()
    assert group.oom_kills() == 1
    assert run.complete_rescues(), world.daemon_log()
    kinds = [entry["decision_kind"] for entry in world.history("decision")]
    assert "checkpoint" in kinds
    assert "pause" not in kinds
    world.until(lambda: world.history("exit"), "the death is told", 10)
    group.close()
    assert_goes_on_identically(world, run, whole)


def test_a_big_healthy_warm_up_is_left_alone(world, reference):
    """A plateau at two thirds of the limit causes neither a save nor a warning."""
    whole = reference("fit.py")
    world.start_daemon(NO_PAUSE)
    group = world.group(1150)

    run = world.train("fit.py", "--plateau-mb", "400", "--step-s", "0.03", group=group)

    assert run.wait() == 0, run.tail()
    # Groups of other tests may fill up at the same time.
    assert [] == [one for one in world.history("decision") if one["subject"] == group.path]
    assert run.complete_rescues() == []
    assert whole.final() == run.final()


def test_a_training_without_a_daemon_is_as_if_we_were_not_there(world, reference):
    """The training writes and prints nothing extra, and its numbers are the same."""
    whole = reference("fit.py")

    run = world.train("fit.py", "--step-s", "0")

    assert run.wait() == 0, run.tail()
    assert run.complete_rescues() == []
    assert "watchdog" not in run.tail()
    assert whole.final() == run.final()


def test_a_daemon_killed_in_the_middle_is_replaced_and_the_rescue_still_comes(world):
    """After a kill -9 during the growth the next daemon meets the agent and requests the save."""
    world.start_daemon(NO_PAUSE)
    group = world.group(BASE_MB + 450)
    run = world.train("fit.py", "--leak-mb-s", "25", "--step-s", "0.05", group=group)
    world.until(
        lambda: ((world.task(run.pid) or {}).get("agent") or {}).get("step"), "the agent reports"
    )

    world.kill_daemon()
    world.start_daemon(NO_PAUSE)

    assert run.wait() == -9, run.tail()
    assert run.complete_rescues(), world.daemon_log()


def test_swap_is_counted_and_the_rescue_comes_before_it_is_full(world, swap_file):
    """In a group with swap, memory ends when RAM and swap are full; the save comes before."""
    world.start_daemon(NO_PAUSE)
    group = world.group(BASE_MB + 100, swap_mb=200)

    run = world.train("fit.py", "--leak-mb-s", "20", "--step-s", "0.05", group=group)

    assert run.wait() == -9, run.tail()
    assert run.complete_rescues(), world.daemon_log()


@pytest.mark.parametrize("fault", ["full", pytest.param("read-only", marks=pytest.mark.slow)])
def test_a_rescue_folder_that_takes_nothing_harms_no_training(world, reference, odd_folder, fault):
    """The message has a remedy. The training finishes with the same numbers."""
    whole = reference("fit.py")
    client = world.start_daemon(NO_PAUSE)
    world.env.pop("WATCHDOG_AGENT_STRICT")  # the agent must contain the failure here
    run = world.train("fit.py", "--step-s", "0.05", rescues=odd_folder(fault))
    world.until(
        lambda: ((world.task(run.pid) or {}).get("agent") or {}).get("step"), "the agent reports"
    )

    answer = client.call(
        "task.checkpoint", task=str(run.pid), wait=True, timeout_s=20, reply_timeout_s=30
    )["requests"][0]

    assert answer["status"] == "failed"
    assert answer["detail"]
    assert run.wait() == 0, run.tail()
    assert whole.final() == run.final()
