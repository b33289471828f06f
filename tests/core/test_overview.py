"""The level and the headline of the machine, which every screen shows first."""

from __future__ import annotations

import pytest

from watchdog_app.core.explain.status import overview
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.resource import SPECS, ResourceKind
from watchdog_app.core.model.status import (
    Agent,
    Contributor,
    Gpu,
    Guard,
    Health,
    Incident,
    Problem,
    Resource,
    Status,
    Task,
)

GIB, MIB = 1 << 30, 1 << 20
RAM = ("ram", "")
GUARD = ("guard", "/sys/fs/cgroup/guard")
CARD_MEMORY = ("gpu_memory", "GPU-0")
HEAT = ("temperature", "GPU-0")


class World:
    """The argument of `overview`, built call by call."""

    def __init__(self) -> None:
        self.train = Task(pid=1, name="train.ipynb")
        self.other = Task(pid=2, name="plots.py")
        self.resources: dict[tuple[str, str], Resource] = {}
        self.incidents: list[Incident] = []
        self.more: dict = {}
        self.resource(RAM, "RAM", 6 * GIB, 16 * GIB)

    def resource(self, key, label, used, limit, stage="ok", *, eta_s=None,
                 fatal=True, certain=True):  # fmt: skip
        spec = SPECS[ResourceKind(key[0])]
        self.resources[key] = Resource(
            kind=key[0], subject=key[1], label=label, used=used, limit=limit, ratio=used / limit,
            unit=spec.unit, exhausted=spec.exhausted, fatal=fatal, eta_s=eta_s, stage=stage,
            level=Level.from_stage(stage, certain=certain),
        )  # fmt: skip
        return self

    def paused_in_its_address_space(self):
        key = ("rlimit_as", "1")
        self.pausing(self.train).resource(key, "address space of train.ipynb", 99, 100, "save")
        self.resources[key].tasks = (1,)
        return self

    def incident(self, key, label, stage="save", *, why="rising", who="train.ipynb", level=None):
        self.incidents.append(
            Incident(
                resource=key[0], subject=key[1], label=label, reason=why,
                contributors=(Contributor(pid=1, name=who),),
                level=Level.from_stage(stage) if level is None else level,
            )
        )  # fmt: skip
        return self

    def growing(self, key, slope, share):
        one = Contributor(pid=1, name="train.ipynb", slope_bytes_per_s=slope, share=share)
        self.resources[key].contributors = (one,)
        return self

    def having(self, **more):
        self.more |= more
        return self

    def pausing(self, *tasks):
        for task in tasks:
            task.paused_by_watchdog = True
        return self

    @property
    def summary(self):
        level, headline = overview(
            Status(
                tasks=(self.train, self.other),
                resources=tuple(self.resources.values()),
                incidents=tuple(self.incidents),
                **self.more,
            )
        )
        return level.name.lower(), headline


def stopped_at_its_limit(world: World) -> World:
    world.resource(GUARD, "guard limit of pid 7", GIB, GIB, "pause")
    world.incident(GUARD, "guard limit of pid 7", "pause")
    world.train.guard = Guard(pid=7, stopped=True, limit_bytes=12 * GIB, used_bytes=GIB)
    return world


def saving(world: World) -> World:
    world.train.agent = Agent(framework="keras", saving=True)
    return world


def gpu(index: int, name: str, level: Level, title: str) -> Gpu:
    return Gpu(index=index, name=name, level=level, health=Health(title=title))


CASES = {
    "nothing": (lambda world: world, "ok", "nothing is about to run out"),
    "soonest end of the worst level": (
        lambda world: world.resource(RAM, "RAM", 15, 16, "save", eta_s=240.0)
        .resource(CARD_MEMORY, "GPU 0 memory", 15, 16, "save", eta_s=60.0)
        .resource(
            HEAT, "heat of GPU 0", 80, 83, "warn", eta_s=5.0
        ),
        "critical",
        "GPU 0 memory full in about 1 min",
    ),
    "whose it is": (
        lambda world: world.resource(RAM, "RAM", 15, 16, "save", eta_s=240.0).incident(
            RAM, "RAM"
        ),
        "critical",
        "RAM full in about 4 min: train.ipynb",
    ),
    "a task whose time is over is named once": (
        lambda world: world.resource(
            ("walltime", "1"), "time of train.ipynb", 585, 600, "warn", eta_s=15.0
        ).incident(("walltime", "1"), "time of train.ipynb", "warn"),
        "warning",
        "train.ipynb ends in about 15 s",
    ),
    "near without a forecast": (
        lambda world: world.resource(RAM, "RAM", 15, 16, "save"),
        "critical",
        "RAM nearly full",
    ),
    "heat": (
        lambda world: world.resource(
            HEAT, "heat of GPU 0 (switches off at 98 °C)", 95, 98, "warn", eta_s=20.0,
        ),
        "warning",
        "GPU 0 will switch off from heat in about 20 s",
    ),
    "a silent save worries nobody": (
        lambda world: world.resource(
            RAM, "RAM", 15, 16, "save", eta_s=300.0, certain=False
        ).incident(RAM, "RAM", level=Level.WATCH),
        "watch",
        "at this pace RAM is full in about 5 min; it may level off: train.ipynb",
    ),
    "a heads-up about a card names whose growth it is": (
        lambda world: world.resource(
            CARD_MEMORY, "GPU 0 memory (RTX)", 12, 24, "watch", eta_s=120.0
        ).growing(CARD_MEMORY, 20 * MIB, 0.95),
        "watch",
        (
            "at this pace GPU 0 memory (RTX) is full in about 2 min; it may level off: "
            "train.ipynb grows by 20.0 MiB/s, 95 % of the growth"
        ),
    ),
    "a heads-up whose growth has just stopped": (
        lambda world: world.resource(RAM, "RAM", 15, 16, "watch"),
        "watch",
        "growing, no danger yet",
    ),
    "soon, on too thin evidence": (
        lambda world: world.resource(CARD_MEMORY, "GPU 0 memory (RTX)", 20, 24, eta_s=7.0),
        "ok",
        "growing, too early to tell where it ends",
    ),
    "a disk that fills harms no training": (
        lambda world: world.resource(
            ("disk", "/"), "disk of /", 9, 10, eta_s=30.0, fatal=False
        ),
        "ok",
        "no danger to a training: disk of / full in about 30 s if it continues",
    ),
    "a disk that fills slowly is no news": (
        lambda world: world.resource(
            ("disk", "/"), "disk of /", 9, 10, eta_s=600.0, fatal=False
        ),
        "ok",
        "nothing is about to run out",
    ),
    "a full card that is steady": (
        lambda world: world.resource(CARD_MEMORY, "GPU 0 memory (RTX)", 239, 240),
        "ok",
        "nothing is about to run out",
    ),
    "an incident whose resource is calm": (
        lambda world: world.incident(
            ("stalled", "1:1"), "train.ipynb is stalled", "warn",
            why="no step since step 7",
        ),
        "warning",
        "train.ipynb is stalled: no step since step 7",
    ),
    "a note": (
        lambda world: world.incident(
            ("gpu_fault", "GPU-0"), "GPU 0", "watch", why="Xid 63"
        ).having(gpus=(gpu(0, "RTX", Level.WATCH, "reports a fault"),)),
        "watch",
        "nothing is about to run out; see the notes",
    ),
    "a lost card before its incident": (
        lambda world: world.having(gpus=(gpu(1, "H100", Level.CRITICAL, "is lost"),)),
        "critical",
        "GPU 1 (H100) is lost",
    ),
    "paused": (
        lambda world: world.incident(RAM, "RAM", "pause").pausing(world.train),
        "warning",
        "paused: train.ipynb",
    ),
    "paused in a full address space": (
        lambda world: world.paused_in_its_address_space(),
        "warning",
        "paused: train.ipynb",
    ),
    "two paused": (
        lambda world: world.pausing(world.train, world.other),
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
            RAM, "RAM", 15, 16, "save", eta_s=9.0
        ),
        "critical",
        "RAM full in about 9 s",
    ),
    "saving": (
        saving,
        "ok",
        "saving train.ipynb",
    ),
    "cards that cannot be read": (
        lambda world: world.having(
            problems=(
                Problem(source="shm", message="No /dev/shm. Files there are not counted."),
                Problem(
                    source="gpu.driver",
                    message="The driver was updated under the running system. Restart.",
                ),
            )
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
    world = World().resource(RAM, name, 15, 16, "save", eta_s=9.0)
    world.incident(RAM, name, who=name)

    assert world.summary[1].isprintable()
    assert len(world.summary[1]) < 220
