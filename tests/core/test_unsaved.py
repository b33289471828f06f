"""A training that no agent can save is found by its work; an import is not one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.records import UID, host, process, task

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Decision, Observation, Outcome, OutcomeStatus
from watchdog_app.core.model.machine import Snapshot, Task, TaskKind
from watchdog_app.core.model.settings import ActionSettings, HintSettings, Settings
from watchdog_app.core.policy.engine import Engine
from watchdog_app.core.policy.saving import UnsavedTrainings

_UNIX_S = 1.7e9


def _task(**more: Any) -> Task:
    cpu_s, about = more.pop("cpu_s", 0.0), {"kind": TaskKind.NOTEBOOK, "python": "/venv"}
    state = more.pop("state", "R")
    found = task(process(7, cpu_s=cpu_s, state=state), **{**about, **more.pop("info", {})})
    return replace(found, **{"framework": "torch", **more})


def _feed(
    trainings: UnsavedTrainings,
    begin_s: float,
    end_s: float,
    percent: float | None,
    *,
    agents: tuple[AgentState, ...] = (),
    **more: Any,
) -> bool:
    """Feed a sample each two seconds; return whether the task trains at the end."""
    one = _task(**more)
    at = begin_s
    while at <= end_s:
        snapshot = Snapshot(at, _UNIX_S + at, host(), one.members)
        seen = Observation(snapshot, {one.key: one}, (), {one.key: agents} if agents else {})
        trainings.update(seen, {one.key: percent})
        at += 2.0
    return one.key in trainings.trainings


def test_a_minute_of_work_with_a_framework_is_a_training() -> None:
    trainings = UnsavedTrainings(set())
    assert not _feed(trainings, 0, 50, 95.0)
    assert _feed(trainings, 52, 70, 95.0)
    assert _feed(trainings, 72, 120, 2.0), "it waits for its disk"
    assert _feed(trainings, 122, 124, 95.0)
    assert not _feed(trainings, 126, 200, 0.0), "it has ended"


def test_an_import_and_short_cells_are_no_training() -> None:
    trainings = UnsavedTrainings(set())
    assert not _feed(trainings, 0, 20, 100.0)
    assert not _feed(trainings, 22, 90, 0.0)
    for begin in range(100, 1000, 40):
        assert not _feed(trainings, begin, begin + 8, 100.0)
        assert not _feed(trainings, begin + 10, begin + 38, 1.0)


@pytest.mark.parametrize(
    "more",
    [
        {"framework": None},
        {"agent_waits": True},
        {"info": {"kind": TaskKind.SERVER}},
        {"info": {"name": "vllm"}},
        {"info": {"name": "pytest"}},
    ],
)
def test_other_work_is_no_training(more: dict[str, Any]) -> None:
    assert not _feed(UnsavedTrainings(set()), 0, 300, 400.0, **more)


def test_a_task_that_had_an_agent_is_never_named() -> None:
    """After its fit a notebook evaluates for minutes."""
    trainings = UnsavedTrainings(set())
    agent = AgentState(_task().key, "keras", "/rescues", training=True)
    assert not _feed(trainings, 0, 100, 100.0, agents=(agent,))
    assert not _feed(trainings, 102, 400, 100.0)


def test_a_new_daemon_knows_a_script_that_trains_since_an_hour() -> None:
    started = {"started_unix_s": _UNIX_S - 3600, "kind": TaskKind.SCRIPT}
    assert _feed(UnsavedTrainings(set()), 0, 0, None, cpu_s=3000.0, info=started)
    assert not _feed(UnsavedTrainings(set()), 0, 0, None, cpu_s=30.0, info=started)


def test_a_paused_training_stays_one_and_an_idle_stopped_kernel_does_not_become_one() -> None:
    trainings = UnsavedTrainings(set())
    assert _feed(trainings, 0, 70, 95.0)
    assert _feed(trainings, 72, 400, 0.0, state="T")
    assert not _feed(UnsavedTrainings(set()), 0, 400, 0.0, state="T")


class _World:
    """One training at full load, seen by an engine."""

    def __init__(self, settings: Settings | None = None, **more: Any) -> None:
        self.offered: set[str] = set()
        self.engine = Engine(settings or Settings(), UID, offered=self.offered)
        self.more = more
        self.now = 0.0

    def run(self, seconds: float, every_s: float = 2.0) -> list[Decision]:
        """Return the decisions of so many seconds."""
        found: list[Decision] = []
        end = self.now + seconds
        while self.now < end:
            self.now += every_s
            one = _task(cpu_s=self.now, **self.more)
            snapshot = Snapshot(self.now, _UNIX_S + self.now, host(), one.members)
            found += self.engine.tick(snapshot, (one,), (), {}).decisions
        return found

    def answer(self, decision: Decision, status: OutcomeStatus) -> None:
        self.engine.record(Outcome(decision.id, status, _UNIX_S, 0.1, ""))


def test_saving_is_offered_once_for_an_environment() -> None:
    """Two minutes after the training began, at low urgency, with two buttons."""
    world = _World(info={"name": "train.ipynb", "python": "/venvs/tf"})
    assert not world.run(110)
    (offer,) = world.run(20)
    said = offer.notification
    assert said is not None
    assert (said.title, said.urgency, said.topic) == (
        "train.ipynb cannot be saved", "low", "unsaved",
    )  # fmt: skip
    assert "watchdog agent enable --python /venvs/tf" in said.body
    assert [each.key for each in said.actions] == ["enable_saving", "not_now"]
    assert [each.label for each in said.actions] == ["Turn on", "Not now"]
    world.answer(offer, OutcomeStatus.DONE)
    assert world.offered == {"/venvs/tf"}
    assert not world.run(8000, every_s=10.0)


def test_an_offer_that_was_not_shown_is_made_again_after_hours() -> None:
    world = _World()
    (offer,) = world.run(130)
    world.answer(offer, OutcomeStatus.UNDELIVERED)
    assert not world.run(6 * 3600 - 60, every_s=10.0)
    assert len(world.run(120)) == 1


def test_a_script_is_told_the_line_for_its_next_start() -> None:
    info = {"kind": TaskKind.SCRIPT, "name": "train.py", "python": "/venvs/tf"}
    (offer,) = _World(info=info).run(130)
    assert offer.notification is not None
    assert "watchdog exec -- /venvs/tf/bin/python3 train.py" in offer.notification.body
    assert offer.notification.actions == ()


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        (Settings(hints=HintSettings(saving=False)), {}),
        (Settings(actions=ActionSettings(notify=False)), {}),
        (Settings(), {"uid": UID + 1}),
        (Settings(), {"info": {"python": None}}),
    ],
)
def test_nothing_is_offered_that_was_switched_off_or_is_not_ours(
    settings: Settings, more: dict[str, Any]
) -> None:
    assert not _World(settings, **more).run(300)
