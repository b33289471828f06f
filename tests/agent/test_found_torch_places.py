"""Automatically found PyTorch trainings: their position in the data, and what is lost."""

from __future__ import annotations

import gc
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

torch = pytest.importorskip("torch")

from found_torch import ask, loader, only, rescues  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from watchdog_app.agent.found.resume_lines import read_record, resume_code  # noqa: E402
from watchdog_app.agent.found.torch_passes import AHEAD, SEVERAL  # noqa: E402
from watchdog_app.agent.found.torch_signals import trainings  # noqa: E402
from watchdog_app.agent.found.training import DRAWN, NO_LINES  # noqa: E402
from watchdog_app.agent.oom import watch  # noqa: E402
from watchdog_app.rescue.checkpoint import names  # noqa: E402
from watchdog_app.rescue.checkpoint.reader import LoadedRescue  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


def _one_by_one(batches: DataLoader) -> Iterator[Any]:
    for _ in range(3):
        yield from batches


def _one_ahead(batches: DataLoader) -> Iterator[Any]:
    for _ in range(3):
        iterator = iter(batches)
        held = next(iterator, None)
        while held is not None:
            now, held = held, next(iterator, None)
            yield now


def _two_ahead(batches: DataLoader) -> Iterator[Any]:
    for _ in range(3):
        iterator = iter(batches)
        held = [next(iterator), next(iterator)]
        while held:
            held.append(next(iterator, None))
            yield held.pop(0)
            held = [each for each in held if each is not None]


def _kept(batches: DataLoader) -> Iterator[Any]:
    return itertools.islice(itertools.cycle(batches), 18)


def _left_early(batches: DataLoader) -> Iterator[Any]:
    for _ in range(6):
        one = iter(batches)
        yield from (next(one) for _ in range(3))


@pytest.mark.parametrize(
    ("draw", "lost", "expected"),
    [
        (_one_by_one, [], (4, 4)),
        (_one_ahead, [], (4, 4)),
        (_left_early, [], (1, 1)),
        (_two_ahead, [AHEAD], None),
        (_kept, [SEVERAL], None),
    ],
    ids=["one_by_one", "one_ahead", "left_early", "two_ahead", "kept"],
)
def test_a_place_in_the_data_that_the_loader_does_not_tell_is_named(
    program_folder: Path,
    draw: Callable[[DataLoader], Iterator[Any]],
    lost: list[str],
    expected: tuple[int, int] | None,
):
    """A drawn batch does not count as trained, and neither does a cycle's batch of the loader."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for count, (features, targets) in enumerate(draw(loader())):
        if count == 2:
            time.sleep(0.55)
        if count == 9:
            ask(only())
        optimizer.zero_grad()
        nn.functional.mse_loss(model(features), targets).backward()
        optimizer.step()

    (path,) = rescues(program_folder)
    with LoadedRescue(str(path)) as saved:
        assert 10 == saved.step
        assert lost == [one for one in saved.meta["not_restored"] if "counters" not in one]
        place = saved.meta["position"]["passes"]["0"]
        # of this pass of the loader
        assert expected in (None, (place["drawn"], place["total"]))


@pytest.mark.parametrize(
    ("steps", "leaves", "waits"),
    [
        (9, SystemExit, True),  # without a traceback
        (9, KeyboardInterrupt, True),  # caught by the program, to stop cleanly
        (9, None, True),  # by `break`: the program may or may not continue it
        (12, None, False),
        (12, SystemExit, False),  # at the end of the last epoch
    ],
)
def test_a_loop_that_is_left_in_the_middle_of_its_data_keeps_its_rescue(
    program_folder: Path, steps: int, leaves: type[BaseException] | None, waits: bool
):
    """The agent does not see `sys.exit()` or a caught exception, so it keeps the rescue."""
    model = nn.Linear(3, 1)

    def left() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        count = 0
        while True:
            for features, targets in batches:
                if count == 2:
                    time.sleep(0.55)
                if count == 7:
                    ask(only())
                optimizer.zero_grad()
                nn.functional.mse_loss(model(features), targets).backward()
                optimizer.step()
                count += 1
                if count == steps and leaves is not None:
                    raise leaves
                if count == steps:
                    return

    batches = loader()
    with suppress(SystemExit, KeyboardInterrupt):
        left()
    gc.collect()
    until(lambda: not trainings.active())
    until(lambda: all(each.name != "watchdog-end" for each in threading.enumerate()))

    (saved,) = rescues(program_folder)
    assert waits != names.is_finished(str(saved))


@pytest.mark.parametrize(("fails_at", "place"), [(9, (1, 2)), (13, (2, 0))])
def test_the_batch_that_ran_out_of_memory_has_not_been_had(
    program_folder: Path, fails_at: int, place: tuple[int, int]
):
    """
    Memory runs out in the middle of an epoch, or at its first batch after the scheduler's step.
    """
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    batches = loader()
    count = 0

    def epoch() -> None:
        nonlocal count
        for features, targets in batches:
            count += 1
            if count == 3:
                time.sleep(0.55)
            if count == fails_at:
                raise MemoryError
            optimizer.zero_grad()
            nn.functional.mse_loss(model(features), targets).backward()
            optimizer.step()

    try:
        for _ in range(4):
            epoch()
            scheduler.step()
    except MemoryError as error:
        watch.notify_trainings(error)

    (path,) = rescues(program_folder)
    with LoadedRescue(str(path)) as saved:
        position = saved.meta["position"]
        assert (fails_at - 1, *place) == (saved.step, position["epoch"], position["batch"])
        assert (place[1], True) == tuple(
            position["passes"]["0"][key] for key in ("drawn", "current")
        )
        assert place[0] == saved.meta["parts"]["scheduler"]["last_epoch"]


def _all(_batches: DataLoader) -> DataLoader:
    return loader()


def _of_the_training(batches: DataLoader) -> DataLoader:
    return batches


def _first_two(_batches: DataLoader) -> Iterator[Any]:
    return itertools.islice(loader(), 2)


@pytest.mark.parametrize("evaluated", [_all, _of_the_training, _first_two])
@pytest.mark.parametrize("size", [4, 24])
def test_an_evaluation_between_two_steps_is_no_epoch(
    program_folder: Path, evaluated: Callable[[DataLoader], Any], size: int
):
    """It may begin with gradients on, in the middle of an epoch or at its end."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = DataLoader(loader().dataset, size, shuffle=True)
    count = 0

    for _ in range(size):
        for features, targets in batches:
            if count == 2:
                time.sleep(0.55)
            if count == 15:
                ask(only())
            optimizer.zero_grad()
            nn.functional.mse_loss(model(features), targets).backward()
            optimizer.step()
            count += 1
            if count % 2 == 0:
                for other, _ in evaluated(batches):
                    with torch.no_grad():
                        model(other)

    (path,) = rescues(program_folder)
    with LoadedRescue(str(path)) as saved:
        position = saved.meta["position"]
        per_epoch = len(batches)
        assert saved.step == 16
        assert divmod(16 - 1, per_epoch) == (position["epoch"], position["batch"] - 1)
        assert ["0"] == list(position["passes"])


def _once(batches: DataLoader) -> Iterator[Any]:
    yield from batches


def _two(batches: DataLoader) -> Iterator[Any]:
    return zip(batches, loader(), strict=True)


@pytest.mark.parametrize("read", [enumerate, _once, _two])
def test_a_new_loader_in_each_epoch_counts_though_the_old_one_is_kept(
    program_folder: Path, read: Callable[[DataLoader], Iterator[Any]]
):
    """A reference of the program, or a garbage cycle, may keep the old one."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    held = []

    for epoch in range(6):
        if epoch == 0 or epoch >= 3:
            held.append(loader())
        for count, _ in enumerate(read(held[-1])):
            if epoch == count == 2:
                time.sleep(0.55)
            if epoch == 5 and count == 3:
                ask(only())
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()

    (path,) = rescues(program_folder)
    with LoadedRescue(str(path)) as saved:
        position = saved.meta["position"]
        assert (34, 5, 4) == (saved.step, position["epoch"], position["batch"])


def test_gradients_that_add_up_over_whole_epochs_still_count_them(program_folder: Path):
    """A pass that ends before the step is the training's if no other data is read."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = loader()

    for epoch in range(12):
        if epoch == 4:
            time.sleep(0.55)
        if epoch == 9:
            ask(only())
        for features, targets in batches:
            nn.functional.mse_loss(model(features), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    (path,) = rescues(program_folder)
    with LoadedRescue(str(path)) as saved:
        assert saved.meta["position"]["epoch"] in (saved.step - 1, saved.step)


def test_a_loop_that_yields_in_each_iteration_is_saved(program_folder: Path):
    """The agent saves when the model computes next, as in any loop."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def losses() -> Iterator[float]:
        for count in range(20):
            if count == 2:
                time.sleep(0.55)
            if count == 6:
                ask(only())
            optimizer.zero_grad()
            loss = model(torch.ones(1, 3)).sum()
            loss.backward()
            optimizer.step()
            yield loss.item()

    assert 20 == len(list(losses()))
    (path,) = rescues(program_folder)
    assert path.name.startswith("rescue-0000000007-")


@pytest.mark.parametrize(("count", "is_elsewhere"), [(15, False), (20, True)])
def test_two_loops_of_one_turn_are_one_epoch_and_the_second_has_no_lines(
    program_folder: Path, count: int, is_elsewhere: bool
):
    """Each reads a new loader, as for tasks of meta-learning."""
    model, done = nn.Linear(3, 1), itertools.count()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(features: Any) -> None:
        now = next(done)
        if now == 2:
            time.sleep(0.55)
        if now == count:
            ask(only())
        model(features).sum().backward()
        optimizer.step()

    for _turn in range(3):
        for features, _ in loader():
            train(features)
        for features, _ in loader():
            train(features)

    (path,) = rescues(program_folder)
    with LoadedRescue(str(path)) as saved:
        assert 1 == saved.meta["position"]["epoch"]
        found = read_record(saved.meta)
        assert is_elsewhere is (NO_LINES in saved.meta["not_restored"])
    assert found is not None
    assert is_elsewhere is found.is_elsewhere
    text = "for turn in range(3):\n    for features in loader:\n        optimizer.step()"
    assert is_elsewhere is ("# the loop in which it was saved" in str(resume_code(found, text)))


def _nothing() -> float:
    return 0.0


@pytest.mark.parametrize(("count", "play", "is_named"), [
    (11, random.random, True), (10, random.random, False), (11, _nothing, False)])  # fmt: skip
def test_random_numbers_between_two_passes_over_a_range_are_named(
    program_folder: Path, count: int, play: Callable[[], float], is_named: bool
):
    """As an episode that is played before its steps: a resume restores the numbers behind it."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for episode in range(6):
        play()
        for turn in range(4):
            if 4 * episode + turn == 2:
                time.sleep(0.55)
            if 4 * episode + turn == count:
                ask(only())
            model(torch.full((2, 3), random.random())).sum().backward()
            optimizer.step()

    (path,) = rescues(program_folder)
    with LoadedRescue(str(path)) as saved:
        assert count + 1 == saved.step
        assert is_named is (f"{DRAWN}: Python" in saved.meta["not_restored"])
