"""A training near memory.high with full swap: reported, saved, and saved again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.records import host, info, process

from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.decisions import Decision, DecisionKind, Outcome, OutcomeStatus, Stage
from watchdog_app.core.model.machine import CgroupMemory, ProcessKey, Snapshot
from watchdog_app.core.model.readings import readings as readings_of
from watchdog_app.core.model.settings import ActionSettings, Settings
from watchdog_app.core.model.tasks import group_processes
from watchdog_app.core.policy.engine import Engine

MIB, GIB = 1 << 20, 1 << 30
SLICE, SCOPE = "/sys/fs/cgroup/app.slice", "/sys/fs/cgroup/app.slice/run.scope"
KEY = ProcessKey(10, 1)
INFO = info(process(10), name="train.py", cgroup=SCOPE)
STEP_S = 0.2
RAM_MIB = 140  # what stays in RAM at memory.high

OWN = {SCOPE: {"high": 140, "max": 600}}
HIGH_ALONE = {SCOPE: {"high": 140}}
ABOVE = {SLICE: {"high": 140}, SCOPE: {"max": 600}}
SWAP_OF_SLICE = {SLICE: {"swap_max": 60}, SCOPE: {"high": 140, "max": 600}}


class Throttled:
    """
    A script that leaks 6 MiB/s in a scope until memory.high and swap are full.

    From then on a step takes `stuck_s`, and nothing grows.
    """

    def __init__(self, limits: dict[str, dict[str, int]], swap_mib: int, ends_mib: float) -> None:
        self.engine = Engine(Settings(actions=ActionSettings(pause=False)), 1000)
        self.limits, self.swap_mib, self.ends_mib = limits, swap_mib, ends_mib
        self.now, self.used_mib, self.steps = 1000.0, 60.0, 100.0
        self.stuck_s, self.leak_mib_s = 5.0, 6.0
        self.stalled_since: float | None = None
        # id of a save request, and the step in which it came
        self.request: tuple[str, int] | None = None
        self.rescue: RescueRecord | None = None
        self.rescue_mono_s: float | None = None
        self.asked: list[float] = []
        self.log: list[Decision] = []
        self.stages: list[Stage] = []

    def run(self, seconds: float) -> Throttled:
        end = self.now + seconds
        while self.now < end:
            self._live(self._tick())
        return self

    @property
    def lost(self) -> int:
        """Steps that a kill now would cost."""
        return int(self.steps) - (0 if self.rescue is None else self.rescue.step)

    def _live(self, passed: float) -> None:
        self.now += passed
        stuck = self.used_mib >= self.ends_mib
        if stuck and self.stalled_since is None:
            self.stalled_since = self.now
        self.steps += passed / (self.stuck_s if stuck else STEP_S)
        self.used_mib = min(
            self.ends_mib, self.used_mib + (0 if stuck else self.leak_mib_s * passed)
        )
        if self.request is not None and int(self.steps) > self.request[1]:
            ident, self.request = self.request[0], None
            self.rescue = RescueRecord("/r/1", int(self.steps), MIB, 0.1, self.now)
            self.rescue_mono_s = self.now
            self.engine.record(Outcome(ident, OutcomeStatus.DONE, self.now, 0.1, ""))

    def _groups(self) -> tuple[CgroupMemory, ...]:
        ram = min(self.used_mib, RAM_MIB)
        stalled = self.stalled_since is not None and self.now - self.stalled_since > 4
        found = []
        for path, limits in self.limits.items():
            sizes = {name: mib * MIB for name, mib in limits.items()}
            found.append(
                CgroupMemory(
                    path, 2, int(ram * MIB), 0, 0,
                    sizes.get("max"), sizes.get("high"),
                    int((self.used_mib - ram) * MIB), sizes.get("swap_max"), 0,
                    stalled_percent=80.0 if stalled else 5.0,
                )
            )  # fmt: skip
        return tuple(found)

    def _tick(self) -> float:
        used = int(self.used_mib * MIB)
        ram = min(used, RAM_MIB * MIB)
        free = self.swap_mib * MIB - (used - ram)
        swap = {"swap_total_bytes": self.swap_mib * MIB, "swap_free_bytes": free}
        machine = host(4 * GIB, 3 * GIB, **swap)
        cpu_s = self.steps * STEP_S
        sample = process(10, rss=ram, swap_bytes=used - ram, vsize_bytes=2 * used, cpu_s=cpu_s)
        seen = (sample,), self._groups()
        snapshot = Snapshot(self.now, self.now, machine, *seen, infos={KEY: INFO})
        agent = AgentState(
            KEY, "numpy", "/r", training=True, state_bytes=MIB, step_s=STEP_S, save_s=0.1,
            step=int(self.steps), reported_mono_s=self.now, saving=False, rescue=self.rescue,
            rescue_mono_s=self.rescue_mono_s,
        )  # fmt: skip
        tasks = group_processes(snapshot.processes, snapshot.infos)
        readings = readings_of(snapshot, tasks, (agent,))
        result = self.engine.tick(snapshot, tasks, readings, {KEY: agent})
        for decision in result.decisions:
            self.log.append(decision)
            if decision.kind is DecisionKind.CHECKPOINT:
                self.asked.append(self.now)
                self.request = (decision.id, int(self.steps))
            else:
                self.engine.record(Outcome(decision.id, OutcomeStatus.DONE, self.now, 0.1, ""))
        self.stages.append(
            max(
                (
                    assessment.stage
                    for key, assessment in result.assessments.items()
                    if key.kind == "cgroup"
                ),
                default=Stage.OK,
            )
        )
        return result.next_sample_s


@pytest.mark.parametrize(
    ("limits", "swap_mib", "ends_mib", "stuck_s", "lasts_s"),
    [
        pytest.param(OWN, 60, 197, 5.0, 300, id="own"),
        pytest.param(OWN, 60, 197, 0.5, 120, id="own, half a second a step"),
        pytest.param(OWN, 60, 200, 5.0, 120, id="full"),
        pytest.param(HIGH_ALONE, 60, 197, 5.0, 120, id="high alone"),
        pytest.param(ABOVE, 60, 197, 5.0, 300, id="slice above"),
        pytest.param(SWAP_OF_SLICE, 400, 197, 5.0, 120, id="swap of a slice"),
        pytest.param(SWAP_OF_SLICE, 400, 197, 0.5, 120, id="swap of a slice, half a second a step"),
        # something keeps it from using all of its swap
        pytest.param(OWN, 60, 186, 5.0, 120, id="not full"),
    ],
)
def test_a_training_is_saved_before_it_stands_still_and_after_each_progress(
    limits, swap_mib, ends_mib, stuck_s, lasts_s
):
    """It is told of, too, and its group is never OK from then on."""
    world = Throttled(limits, swap_mib, ends_mib)
    world.stuck_s = stuck_s
    world.run(60)
    first = {decision.kind: decision.at_mono_s for decision in reversed(world.log)}
    # the early end of "not full" is not predictable
    latest = world.stalled_since + (30 if ends_mib < 0.95 * 200 else 0)
    world.stages.clear()
    lost = []

    for _ in range(lasts_s):
        world.run(1.0)
        lost.append(world.lost)

    assert first[DecisionKind.CHECKPOINT] < latest
    assert first[DecisionKind.NOTIFY] < latest
    assert {SCOPE, SLICE} >= {decision.resource.subject for decision in world.log}
    assert Stage.SAVE <= min(world.stages)
    assert 2 + 2 / stuck_s >= max(lost[10:])
    asked = world.asked[-20:]
    assert 1.0 <= min(after - before for before, after in pairwise(asked))


def test_a_training_that_makes_no_step_is_not_saved_again():
    world = Throttled(OWN, 60, 197)
    world.run(60)
    world.stuck_s = 1e9
    world.run(30)
    world.asked.clear()

    world.run(300)

    assert 3 >= len(world.asked)


def test_a_group_that_has_room_again_is_calm():
    world = Throttled(OWN, 60, 197).run(90)
    world.used_mib, world.stalled_since, world.leak_mib_s = 60.0, None, 0.0

    world.run(120)

    assert Stage.OK == world.stages[-1]
