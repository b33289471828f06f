"""The level and the headline of the machine, which every screen shows first."""

from __future__ import annotations

import pytest
from card_world import task

from watchdog_app.core.explain.overview import Card, overview
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import (
    Assessment,
    Contributor,
    Forecast,
    Incident,
    Regime,
    Stage,
)
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.machine import Fault
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind

GIB = 1 << 30
TRAIN = task(1, "train.ipynb")
OTHER = task(2, "plots.py")
RAM = ResourceKey(ResourceKind.RAM)
GUARD = ResourceKey(ResourceKind.GUARD, "/sys/fs/cgroup/guard")
CARD_MEMORY = ResourceKey(ResourceKind.GPU_MEMORY, "GPU-0")
HEAT = ResourceKey(ResourceKind.TEMPERATURE, "GPU-0")


class World:
    """The arguments of `overview`, built call by call."""

    def __init__(self) -> None:
        self.given: dict = {
            "tasks": (TRAIN, OTHER), "readings": [], "assessments": {}, "incidents": [],
            "agents": {}, "cards": [], "faults": [], "paused": (), "stopped": {},
        }  # fmt: skip
        self.resource(RAM, "RAM", 6 * GIB, 16 * GIB)

    def resource(self, key, label, used, limit, stage=Stage.OK, *, eta_s=None,
                 fatal=True, certain=True):  # fmt: skip
        old = [each for each in self.given["readings"] if each.key != key]
        reading = Reading(key, label, used, limit, fatal, (TRAIN.key,))
        self.given["readings"] = [*old, reading]
        forecast = None if eta_s is None else Forecast(eta_s, eta_s / 2, eta_s * 2)
        self.given["assessments"][key] = Assessment(
            stage, Regime.LINEAR, 0.0, used / limit, forecast, "why", notify=certain
        )
        return self

    def incident(self, key, label, stage=Stage.SAVE, *, why="rising", who=(TRAIN,), level=None):
        contributors = tuple(Contributor(each.key, each.name, 1.0, 1.0) for each in who)
        level = Level.from_stage(stage.name.lower()) if level is None else level
        self.given["incidents"].append(
            Incident("i", key, label, stage, stage, 0.0, None, contributors, why, level=level)
        )
        return self

    def having(self, **more):
        self.given |= more
        return self

    @property
    def summary(self):
        found = overview(**self.given)
        return found.level.name.lower(), found.headline


def stopped_at_its_limit(world: World) -> World:
    world.resource(GUARD, "guard limit of pid 7", GIB, GIB, Stage.PAUSE)
    world.incident(GUARD, "guard limit of pid 7", Stage.PAUSE)
    return world.having(stopped={TRAIN.key: "7 16G"})


CASES = {
    "nothing": (lambda world: world, "ok", "nothing is about to run out"),
    "soonest end of the worst level": (
        lambda world: world.resource(RAM, "RAM", 15, 16, Stage.SAVE, eta_s=240.0)
        .resource(CARD_MEMORY, "GPU 0 memory", 15, 16, Stage.SAVE, eta_s=60.0)
        .resource(
            HEAT, "heat of GPU 0", 80, 83, Stage.WARN, eta_s=5.0
        ),
        "critical",
        "GPU 0 memory full in about 1 min",
    ),
    "whose it is": (
        lambda world: world.resource(RAM, "RAM", 15, 16, Stage.SAVE, eta_s=240.0).incident(
            RAM, "RAM"
        ),
        "critical",
        "RAM full in about 4 min: train.ipynb",
    ),
    "near without a forecast": (
        lambda world: world.resource(RAM, "RAM", 15, 16, Stage.SAVE),
        "critical",
        "RAM nearly full",
    ),
    "heat": (
        lambda world: world.resource(
            HEAT, "heat of GPU 0 (switches off at 98 °C)", 95, 98, Stage.WARN, eta_s=20.0,
        ),
        "warning",
        "GPU 0 will switch off from heat in about 20 s",
    ),
    "a silent save worries nobody": (
        lambda world: world.resource(
            RAM, "RAM", 15, 16, Stage.SAVE, eta_s=300.0, certain=False
        ).incident(RAM, "RAM", level=Level.WATCH),
        "watch",
        "growing, no danger yet: train.ipynb",
    ),
    "soon, on thin evidence": (
        lambda world: world.resource(CARD_MEMORY, "GPU 0 memory (RTX)", 20, 24, eta_s=7.0),
        "watch",
        "GPU 0 memory (RTX) could be full in about 7 s (not certain yet)",
    ),
    "a disk that fills harms no training": (
        lambda world: world.resource(
            ResourceKey(ResourceKind.DISK, "/"), "disk of /", 9, 10, eta_s=30.0, fatal=False
        ),
        "ok",
        "no danger to a training: disk of / full in about 30 s if it continues",
    ),
    "a disk that fills slowly is no news": (
        lambda world: world.resource(
            ResourceKey(ResourceKind.DISK, "/"), "disk of /", 9, 10, eta_s=600.0, fatal=False
        ),
        "ok",
        "nothing is about to run out",
    ),
    "a full card that is steady": (
        lambda world: world.resource(CARD_MEMORY, "GPU 0 memory (RTX)", 239, 240),
        "ok",
        "nothing is about to run out; GPU 0 memory (RTX) is nearly full, and steady",
    ),
    "an incident whose resource is calm": (
        lambda world: world.incident(
            ResourceKey(ResourceKind.STALLED, "1:1"), "train.ipynb is stalled", Stage.WARN,
            why="no step since step 7",
        ),
        "warning",
        "train.ipynb is stalled: no step since step 7",
    ),
    "a note": (
        lambda world: world.incident(
            ResourceKey(ResourceKind.GPU_HEALTH, "GPU-0"), "GPU 0", Stage.WATCH, why="Xid 63"
        ).having(cards=[Card("GPU 0 (RTX)", Level.WATCH, "reports a fault")]),
        "watch",
        "nothing is about to run out; see the notes",
    ),
    "a lost card before its incident": (
        lambda world: world.having(cards=[Card("GPU 1 (H100)", Level.CRITICAL, "is lost")]),
        "critical",
        "GPU 1 (H100) is lost",
    ),
    "paused": (
        lambda world: world.incident(RAM, "RAM", Stage.PAUSE).having(paused=(TRAIN.key,)),
        "warning",
        "paused: train.ipynb",
    ),
    "two paused": (
        lambda world: world.having(paused=(TRAIN.key, OTHER.key)),
        "warning",
        "paused: train.ipynb and 1 more",
    ),
    "held by its guard": (
        stopped_at_its_limit,
        "warning",
        "stopped at its memory limit: train.ipynb; give it more: watchdog limit 7 16G",
    ),
    "what kills comes before who is held": (
        lambda world: stopped_at_its_limit(world).resource(
            RAM, "RAM", 15, 16, Stage.SAVE, eta_s=9.0
        ),
        "critical",
        "RAM full in about 9 s",
    ),
    "saving": (
        lambda world: world.having(
            agents={TRAIN.key: AgentState(TRAIN.key, "keras", "/r", saving=True)}
        ),
        "ok",
        "saving train.ipynb",
    ),
    "cards that cannot be read": (
        lambda world: world.having(
            faults=[
                Fault("shm", "No /dev/shm. Files there are not counted."),
                Fault("gpu.driver", "The driver was updated under the running system. Restart."),
            ]
        ),
        "warning",
        "The driver was updated under the running system",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_most_urgent_thing_is_said(case: str):
    """There is one level and one sentence."""
    grown, level, text = CASES[case]

    assert (level, text) == grown(World()).summary


@pytest.mark.parametrize("name", ["\x1b[2J", "two\nlines", "\u202etxt", "a" * 5000, ""])
def test_hostile_names_are_shown_and_never_obeyed(name: str):
    """One line of bounded length, without control characters."""
    world = World().resource(RAM, name, 15, 16, Stage.SAVE, eta_s=9.0)
    world.incident(RAM, name, who=(task(1, name),))

    assert world.summary[1].isprintable()
    assert len(world.summary[1]) < 220
