"""What phases, announcements and swap traffic add to the plain series, tick by tick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from simulation import MB, Machine, Program

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Decision, DecisionKind
from watchdog_app.core.model.machine import HostMemory, Pressure, ProcessKey, Snapshot, TaskKind
from watchdog_app.core.model.resource import Reading, ResourceKind
from watchdog_app.core.policy.phases import Phases

EPOCH_S = 100.0
PHASE_S = 12.0  # the last seconds of an epoch


def phase_at(t: float) -> str:
    return "validate" if t % EPOCH_S >= EPOCH_S - PHASE_S else "train"


def validating(
    peak_mb: float, base_mb: float = 400.0, drift_mb: float = 0.0
) -> Callable[[float], float]:
    """Flat while training; rises steadily in each validation, and falls back."""

    def grows(t: float) -> float:
        into = (t % EPOCH_S) - (EPOCH_S - PHASE_S)
        epoch = t // EPOCH_S
        return (base_mb + drift_mb * epoch + max(0.0, into) / PHASE_S * peak_mb) * MB

    return grows


class Told(Machine):
    """A machine whose one training reports what `says` adds to its state."""

    def __init__(
        self, program: Program, limit_mb: float, says: Callable[[float], dict[str, object]]
    ) -> None:
        program.group, program.save_s = "g", 0.1
        super().__init__(program, groups={"g": limit_mb})
        self.says = says

    def _agent(self, program: Program) -> AgentState:
        view = super()._agent(program)
        return replace(view, **self.says(program.ran_s))

    @property
    def warnings(self) -> list[Decision]:
        return [
            each
            for each in self.log
            if each.kind is DecisionKind.NOTIFY and each.evidence["topic"] == "warning"
        ]


def warned(machine: Told, seconds: float) -> bool:
    """Whether a warning comes within this time."""
    return bool(machine.run(seconds, lambda: machine.warnings).warnings)


def with_phases(t: float) -> dict[str, object]:
    return {"phase": phase_at(t), "epoch": int(t // EPOCH_S)}


def silent(_: float) -> dict[str, object]:
    return {}


def training(grows: Callable[[float], float]) -> Program:
    return Program(100, "train.ipynb", grows)


def test_a_validation_that_gave_back_what_it_took_is_not_told_of_again():
    """Without phases, a second and slightly higher validation warns; with phases it does not."""
    first, later = validating(650.0), validating(740.0)

    def grows(t: float) -> float:
        return first(t) if t < EPOCH_S else later(t)

    def told_again(machine: Told) -> list[float]:
        return [each.at_mono_s for each in machine.warnings if each.at_mono_s > EPOCH_S]

    without = Told(training(grows), 1300.0, silent)
    without.run(2.1 * EPOCH_S, lambda: told_again(without))
    knowing = Told(training(grows), 1300.0, with_phases).run(2.1 * EPOCH_S)

    assert told_again(without), "the case is no case"
    assert [] == told_again(knowing)


def test_a_validation_that_will_not_fit_is_told_before_it_begins():
    """A cache has filled the memory: the warning comes during training, and the work is saved."""
    calm = validating(600.0)

    def cached(t: float) -> float:
        return calm(t) + min(400.0, max(0.0, t - 2 * EPOCH_S - 20.0) * 10) * MB

    without = Told(training(cached), 1300.0, silent).run(2.8 * EPOCH_S)
    program = training(cached)
    knowing = Told(program, 1300.0, with_phases).run(2.8 * EPOCH_S)

    third = 2 * EPOCH_S
    assert [] == [each for each in without.warnings if each.at_mono_s > third]
    warning = next(each for each in knowing.warnings if each.at_mono_s > third)
    assert "validation needed 570 MiB more in epoch 2" in warning.reason
    assert program.key == warning.task
    assert program.saves[-1] > third
    assert [] == knowing.kinds(DecisionKind.PAUSE)


def test_a_leak_during_validation_is_told_of_as_ever():
    """Memory that the phase does not release counts as growth."""

    def grows(t: float) -> float:
        inside = (t // EPOCH_S) * PHASE_S + max(0.0, (t % EPOCH_S) - (EPOCH_S - PHASE_S))
        return (300 + 25 * inside) * MB

    program = training(grows)

    machine = Told(program, 1000.0, with_phases)
    machine.run(3 * EPOCH_S, lambda: machine.warnings and program.saves)

    assert machine.warnings
    assert program.saves


def filling(to_mb: float, seconds: float = 40.0) -> Callable[[float], float]:
    return lambda t: (300 + min(1.0, max(0.0, t - 60.0) / seconds) * to_mb) * MB


def announced(mb: float) -> Callable[[float], dict[str, object]]:
    def says(t: float) -> dict[str, object]:
        if t < 59.0:
            return {}
        return {
            "expected_bytes": int(mb * MB),
            "expected_for": "the shuffle buffer",
            "expected_number": 1,
        }

    return says


def test_a_buffer_that_fills_as_announced_is_not_told_of():
    """It looks like a leak until it stops; the announced size prevents the alarm."""
    assert warned(Told(training(filling(600.0)), 1000.0, silent), 150), "the case is no case"
    assert not warned(Told(training(filling(600.0)), 1000.0, announced(600.0)), 150)


def test_what_the_first_step_adds_to_a_full_buffer_is_no_news_where_it_fits():
    """A training's start takes more than its buffer: threads, kernels, a traced graph."""
    filled_and_begun = training(filling(400.0))

    assert not warned(Told(filled_and_begun, 1000.0, announced(310.0)), 150)


def test_growth_that_may_be_less_explains_and_foretells_nothing():
    """A data set of unknown length: no alarm before it grows, nor while it grows and fits."""

    def at_most(mb: float) -> Callable[[float], dict[str, object]]:
        return lambda t: {**announced(mb)(t), "expected_at_most": True}

    assert not warned(Told(training(lambda t: 300 * MB), 1000.0, at_most(800.0)), 150)
    assert not warned(Told(training(filling(600.0)), 1000.0, at_most(600.0)), 150)
    assert warned(Told(training(filling(800.0)), 1000.0, at_most(800.0)), 150)


def test_a_buffer_that_cannot_fit_is_told_of_at_once():
    """The warning comes before the buffer grows."""
    program = training(filling(800.0))

    machine = Told(program, 1000.0, announced(800.0)).run(70)

    assert machine.warnings[0].at_mono_s < 62.0
    assert "the shuffle buffer will need another" in machine.warnings[0].reason
    assert "it will not fit" in machine.warnings[0].reason
    assert program.key == machine.warnings[0].task
    assert program.saves[0] < 63.0
    told = machine.warnings[0].notification
    assert "it will not fit" in told.body.splitlines()[0]
    assert told.title.startswith("Memory limit reached soon")
    assert "grows by" not in told.body  # the trend so far is irrelevant
    assert "full in" not in told.body


@pytest.mark.parametrize("claimed_mb", [300.0, 600.0])
def test_growth_beyond_what_was_announced_is_saved_and_told(claimed_mb):
    """An announcement explains only its own size, and never delays the last chance."""
    program = training(filling(2000.0, 100.0))

    machine = Told(program, 1000.0, announced(claimed_mb)).run(150)

    assert machine.warnings
    assert program.saves
    assert "pause:train.ipynb" in machine.kinds()
    assert not program.dead


class Several(Told):
    """Several programs: the first announces, the others share its group or the machine."""

    held_by_strangers = 0.0

    def __init__(self, *programs: Program, group: str = "", limit_mb: float = 1000.0) -> None:
        Machine.__init__(
            self,
            *programs,
            groups={group: limit_mb} if group else {},
            ram_mb=64_000 if group else limit_mb,
        )
        for each in programs:
            each.group, each.save_s = group, 0.1
        self.announces = {programs[0].pid: announced(600.0)}

    def _agent(self, program: Program) -> AgentState:
        view = Machine._agent(self, program)
        says = self.announces.get(program.pid)
        return view if says is None else replace(view, **says(program.ran_s))

    def readings(self) -> list[Reading]:
        return [
            replace(each, unwatched=self.held_by_strangers)
            if each.key.kind is ResourceKind.CGROUP
            else each
            for each in super().readings()
        ]

    def used(self, group: str | None = None) -> float:
        return super().used(group) + (self.held_by_strangers if group else 0.0)


IDLE = Program(200, "other.ipynb", lambda t: 10 * MB)
SERVER = Program(200, "jupyter-lab", lambda t: 10 * MB, kind=TaskKind.SERVER)


@pytest.mark.parametrize(
    ("neighbours", "group", "limit_mb", "strangers_mb", "told"),
    [
        pytest.param([], "g", 1000.0, 0.0, False, id="alone in its group"),
        pytest.param([IDLE], "g", 1010.0, 0.0, True, id="the limit is its neighbour's, too"),
        # Unwatched programs hold more than the reserve.
        pytest.param([], "g", 1100.0, 100.0, True, id="others fill the group as well"),
        pytest.param([SERVER], "g", 1010.0, 0.0, False, id="a server is no neighbour"),
        pytest.param([IDLE], "", 1010.0, 0.0, False, id="an idle neighbour on the machine"),
    ],
)
def test_an_announcement_hides_nothing_from_its_neighbours(
    neighbours, group, limit_mb, strangers_mb, told
):
    """The buffer fits and fills as announced."""
    others = [replace(each, saves=[]) for each in neighbours]
    machine = Several(training(filling(600.0)), *others, group=group, limit_mb=limit_mb)
    machine.held_by_strangers = strangers_mb * MB

    assert told is warned(machine, 150)


def test_two_announcements_that_fit_one_by_one_are_told_of_where_they_do_not_fit_together():
    """Each announcement alone is true."""
    both = training(filling(600.0)), Program(200, "other.ipynb", filling(600.0))
    machine = Several(*both, limit_mb=1300.0)
    machine.announces[200] = announced(600.0)

    assert warned(machine, 75)


def test_an_announcement_explains_no_growth_but_its_own():
    """A slow leak of another program still warns while the buffer fills."""
    leak = Program(200, "leak.ipynb", lambda t: (100 + max(0.0, t - 60.0) * 3) * MB)
    machine = Several(training(filling(700.0, 40.0)), leak, limit_mb=1150.0)
    machine.announces[100] = announced(700.0)

    assert warned(machine, 97)


def test_an_announcement_that_never_came_is_forgotten():
    """After ten minutes without growth it neither hides nor predicts anything."""
    program = training(lambda t: 300 * MB)
    machine = Told(program, 1000.0, announced(650.0))

    machine.run(700)
    machine.says = lambda t: {**announced(650.0)(t)}
    program.grows = lambda t: 300 * MB if t < 720 else (300 + 12 * (t - 720)) * MB
    assert warned(machine, 95)


class Thrashing(Machine):
    """RAM is full at a constant level; pages are swapped out and back in."""

    per_s = 40 * MB
    full_percent = 30.0

    def _snapshot(self) -> Snapshot:
        snapshot = super()._snapshot()
        moved = int(self.per_s * self.now)
        host: HostMemory = replace(
            snapshot.host,
            swap_in_bytes=moved,
            swap_out_bytes=moved,
            pressure=Pressure(50.0, self.full_percent, 0.0),
        )
        return replace(snapshot, host=host)


def test_a_machine_that_thrashes_is_told_of_though_its_level_is_flat():
    """The warning gives the reason and the advice; no task is paused."""
    machine = Thrashing(training(lambda t: 900 * MB), ram_mb=1000, swap_mb=4000)

    machine.run(30)

    told = [each for each in machine.log if each.kind is DecisionKind.NOTIFY]
    assert 1 == len(told)
    assert "thrashing" in told[0].reason
    assert "thrashing" in machine.result.incidents[0].advice[0]
    assert {DecisionKind.NOTIFY} == {each.kind for each in machine.log}


class GroupThrashing(Thrashing):
    """A group is full and has pages in swap; the machine has free memory."""

    def readings(self) -> list[Reading]:
        return [
            replace(each, swapped=300.0 * MB) if each.key.kind is ResourceKind.CGROUP else each
            for each in super().readings()
        ]


def test_a_group_that_thrashes_in_a_machine_with_room_is_the_one_that_is_told_of():
    """The machine is not full, so the user need not close other programs."""
    program = Program(100, "train.ipynb", lambda t: 900 * MB, group="box")
    machine = GroupThrashing(program, groups={"box": 1400.0}, ram_mb=9000, swap_mb=4000)

    machine.run(30)

    told = [each for each in machine.log if each.kind is DecisionKind.NOTIFY]
    assert [ResourceKind.CGROUP] == [each.resource.kind for each in told]
    assert "thrashing" in told[0].reason


@pytest.mark.parametrize(("per_s", "full"), [(40 * MB, 3.0), (0.1 * MB, 30.0)])
def test_swap_that_is_used_without_harm_is_left_alone(per_s, full):
    """Thrashing needs both traffic and pressure."""
    machine = Thrashing(training(lambda t: 900 * MB), ram_mb=1000, swap_mb=4000)
    machine.per_s, machine.full_percent = per_s, full

    machine.run(30)

    assert [] == machine.log


@pytest.mark.parametrize("limit_mb", [900.0, 1300.0])
def test_an_agent_without_phases_changes_nothing(limit_mb):
    """A program that reports only "train" gets the same decisions as without phases."""
    grows = validating(700.0, drift_mb=60.0)

    plain = Told(training(grows), limit_mb, silent).run(2 * EPOCH_S)
    trains = Told(training(grows), limit_mb, lambda t: {"phase": "train"}).run(2 * EPOCH_S)

    def words(machine: Machine) -> list[tuple[float, str, str]]:
        return [(each.at_mono_s, each.kind.value, each.reason) for each in machine.log]

    assert words(plain) == words(trains)


def test_what_a_phase_took_stays_explained_when_the_training_ends_with_it():
    """The agent disconnects right after the last validation: that is not a reason to warn."""
    machine = Told(training(validating(700.0, drift_mb=20.0)), 1300.0, with_phases)
    machine.run(2 * EPOCH_S - 1.0)
    before = len(machine.warnings)

    machine.programs[0].save_s = None
    machine.run(5.0)

    assert before == len(machine.warnings)


def test_a_buffer_that_filled_as_announced_is_no_news_when_its_training_ends():
    """A short training ends when its buffer is full; the trend lasts some seconds longer."""
    machine = Told(training(filling(600.0)), 1000.0, announced(600.0))
    machine.run(101.0)

    machine.programs[0].save_s = None
    machine.run(15.0)

    assert [] == machine.warnings


def test_a_phase_that_recurs_quickly_is_foreseen_half_a_cycle_after_its_end():
    """It comes every ten seconds; eight seconds after its end would be too late."""
    known, foreseen = Phases(), []
    for t in range(26):
        phase = "validate" if t % 10 in (6, 7) else "train"
        view = AgentState(ProcessKey(1, 1), "keras", "/r", training=True, phase=phase)
        known.observe(float(t), (600 if phase == "validate" else 400) * MB, view)
        foreseen += [t] if list(known.upcoming_needs()) else []

    assert [23, 24, 25] == foreseen
