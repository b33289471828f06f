"""Which program fills a card: its memory is read each second, its processes every five."""

from __future__ import annotations

from dataclasses import replace

import pytest
from card_world import GIB, CardWorld

from watchdog_app.core.model.hardware import GpuProcess
from watchdog_app.core.model.resource import ResourceKind

MIB = 1024**2


class Listing(CardWorld):
    """A card of 24 GiB whose processes are listed at the intervals of machine.gpu.nvml."""

    def __init__(self, mib_per_s: float) -> None:
        super().__init__()
        self.per_s = mib_per_s * MIB
        self.blamed: list[tuple[str, ...]] = []
        self.rates: list[float] = []
        self._listed: tuple[float, int] | None = None
        self.program(100, "grow.py")
        self.program(300, "idle.ipynb", cores=0)

    def memory(self) -> dict[int, int]:
        grown = self.per_s * (self.now - 1000.0)
        return {100: int(22 * GIB - 75 * self.per_s + grown), 300: GIB}

    def sample(self, second: float) -> None:
        held = self.memory()
        used = sum(held.values()) + GIB  # memory that the driver assigns to no process
        self.set(0, memory_used_bytes=used)
        moved = self._listed is not None and used - self._listed[1] >= 256 * MIB
        if self._listed is None or self.now - self._listed[0] >= (1.0 if moved else 5.0):
            self._listed = self.now, used
            listed = tuple(GpuProcess(pid, memory) for pid, memory in held.items())
            self.set(0, processes=listed, processes_mono_s=self.now)

    def tick(self):
        result = super().tick()
        for incident in result.incidents:
            if incident.resource.kind is ResourceKind.GPU_MEMORY:
                self.blamed.append(tuple(each.name for each in incident.contributors))
                self.rates += [each.slope_bytes_per_s / MIB for each in incident.contributors]
        return result


@pytest.mark.parametrize("mib_per_s", [20, 50, 100, 300])
def test_who_fills_a_card_stays_named_while_the_list_of_its_processes_is_old(mib_per_s):
    """Its growth is exact, because both series end at the time of the list."""
    world = Listing(mib_per_s)

    world.run(70, world.sample)

    assert {("grow.py",)} == set(world.blamed)
    assert pytest.approx([mib_per_s] * len(world.rates), rel=0.01) == world.rates


def test_a_list_that_fails_once_blames_nobody_who_was_there_before():
    """The driver may refuse the list once: a large process that grows little is not new."""
    world = Listing(50)

    def sample(second):
        world.sample(second)
        if second == 40:
            world.set(0, processes=(), processes_mono_s=None)

    world.run(60, sample)

    assert {("grow.py",)} == set(world.blamed[-15:])


def test_a_program_that_comes_to_a_card_counts_with_all_it_takes():
    """It was not in the list before."""
    world = Listing(0)
    world.run(20, world.sample)
    idle = world.memory()
    world.memory = lambda: {**idle, 100: idle[100] - 2 * GIB}
    world.run(20, world.sample)
    world.program(500, "new.py")
    was = world.memory

    def memory():
        return {**was(), 500: int((world.now - 1020.0) * 0.05 * GIB)}

    world.memory = memory
    world.run(20, world.sample)

    assert {("new.py",)} == set(world.blamed)


def test_a_part_of_a_card_is_blamed_on_who_is_on_it():
    """The process list of a MIG instance has its own time."""
    world = Listing(50)
    whole = replace(world.gpus[0], processes=(), memory_used_bytes=None, memory_total_bytes=None)
    world.gpus.append(replace(whole, id="GPU-whole", index=0))

    def sample(second):
        world.sample(second)
        world.set(0, parent_id="GPU-whole")

    world.run(60, sample)

    assert {("grow.py",)} == set(world.blamed)
