"""What earlier runs of the same program change: notices, notifications and forecasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from support.records import host, process, task

from watchdog_app.core.explain.phrases import describe_past
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Decision, DecisionKind
from watchdog_app.core.model.hardware import Gpu, GpuProcess, Hardware
from watchdog_app.core.model.machine import ProcessKey, Snapshot, TaskKind
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.runs import Past, Run, RunEnd, Verdict
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.policy.engine import Engine
from watchdog_app.core.policy.past_runs import LiveRun, judge
from watchdog_app.core.policy.tracker import TaskUsage

MIB = 1024**2
LIMIT = 1000 * MIB
WALL_S = 1.7e9
Level = Callable[[float], float]  # MiB after so many seconds


def line(start: float, per_s: float, top: float = 1e9) -> Level:
    return lambda t: min(top, start + per_s * t)


def past_run(level: Level, seconds: float, outcome: RunEnd = RunEnd.ENDED, **more: object) -> Run:
    """A run of the program `exact` with this memory."""
    run = Run("exact", WALL_S - 1000, int(level(0) * MIB))
    for moment in range(int(seconds) + 1):
        run.add(moment, int(level(moment) * MIB), {})
    run.outcome = outcome
    return replace(run, **more)


class World:
    """Programs in one memory group of 1000 MiB, sampled five times a second."""

    def __init__(self, *levels: Level, cell: int | None = None) -> None:
        self.levels = levels
        self.engine = Engine(Settings(), 1000)
        self.decisions: list[Decision] = []
        self.t = 0.0
        self.cell = cell

    def know(self, *runs: Run, exact: str = "exact", which: int = 1) -> None:
        self.engine.past.live[ProcessKey(which, 1)].set_known(exact, "/train.py", runs)

    def tick(self) -> None:
        used = [level(self.t) * MIB for level in self.levels]
        tasks = [
            task(
                process(pid, rss=rss),
                argv=("python", "train.py"),
                name=f"train{pid}.py",
                started_unix_s=WALL_S,
                kind=TaskKind.NOTEBOOK if self.cell else TaskKind.SCRIPT,
            )
            for pid, rss in enumerate(used, 1)
        ]
        keys = tuple(each.key for each in tasks)
        group = ResourceKey(ResourceKind.CGROUP, "/g")
        reading = Reading(group, "memory limit of the group g", sum(used), LIMIT, True, keys)
        snapshot = Snapshot(self.t, WALL_S + self.t, host(), ())
        agents = {}
        if self.cell:
            agents[keys[0]] = AgentState(keys[0], "keras", "", training=True, cell=self.cell)
        self.result = self.engine.tick(snapshot, tasks, (reading,), agents)
        self.decisions += self.result.decisions
        self.assessment = self.result.assessments[group]
        self.t += 0.2

    def run(self, *runs: Run, until: float, exact: str = "exact") -> World:
        """Run with these earlier runs known from the first second on, up to the limit."""
        while self.t < until and sum(level(self.t) for level in self.levels) < 1000:
            self.tick()
            if 0.9 < self.t < 1.1:
                for which in range(1, len(self.levels) + 1):
                    self.know(*runs, exact=exact, which=which)
        return self

    def notified(self, topic: str = "warning") -> list[Decision]:
        found = [each for each in self.decisions if each.kind is DecisionKind.NOTIFY]
        return [each for each in found if each.evidence["topic"] == topic]

    def lead(self) -> float:
        """Seconds from the first warning to the end."""
        first = self.notified()
        return self.t - first[0].at_mono_s if first else 0.0

    def verdict(self) -> Verdict | None:
        past = self.result.past.get(ProcessKey(1, 1))
        return None if past is None else past.verdict


RAMP = line(50, 15, 800)  # a ramp that ends at 800 MiB after 50 s
SAFE = line(50, 15, 780)


def test_a_ramp_that_ended_well_before_is_not_notified_again():
    without = World(RAMP).run(until=90)
    known = World(RAMP).run(past_run(RAMP, 90), until=90)

    assert len(without.notified()) == 1
    assert known.notified() == []
    assert known.verdict() is Verdict.SILENT or known.verdict() is Verdict.FITS


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param([past_run(RAMP, 90, exact="other")], id="other arguments or an edited script"),
        pytest.param([past_run(RAMP, 90, RunEnd.STOPPED)], id="stopped"),
        pytest.param([past_run(RAMP, 90, RunEnd.LOST_SIGHT)], id="its end was not seen"),
        pytest.param([past_run(RAMP, 90, cut=True)], id="paused"),
        pytest.param([past_run(line(50, 250, 800), 4)], id="too short"),
        pytest.param(
            [past_run(RAMP, 90), past_run(RAMP, 50, RunEnd.KILLED_OOM)], id="killed since"
        ),
    ],
)
def test_only_a_complete_run_of_the_same_program_holds_back(runs: Sequence[Run]):
    known = World(RAMP).run(*runs, until=90)

    assert known.notified()
    assert known.verdict() is not Verdict.FITS


def test_a_run_that_ended_well_after_a_kill_holds_back_again():
    killed = past_run(RAMP, 50, RunEnd.KILLED_OOM, started_unix_s=1.0)

    assert World(RAMP).run(killed, past_run(RAMP, 90), until=90).notified() == []


@pytest.mark.parametrize("peak", [700, 850])
def test_a_new_leak_after_a_run_that_ended_well_is_told_in_time(peak: float):
    leak = line(100, 10)
    without = World(leak).run(until=200)
    known = World(leak).run(past_run(line(100, 10, peak), 90), until=200)

    assert without.lead() >= 10
    assert known.lead() >= (without.lead() if peak == 850 else 10)


def test_above_all_that_it_needed_before_less_evidence_suffices():
    level = line(300, 6)
    without = World(level).run(until=200)
    beyond = World(level).run(past_run(line(300, 6, 500), 60), until=200)

    assert beyond.verdict() is Verdict.BEYOND
    assert beyond.lead() > without.lead() + 5


def test_after_a_kill_with_less_memory_less_evidence_suffices():
    level = line(300, 6)
    without = World(level).run(until=200)
    killed = World(level).run(past_run(line(300, 6), 50, RunEnd.KILLED_OOM), until=200)

    assert killed.verdict() is Verdict.KILLED
    assert killed.lead() > without.lead() + 5


def test_a_program_that_will_not_fit_is_told_once_at_its_start_with_the_time_that_is_left():
    before = past_run(line(50, 5, 1500), 400)
    world = World(line(50, 5)).run(before, until=60)

    (notice,) = world.notified("past")
    assert notice.at_mono_s < 3
    assert notice.notification is not None
    assert notice.notification.urgency == "normal"
    assert "peaked at 1.46 GiB in its last run" in notice.notification.body
    assert "It will not fit: expect the end in about 3 min" in notice.notification.body
    assert world.notified() == []


def test_a_second_run_under_the_limit_that_killed_the_first_is_told():
    killed = past_run(line(50, 5), 189, RunEnd.KILLED_OOM)
    world = World(line(50, 5)).run(killed, until=5)

    (notice,) = world.notified("past")
    assert "train1.py ran out of memory at 995 MiB after 3 min 9 s" in notice.reason


def test_two_programs_that_will_not_fit_together_are_told_together():
    before = past_run(line(50, 5, 600), 300)
    world = World(line(50, 5), line(50, 5)).run(before, until=5)

    assert "train1.py and train2.py will want" in world.notified("past")[0].reason
    assert not World(line(50, 5)).run(before, until=5).notified("past")


def test_what_a_program_took_on_a_gpu_counts_for_that_gpu():
    runs = [past_run(RAMP, 90, gpus={"GPU-a": int(8e9)})]
    live = LiveRun(task(process(1)), None, 0.0, Run("exact"), TaskUsage(), runs=runs)

    short = judge(live, 0, int(6e9), 10e9, "GPU-a")

    assert short is not None
    assert short.verdict is Verdict.SHORT
    assert judge(live, 0, int(6e9), 10e9, "GPU-b") is None
    full = replace(runs[0], outcome=RunEnd.GPU_OOM)
    assert full.ran_out("GPU-a")
    assert not full.ran_out(None)


def test_the_memory_of_a_task_on_a_gpu_is_recorded():
    world = World(line(50, 5))
    world.tick()
    gpu = Gpu("GPU-a", 0, "card", processes=(GpuProcess(1, 3 * MIB),), processes_mono_s=0.2)
    tasks = [task(process(1, rss=MIB), argv=("python", "x.py"))]
    snapshot = Snapshot(0.2, WALL_S, host(), (), hardware=Hardware(gpus=(gpu,), gpus_mono_s=0.2))

    world.engine.tick(snapshot, tasks, (), {})

    assert world.engine.past.live[ProcessKey(1, 1)].record.gpus == {"GPU-a": 3 * MIB}


@pytest.mark.parametrize(("start", "used"), [(310, True), (700, False)])
def test_a_cell_is_compared_with_runs_that_began_at_the_same_level(start: float, used: bool):
    """A second run of a cell in one kernel begins with what the first has left."""
    before = past_run(line(start, 5, 1500), 400)
    world = World(line(300, 5), cell=77).run(before, until=5)

    assert bool(world.notified("past")) is used


def test_another_cell_is_another_run():
    world = World(line(300, 5), cell=77).run(until=5)
    first = world.engine.past.live[ProcessKey(1, 1)]
    world.cell = 78
    world.tick()

    assert world.engine.past.live[ProcessKey(1, 1)] is not first


def test_a_run_whose_beginning_was_not_seen_proves_no_fit():
    world = World(RAMP)
    world.t = 50.0
    world.tick()
    record = world.engine.past.live[ProcessKey(1, 1)].record
    record.outcome = RunEnd.ENDED

    assert not record.proves_fit


def test_what_a_program_has_needed_and_given_back_is_not_wanted_again():
    """Else a program that has loaded its data would count with all others that start."""

    def loading(t: float) -> float:
        return 600 if 1 < t < 5 else 100

    before = past_run(loading, 60)
    world = World(loading, lambda t: 100)
    while world.t < 20:
        world.tick()
        if 6.0 < world.t < 6.3:
            world.know(before, which=1)
            world.know(before, which=2)

    assert world.notified("past") == []


def test_the_curve_says_when_a_level_was_reached():
    run = past_run(line(0, 2, 400), 500)

    assert len(run.curve) < 32
    assert run.reached_s(100 * MIB) == pytest.approx(50, abs=10)
    assert run.reached_s(400 * MIB) == pytest.approx(200, abs=10)
    assert run.reached_s(401 * MIB) is None


def test_the_forecast_of_a_known_program_uses_its_curve():
    """The trend alone does not see that the growth becomes faster."""

    def level(t: float) -> float:
        return 100 + 2 * t if t < 100 else 300 + 20 * (t - 100)

    end_s = 135.0
    known, without = World(level), World(level)
    for world, runs in ((known, [past_run(level, 135, RunEnd.KILLED_OOM)]), (without, [])):
        world.run(*runs, until=80)

    def error(world: World) -> float:
        forecast = world.assessment.forecast
        return 1e9 if forecast is None else abs(forecast.eta_s - (end_s - world.t))

    assert error(known) < 0.7 * error(without)


def test_runs_of_a_similar_program_are_only_words():
    other = Past(Verdict.SILENT, past_run(RAMP, 90))

    assert describe_past(other, "train.py").startswith("with other arguments or another text")


def test_a_program_in_a_guard_has_what_its_guard_gives():
    """The machine has more, which the program may not use."""
    past = Past(Verdict.FITS, past_run(RAMP, 90), expected=236 * MIB, room=20_000 * MIB, runs=1)

    said = describe_past(past, "train.py", 1000 * MIB)

    assert "train.py peaked at 236 MiB in its last run; its guard gives it 1000 MiB" == said


def test_a_run_that_nobody_reports_is_dropped():
    world = World(line(50, 5))
    world.tick()
    world.engine.past.drop_ended(100.0)
    assert world.engine.past.live
    world.engine.past.drop_ended(1000.0)

    assert not world.engine.past.live


def test_a_level_that_lasts_does_not_bring_the_end_nearer():
    """The program holds one level for 60 s; the second time it holds 1 MiB more."""

    def level(t: float) -> float:
        return 200 + max(0.0, t - 60) * 20

    killed = past_run(level, 99, RunEnd.KILLED_OOM)
    world = World(lambda t: level(t) + 1).run(killed, until=10)

    past = world.result.past[ProcessKey(1, 1)]
    assert (Verdict.SHORT, pytest.approx(90, rel=0.1)) == (past.verdict, past.end_s)
