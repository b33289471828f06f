"""A Rescue in a PyTorch loop: what it refuses, reports, saves and leaves unchanged."""

from __future__ import annotations

import os
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

from watchdog_app.agent.adapters.loop import LoopRescue
from watchdog_app.agent.adapters.torch_data import LoaderPasses
from watchdog_app.agent.contain import STRICT
from watchdog_app.agent.state.torch_tensors import Tensors
from watchdog_app.agent.torch import Rescue
from watchdog_app.base.errors import RescueError, RescueMismatch
from watchdog_app.rescue.checkpoint.reader import LoadedRescue

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path / "runtime"))


def a_model(width: int = 8, activation: type[nn.Module] = nn.ReLU, rate: float = 0.1) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), activation(), nn.Dropout(rate), nn.Linear(width, 1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def a_rescue(folder: Path, model: nn.Module, optimizer: Any = None, **more: Any) -> None:
    """Create a rescue after one step."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.1)
    rescue = Rescue(folder, model=model, optimizer=optimizer, **more)
    train(model, optimizer)
    rescue.step()
    assert rescue.save() is not None


def bits(model: nn.Module) -> list[list[float]]:
    return [value.reshape(-1).tolist() for value in model.state_dict().values()]


def another(model: nn.Module, **change: Any) -> dict[str, Any]:
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1), **change}


def test_groups_that_were_added_while_it_trained_are_named_with_the_way_on(tmp_path: Path):
    """
    Layers that thaw later have their own group:

    the rescue fits if the program adds it before Rescue(...).
    """
    saved = a_model()
    body, head = ([*saved[index].parameters()] for index in (0, 3))
    optimizer = torch.optim.AdamW(head, lr=0.1)
    optimizer.add_param_group({"params": body, "lr": 0.01})
    a_rescue(tmp_path / "r", saved, optimizer)
    model = a_model()
    body, head = ([*model[index].parameters()] for index in (0, 3))
    optimizer = torch.optim.AdamW(head, lr=0.1)

    with pytest.raises(RescueMismatch, match=r"1 parameter group in the program, 2 in.* add those"):
        Rescue(tmp_path / "r", resume="newest", model=model, optimizer=optimizer)
    optimizer.add_param_group({"params": body, "lr": 0.01})
    Rescue(tmp_path / "r", resume="newest", model=model, optimizer=optimizer)

    assert bits(saved) == bits(model)


@pytest.mark.parametrize("batch", [0, 1])
def test_lazy_layers_get_the_shapes_of_the_rescue(tmp_path: Path, batch: int):
    """Rescue(...) stands before the first batch, in the first run too."""

    def program(batches: int, resume: Any) -> tuple[Any, ...]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.Linear(3, 1))
        for _ in range(batches):
            model(torch.ones(3, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        return model, optimizer, Rescue(tmp_path, opt=optimizer, model=model, resume=resume)

    model, optimizer, rescue = program(batch, False)
    train(model, optimizer)
    rescue.step()
    assert rescue.save() is not None
    again, its_optimizer, _ = program(0, "newest")
    assert bits(model) == bits(again)
    for one, its in ((model, optimizer), (again, its_optimizer)):
        torch.manual_seed(2)
        train(one, its)

    assert bits(model) == bits(again)
    other = nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d(), nn.Linear(2, 1))
    with pytest.raises(RescueMismatch, match=r"model/2.weight is"):
        Rescue(tmp_path, resume="newest", **another(other))
    assert nn.parameter.is_lazy(other[0].weight)


def test_sparse_gradients_that_are_being_added_up_come_back(tmp_path: Path):
    """The order of an embedding's gradients decides the last bits of their sum."""

    def program(resume: Any) -> tuple[Any, ...]:
        torch.manual_seed(1)
        model = nn.Embedding(9, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
        rescue = Rescue(tmp_path / "r", model=model, optimizer=optimizer, resume=resume)
        return model, optimizer, rescue

    def half(model: nn.Module, *rows: int) -> None:
        (model(torch.tensor(rows)) / 3).pow(2).sum().backward()

    model, optimizer, rescue = program(False)
    half(model, 1, 2, 1)
    rescue.step()
    assert rescue.save() is not None
    again, its_optimizer, _ = program("newest")
    for one, its in ((model, optimizer), (again, its_optimizer)):
        half(one, 2, 7, 2)
        its.step()

    assert bits(model) == bits(again)


@pytest.mark.parametrize(
    ("program", "named"),
    [
        (lambda: another(a_model(16)), r"model/0.weight is float32 \(16, 4\) in the program, "),
        (
            lambda: another(nn.Sequential(*a_model(), nn.Linear(1, 2))),
            r"model/4.weight float32 \(2, 1\) is in the program only",
        ),
        (lambda: another(nn.Sequential(a_model()[0])), r"model/3.weight .* is in the rescue only"),
        (lambda: another(a_model().double()), "model/0.weight is float64 .* in the program"),
        (
            lambda: another(a_model(activation=nn.GELU)),
            "model.1 is a GELU in the program",
        ),
        (
            lambda: another(a_model(rate=0.5)),
            r"model.2.s p is 0.5 in the program",
        ),
        (
            lambda: {"model": (m := a_model()), "optimizer": torch.optim.SGD(m.parameters())},
            "optimizer is SGD in the program, AdamW in the rescue",
        ),
        (
            lambda: {
                "model": (m := a_model()),
                "optimizer": torch.optim.AdamW([{"params": [p]} for p in m.parameters()]),
            },
            "optimizer has 4 parameter groups in the program, 1 in the rescue",
        ),
        (
            lambda: {"model": (m := a_model()), "optimizer": torch.optim.AdamW(m[0].parameters())},
            "group 0 of optimizer trains 2 tensors in the program, 4 in the rescue",
        ),
        (lambda: another(a_model(), history=[]), "history is in the program only"),
        (lambda: {"model": a_model()}, "program: optimizer is in the rescue only. Nothing"),
    ],
)
def test_a_changed_program_is_named_and_keeps_its_values(tmp_path: Path, program, named: str):
    """The agent explains the difference, changes no weight and removes no rescue."""
    a_rescue(tmp_path / "r", a_model())
    objects = program()
    before = bits(objects["model"])
    stored = sorted(os.listdir(tmp_path / "r"))

    with pytest.raises(RescueMismatch, match=named):
        Rescue(tmp_path / "r", resume="newest", **objects)

    assert before == bits(objects["model"])
    assert stored == sorted(os.listdir(tmp_path / "r"))


def stopped_in_its_data(folder: Path, data: Any, batch: int, drawn: int) -> None:
    rescue = Rescue(folder, model=a_model())
    for count, _ in enumerate(rescue.data(DataLoader(data, batch)), 1):
        rescue.step()
        if count == drawn:
            assert rescue.save() is not None
            break


@pytest.mark.parametrize(
    ("batch", "rows", "said"),
    [
        (2, [6, 7, 8, 9, 10, 11], "continues after 6 rows, at batch 3."),
        (3, [6, 7, 8, 9, 10, 11], "continues after 6 rows, at batch 2."),
        (4, [4, 5, 6, 7, 8, 9, 10, 11], "continues after 6 rows, at batch 1; 2 rows are trained"),
        (1, [6, 7, 8, 9, 10, 11], "continues after 6 rows, at batch 6."),
    ],
)
def test_batches_of_another_size_go_on_at_the_same_sample(
    tmp_path: Path, capsys, batch: int, rows: list[int], said: str
):
    """At most one batch is trained again, and the agent reports it."""
    data = TensorDataset(torch.arange(12))
    stopped_in_its_data(tmp_path / "r", data, 2, drawn=3)
    again = Rescue(tmp_path / "r", model=a_model(), resume="newest")

    seen = [int(row) for (each,) in again.data(DataLoader(data, batch)) for row in each]

    assert rows == seen
    assert (batch != 2) == (said in capsys.readouterr().err)


def test_other_data_is_refused_where_it_is_given(tmp_path: Path, capsys):
    """The saved position would be wrong. With force the pass starts at its first batch."""
    stopped_in_its_data(tmp_path / "r", TensorDataset(torch.arange(12)), 2, drawn=3)
    other = DataLoader(TensorDataset(torch.arange(10)), 2)
    again = Rescue(tmp_path / "r", model=a_model(), resume="newest")

    with pytest.raises(RescueMismatch, match="has 10 rows in the program, 12 in the rescue"):
        next(again.data(other))

    forced = Rescue(tmp_path / "r", model=a_model(), resume="force")
    assert [0, 1] == next(forced.data(other))[0].tolist()
    assert "resumes although the data has 10 rows" in capsys.readouterr().err


class Around:
    """An own loader around a DataLoader, whose length is that of the rows."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader.dataset)

    def __iter__(self) -> Any:
        for (rows,) in self.loader:
            yield rows


def test_a_loader_of_the_program_goes_on_where_the_loader_inside_it_was(tmp_path: Path):
    """A found loop records the DataLoader, and the lines read the object around it."""
    data = TensorDataset(torch.arange(12.0))
    stopped_in_its_data(tmp_path / "r", data, 2, drawn=4)

    rescue = Rescue(tmp_path / "r", resume="newest", model=a_model())
    rest = [rows.tolist() for rows in rescue.data(Around(DataLoader(data, 2)))]

    assert [[8, 9], [10, 11]] == rest


def test_every_kind_of_state_comes_back(tmp_path: Path):
    """The agent restores in place: the program's objects stay and get other contents."""

    def objects() -> dict[str, Any]:
        return {
            "tensor": torch.zeros(3),
            "array": np.zeros(3),
            "plain": {"best": float("inf"), 1: (2, 3)},
            "rows": [],
            "drawn": torch.Generator().manual_seed(1),
            "rng": np.random.default_rng(1),
            "legacy": np.random.RandomState(1),
        }

    held = objects()
    rescue = Rescue(tmp_path / "r", **held)
    held["tensor"] += 1.5
    held["array"] += 2.5
    held["plain"].update(best=0.1, last=torch.ones(2))
    held["rows"].append("x")
    torch.rand(5, generator=held["drawn"])
    held["rng"].random(5)
    held["legacy"].rand(5)
    rescue.step()
    rescue.save()
    expected = (
        torch.rand(1, generator=held["drawn"]).item(),
        held["rng"].random(),
        held["legacy"].rand(),
    )

    found = objects()
    Rescue(tmp_path / "r", resume="newest", **found)

    assert [1.5] * 3 == found["tensor"].tolist()
    assert [2.5] * 3 == found["array"].tolist()
    assert (0.1, (2, 3), [1.0, 1.0]) == (
        found["plain"]["best"],
        found["plain"][1],
        found["plain"]["last"].tolist(),
    )
    assert ["x"] == found["rows"]
    assert expected == (
        torch.rand(1, generator=found["drawn"]).item(),
        found["rng"].random(),
        found["legacy"].rand(),
    )


class Peculiar(nn.Module):
    """
    A module with a buffer outside state_dict, extra state, a frozen weight, and two names of one
    weight.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("seen", torch.zeros(2), persistent=False)
        self.count = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"count": self.count}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def test_what_a_state_dict_leaves_out_of_a_module_comes_back(tmp_path: Path):
    """These are non-persistent buffers, modes, frozen weights and extra state."""
    model = Peculiar()
    rescue = Rescue(tmp_path / "r", model=model)
    model.seen += 3
    model.count = 7
    model.norm.eval()
    model.first.weight.requires_grad_(False)
    rescue.save()

    found = Peculiar()
    Rescue(tmp_path / "r", resume="newest", model=found)

    assert [3.0, 3.0] == found.seen.tolist()
    assert 7 == found.count
    assert (True, False) == (found.training, found.norm.training)
    assert not found.first.weight.requires_grad
    assert torch.equal(model.first.weight, found.first.weight)
    assert found.second.weight is found.first.weight


def test_slots_of_higher_precision_than_the_weights_keep_their_bits(tmp_path: Path):
    """PyTorch's own load_state_dict would round them to the weights' type."""
    model = nn.Linear(2, 1, bias=False).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.state[model.weight]["momentum_buffer"] = torch.full((1, 2), 1 / 3)
    Rescue(tmp_path / "r", model=model, optimizer=optimizer).save()

    found = nn.Linear(2, 1, bias=False).to(torch.bfloat16)
    slots = torch.optim.SGD(found.parameters(), lr=0.1, momentum=0.9)
    Rescue(tmp_path / "r", resume="newest", model=found, optimizer=slots)

    kept = slots.state[found.weight]["momentum_buffer"]
    assert (torch.float32, [1 / 3] * 2) == (kept.dtype, pytest.approx(kept[0].tolist(), abs=1e-8))


class Strange:
    pass


@pytest.mark.parametrize(
    ("state", "kind", "said"),
    [
        ({"it": 3}, TypeError, "it is of type int.*can live in a dict"),
        ({"it": Strange()}, TypeError, "it is of type Strange"),
        ({"it": {"deep": [Strange()]}}, TypeError, "it/deep/0 is a Strange"),
        ({"it": [nn.Parameter(torch.ones(1))]}, TypeError, "holds tensors that are trained"),
        ({"it": DataLoader([1])}, TypeError, r"rescue\.data\(it\)"),
        (
            {"it": torch.optim.SGD(nn.Linear(1, 1).parameters())},
            RescueError,
            "it trains 2 tensors that were not given",
        ),
    ],
)
def test_what_cannot_be_saved_is_refused_at_the_start(tmp_path: Path, state, kind, said: str):
    """The error must not come only when the rescue is needed."""
    with pytest.raises(kind, match=said):
        Rescue(tmp_path / "r", **state)


def test_a_scheduler_that_was_not_given_is_said_at_the_save(tmp_path: Path, capsys):
    """It sets the learning rate and would restart."""
    model = a_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    a_rescue(tmp_path / "bare", model, optimizer)
    bare = capsys.readouterr().err
    a_rescue(tmp_path / "whole", model, optimizer, scheduler=scheduler)
    whole = capsys.readouterr().err

    assert "the learning-rate scheduler of optimizer, which Rescue(...) was not given" in bare
    assert "scheduler" not in whole


def test_data_that_draws_global_random_numbers_as_it_is_read_is_said_at_the_save(
    tmp_path: Path, capsys
):
    """The training draws between its draws, so its order cannot be restored."""

    def source():
        for _ in range(9):
            yield torch.rand(2)

    rescue = Rescue(tmp_path / "r", rows=[])
    for _ in rescue.data(source()):
        rescue.step()
    rescue.save()

    assert "draws global random numbers while it is read" in capsys.readouterr().err


def test_two_zipped_loaders_that_augment_their_items_lack_nothing(tmp_path: Path):
    """Their orders are drawn with the first batch, and a function makes each pass."""

    def augmented(rows):
        return DataLoader(range(rows), 2, True, collate_fn=lambda rows: torch.rand(len(rows)))

    one, another = augmented(12), augmented(20)
    rescue = Rescue(tmp_path / "r", rows=[])
    for _ in rescue.epochs(3):
        for _ in rescue.data(lambda: zip(one, another, strict=False)):
            rescue.step()

    assert rescue._passes.lost == []
    assert [18, 3] == [rescue.step_number, rescue._passes.latest.source.passes]


def test_passes_that_a_generator_begins_by_itself_come_back_in_their_order(tmp_path: Path):
    """`while True: yield from loader`: each pass is shuffled by random numbers of its time."""

    def endless():
        loader = DataLoader(torch.arange(6.0), 2, shuffle=True)
        while True:
            yield from loader
            random.random()

    def train(first: int, last: int, **options: Any) -> list[list[float]]:
        rescue = Rescue(tmp_path / "r", rows=[], **options)
        seen = []
        for step, batch in enumerate(rescue.data(endless()), first):
            seen.append([*batch.tolist(), *torch.rand(2).tolist(), random.random()])
            rescue.step()
            if step == 10 and not options["resume"]:
                rescue.save()
            if step == last:
                return seen
        raise AssertionError

    whole = train(0, 20, resume=False)
    torch.manual_seed(99)
    random.seed(99)

    assert whole[11:] == train(11, 20, resume="newest")


class Balanced(Sampler[list[int]]):
    """Keeps its place in each class over the passes, and shuffles a class that is used up."""

    def __init__(self) -> None:
        self.rows = {label: np.arange(5) + 5 * label for label in (0, 1)}
        self.used = defaultdict(lambda: 0)
        self.given = 0

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(3):
            self.given += 1
            rows = [*self._take(0), *self._take(1)]
            yield rows

    def _take(self, label: int) -> Any:
        if self.used[label] + 2 > 5:
            np.random.shuffle(self.rows[label])
            self.used[label] = 0
        self.used[label] += 2
        return self.rows[label][self.used[label] - 2 : self.used[label]]


@pytest.mark.parametrize("saved", [4, 5, 6])
def test_what_a_sampler_keeps_over_its_passes_comes_back(tmp_path: Path, saved: int):
    """Its arrays, counts and numbers are those of the start of the pass, or of the end."""

    def train(resume: Any, until: int = 0) -> tuple[list[Any], int]:
        np.random.seed(3)
        sampler = Balanced()
        loader = DataLoader(torch.arange(10), batch_sampler=sampler)
        rescue = Rescue(tmp_path / "r", rows=[], resume=resume)
        seen = []
        for _ in rescue.epochs(5):
            for batch in rescue.data(loader):
                seen.append([*batch.tolist(), np.random.random()])
                rescue.step()
                if rescue.step_number == until:
                    rescue.save()
                    return seen, sampler.given
        return seen, sampler.given

    whole, given = train(False)
    train(False, saved)

    assert (whole[saved:], given) == train("newest")


def test_a_loop_that_reads_by_next_resumes_in_its_last_pass(tmp_path: Path):
    """The passes before it have ended, and `next` on one of these would end the program."""
    rows = [0, 1, 2]

    def train(steps: int, *, resume: Any) -> list[int]:
        rescue, seen = Rescue(tmp_path / "r", resume=resume, model=a_model()), []
        data = iter(rescue.data(rows))
        while rescue.step_number < steps:
            try:
                row = next(data)
            except StopIteration:
                data = iter(rescue.data(rows))
                row = next(data)
            seen.append(row)
            rescue.step()
        rescue.save()
        return seen

    assert [0, 1, 2, 0, 1, 2, 0] == train(7, resume=False)
    assert [1, 2, 0, 1, 2, 0, 1] == train(14, resume="newest")
    assert [2, 0] == train(16, resume="newest")


@pytest.mark.parametrize("is_set_again", [False, True])
def test_a_while_loop_over_epochs_resumes_in_its_epoch(tmp_path: Path, is_set_again: bool):
    """The variable `epoch` places it, so the passes of earlier epochs are none of a resume."""
    rows = torch.utils.data.TensorDataset(torch.arange(4))
    validated = []  # batches of each validation

    def train(until: int, *, resume: Any) -> list[tuple[int, int]]:
        torch.manual_seed(1)
        rescue, seen = Rescue(tmp_path / "r", resume=resume, model=a_model()), []
        loader = torch.utils.data.DataLoader(rows, shuffle=True)
        epoch = rescue.variables(epoch=0)
        while epoch < 5:
            if is_set_again:
                loader = torch.utils.data.DataLoader(rows, shuffle=True)
            for (row,) in rescue.data(loader):
                seen.append((epoch, int(row)))
                rescue.step(epoch=epoch)
                if rescue.step_number == until:
                    rescue.save()
                    return seen
            validated.append(len(list(rescue.data([0, 1]))))
            epoch += 1
        return seen

    whole = train(20, resume=False)
    for first, second in ((7, 10), (8, 12), (3, 18)):
        train(first, resume=False)
        assert whole[first:second] == train(second, resume="newest")
        assert whole[second:] == train(20, resume="newest")
    assert {2} == set(validated)


@pytest.mark.parametrize("form", ["repeated", "end", "one_function", "begins_again", "argument"])
def test_loops_around_a_pass_resume_in_the_turn_that_their_numbers_show(tmp_path: Path, form: str):
    """They begin again or continue, and the passes of a rescue are found by their numbers."""
    rows = torch.utils.data.TensorDataset(torch.arange(4))
    others = torch.utils.data.TensorDataset(torch.arange(10, 14))

    def train(until: int, *, resume: Any) -> list[tuple[int, int]]:
        torch.manual_seed(1)
        rescue = Rescue(tmp_path / "r", resume=resume, model=a_model())
        loader = torch.utils.data.DataLoader(rows, shuffle=True)
        other = torch.utils.data.DataLoader(others, shuffle=True)
        seen: list[tuple[int, int]] = []

        def read(data: Any, epoch: int) -> None:
            for (row,) in rescue.data(data):
                if row < 10:
                    seen.append((epoch, int(row)))
                    rescue.step(epoch=epoch)
                if rescue.step_number == until:
                    rescue.save()
                    raise InterruptedError

        def run(epoch: int, end: int) -> None:
            for number in range(epoch, end):
                if form == "one_function":
                    read(other, number)
                for _ in range(2 if form == "repeated" else 1):
                    read(loader, number)

        with suppress(InterruptedError):
            if form == "end":
                run(0, rescue.variables(end=4))
            else:
                run(0 if form == "begins_again" else rescue.variables(epoch=0), 4)
        return seen

    whole = train(999, resume=False)
    for first, second in ((1, 7), (4, 8), (6, 13), (14, 15)):
        train(first, resume=False)
        assert whole[first:second] == train(second, resume="newest")
        assert whole[second:] == train(999, resume="newest")


def test_what_only_an_unwritten_rescue_would_lack_is_not_said(tmp_path: Path, capsys):
    """Memory has run out after a step whose exact rescue is kept: a resume lacks nothing."""
    rescue = Rescue(tmp_path / "r", model=a_model())
    for _ in rescue.data([0, 1]):
        rescue.step()
    exact = rescue.save()
    rescue._oom.inexact = ["statistics as they were before the batch"]

    again = rescue.save()

    errors = capsys.readouterr().err
    assert exact == again
    assert "It would lack statistics" in errors
    assert "will not bring back: statistics" not in errors


EPISODES = """
def train(rescue, episodes, steps=2):
    number = rescue.variables(number=0)
    while number < episodes:
        for step in range(steps):
            if step == 0:
                number += 1
            rescue.step(number=number)
"""


def test_a_while_loop_goes_on_by_its_variables_and_names_the_loops_that_begin_again(
    program: Callable[[str], ModuleType], tmp_path: Path, capsys
):
    """It reads no data, so it is not told to skip batches."""
    train = program(EPISODES).train
    rescue = Rescue(tmp_path / "r", model=a_model())
    train(rescue, 3)
    rescue.save()

    again = Rescue(tmp_path / "r", resume="newest", model=a_model())
    train(again, 4)

    said = capsys.readouterr().err
    assert 8 == again.step_number
    assert "the turn of the loop over range(steps), which begins again" in said
    assert "are not skipped" not in said
    assert "the place in data" not in said


SCORES = """
def train(rescue, make):
    rescue = rescue or make()
    for _ in rescue.epochs(1):
        for _ in rescue.data([0, 1]):
            rescue.step()
    return rescue.step_number

def repeat(rescue, make):
    scores = []
    for _ in range(2):
        scores.append(train(rescue, make))
    return max(scores)
"""


@pytest.mark.parametrize("made", ["by its function", "by the caller", "once"])
def test_a_loop_over_trainings_collects_again_what_those_that_have_ended_gave(
    program: Callable[[str], ModuleType], tmp_path: Path, capsys, made: str
):
    """A Rescue of the caller, or of the first turn, is of one training for all turns."""
    text = SCORES.replace("make()", "make(str(PATH), model=MODEL)")
    if made == "once":
        text = text.replace("rescue = rescue or", "global RESCUE; RESCUE = RESCUE or")
        text = text.replace("rescue.", "RESCUE.")
    run = program(text)
    run.PATH, run.MODEL, run.RESCUE = tmp_path / "r", a_model(), None
    given = Rescue(tmp_path / "r", model=a_model()) if made == "by the caller" else None

    most = run.repeat(given, Rescue)

    assert most == (2 if made == "by its function" else 4)
    assert (made != "by its function") is ("by name): scores" in capsys.readouterr().err)


def test_a_loop_of_two_lines_is_saved_and_told_its_place(tmp_path: Path, capsys):
    """The loop has Rescue(...) and step(), and counts its own position."""
    model = a_model()
    a_rescue(tmp_path / "r", model)
    said_at_save = capsys.readouterr().err

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    rescue = Rescue(tmp_path / "r", resume="newest", model=model, optimizer=optimizer)
    rescue.step()

    assert 2 == rescue.step_number
    assert "the place in data that is not read through rescue.data()" in said_at_save
    assert "are not skipped: 1 steps are done. Begin" in capsys.readouterr().err


class Fickle:
    """Its state can be read once, at the start."""

    def __init__(self) -> None:
        self.good = True

    def state_dict(self) -> dict[str, int]:
        if not self.good:
            raise ZeroDivisionError("no state today")
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


class Meter:
    """Its `load_state_dict` leaves out the tensor."""

    def __init__(self) -> None:
        self.count, self.mean = 0, torch.zeros(2)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


@pytest.mark.parametrize(("mean", "is_said"), [(0.0, False), (1.0, True)])
def test_a_state_that_is_not_loaded_whole_is_named(tmp_path: Path, capsys, mean, is_said):
    """The state after the load is compared with the saved one."""
    meter = Meter()
    meter.count, meter.mean = 3, torch.full((2,), mean)
    Rescue(tmp_path / "r", meter=meter).save()
    capsys.readouterr()

    meter = Meter()
    Rescue(tmp_path / "r", resume="newest", meter=meter).step()

    assert 3 == meter.count
    said = "what load_state_dict() of meter does not restore"
    assert is_said == (said in capsys.readouterr().err)


@pytest.mark.parametrize("is_part", [False, True])
def test_an_optimizer_that_replaces_the_one_of_the_rescue_is_named(tmp_path: Path, is_part: bool):
    """One that steps within a step of the given one, as in SAM, replaces none."""
    model = a_model()
    given = torch.optim.AdamW(model.parameters(), lr=0.1)
    rescue = Rescue(tmp_path / "r", model=model, optimizer=given)
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        train(model, other)
        if is_part:
            given.step()
        rescue.step()

    path = rescue.save()
    assert path is not None
    with LoadedRescue(path) as saved:
        told = [each for each in saved.meta["not_restored"] if "in place of the one in" in each]
    assert len(told) == (0 if is_part else 1)


def test_an_error_while_saving_does_not_reach_the_training(tmp_path: Path, monkeypatch, capsys):
    """The agent reports it, and the next step runs."""
    monkeypatch.setenv(STRICT, "0")
    fickle = Fickle()
    rescue = Rescue(tmp_path / "r", it=fickle)
    fickle.good = False

    found = rescue.save()
    rescue.step()

    assert found is None
    assert 1 == rescue.step_number
    assert "no state today" in capsys.readouterr().err
    assert not [name for name in os.listdir(tmp_path / "r") if name.startswith("rescue-")]


def test_a_training_that_ended_well_leaves_the_optimizer_as_it_was(tmp_path: Path):
    """The agent's hook is removed, and steps after the end cost nothing."""
    model = a_model()
    optimizer = torch.optim.SGD(model.parameters())
    with Rescue(tmp_path / "r", model=model, optimizer=optimizer) as rescue:
        for _ in rescue.epochs(1):
            rescue.step()

    assert not optimizer._optimizer_step_post_hooks
    assert rescue.save() is None


def test_watching_changes_no_random_number(tmp_path: Path):
    """A loop with a Rescue draws the same numbers as one without."""
    data = TensorDataset(torch.arange(8.0))

    def run(wrap: Any) -> list[float]:
        torch.manual_seed(0)
        loader = DataLoader(data, 2, shuffle=True)
        return [
            value
            for _ in range(2)
            for (rows,) in wrap(loader)
            for value in (*rows.tolist(), torch.rand(()).item())
        ]

    plain = run(lambda loader: loader)
    rescue = Rescue(tmp_path / "r", rows=[])

    assert plain == run(rescue.data)


def test_an_iterator_made_in_each_epoch_is_not_skipped_in_the_next(tmp_path: Path):
    """Evaluation data from a generator function: the epoch after the rescue gets all of it."""

    def run(rescue: Rescue, stop_at: int | None) -> list[tuple[int, str, int]]:
        seen = []
        for epoch in rescue.epochs(3):
            for item in rescue.data([0, 1, 2]):
                seen.append((epoch, "trained", item))
                rescue.step()
                if rescue.step_number == stop_at:
                    rescue.save()
                    return seen
            seen += [(epoch, "evaluated", item) for item in rescue.data(iter(range(2)))]
        return seen

    expected = run(Rescue(tmp_path / "whole", rows=[]), None)
    first = run(Rescue(tmp_path / "r", rows=[]), 5)
    second = run(Rescue(tmp_path / "r", resume="newest", rows=[]), None)

    assert expected == first + second


def test_a_pass_that_was_left_early_keeps_the_order_of_the_next(tmp_path: Path):
    """The loader has persistent workers and its own generator, and every epoch has a `break`."""
    data = TensorDataset(torch.arange(12.0))

    def run(folder: str, stop_at: int | None, **options: Any) -> list[list[float]]:
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(5)
        loader = DataLoader(
            data, 2, shuffle=True, num_workers=1, persistent_workers=True, generator=generator
        )
        rescue = Rescue(tmp_path / folder, rows=[], **options)
        seen = []
        for _ in rescue.epochs(3):
            for (rows,) in rescue.data(loader):
                seen.append(rows.tolist())
                rescue.step()
                if rescue.step_number == stop_at:
                    rescue.save()
                    return seen
                if rescue.step_number % 4 == 0:
                    break
        return seen

    expected = run("whole", None)

    assert expected == run("r", 6) + run("r", None, resume="newest")


class Restarting(DataLoader):
    """A loader that is its own iterator and restarts, as that of Ray Train."""

    def __iter__(self):
        self.batches = super().__iter__()
        return self

    def __next__(self):
        return next(self.batches)


def test_a_loader_that_is_its_own_iterator_comes_back_to_its_place(tmp_path: Path):
    """Each pass begins anew, so batches of earlier passes are not drawn again."""

    def run(rescue: Rescue, stop_at: int | None) -> list[tuple[int, list[int]]]:
        loader = Restarting(torch.arange(8), batch_size=2, shuffle=True)
        seen = []
        for epoch in rescue.epochs(3):
            for batch in rescue.data(loader):
                seen.append((epoch, batch.tolist()))
                rescue.step()
                if rescue.step_number == stop_at:
                    rescue.save()
                    return seen
        return seen

    torch.manual_seed(1)
    expected = run(Rescue(tmp_path / "whole", rows=[]), None)
    torch.manual_seed(1)
    first = run(Rescue(tmp_path / "r", rows=[]), 6)
    second = run(Rescue(tmp_path / "r", resume="newest", rows=[]), None)

    assert expected == first + second


def test_epochs_that_begin_later_resume_at_the_number_of_the_epoch(tmp_path: Path):
    """A program that loads its own checkpoint counts from there: `range(args.start_epoch, 6)`."""
    model = a_model()
    rescue = Rescue(tmp_path / "r", **another(model))
    for epoch in rescue.epochs(range(1, 6)):
        for _ in rescue.data(range(2)):
            if epoch == 3:
                break
            train(model, rescue._objects["optimizer"])
            rescue.step()
        if epoch == 3:
            assert rescue.save() is not None
            break
    rescue._close()
    later, behind = (Rescue(tmp_path / "r", resume="newest", **another(a_model())) for _ in "12")

    assert [3, 4, 5] == list(later.epochs(range(2, 6)))
    with pytest.raises(RescueMismatch, match=r"epoch 3, and the epochs are range\(4, 6\) now"):
        list(behind.epochs(range(4, 6)))


@pytest.mark.parametrize(("is_found", "count", "raises"), [(True, 1, True), (False, 1, False)])
def test_a_rescue_of_a_detected_loop_behind_all_epochs_ends_with_an_error(
    tmp_path: Path, capsys, is_found: bool, count: int, raises: bool
):
    """Its epoch was counted by what the program read. An own one may ask for fewer epochs now."""
    model = a_model()
    rescue = Rescue(tmp_path, **another(model), resume=False)
    for _ in rescue.epochs(9):
        for _ in rescue.data([1, 2]):
            rescue.step()
        if rescue.epoch == 2:
            rescue.save()
            break

    again = Rescue(tmp_path, **another(model), resume="newest")
    if is_found:
        again._saved.meta["found"] = {}
    with pytest.raises(RescueMismatch, match="epoch 3") if raises else nullcontext():
        assert [] == list(again.epochs(count))
    assert raises is (
        "nothing was trained: the rescue is of epoch 3" not in capsys.readouterr().err
    )


def test_there_is_no_current_rescue_before_the_first(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setattr(LoopRescue, "_newest", lambda: None)
    with pytest.raises(RescueError, match=r"before the program made a Rescue"):
        Rescue.current()

    made = Rescue(tmp_path, **another(a_model()))
    assert made is Rescue.current()


class Replay:
    def __init__(self) -> None:
        self.rows = deque(range(8), 8)

    def push(self, row: int) -> None:
        self.rows.append(row)


class Sampled(IterableDataset):
    def __init__(self, replay: Replay) -> None:
        self.replay = replay

    def __iter__(self) -> Iterator[int]:
        yield from random.sample(list(self.replay.rows), 6)


def test_a_pass_is_drawn_again_from_the_buffer_that_it_began_with():
    """A replay buffer has new rows at the save, and the resumed program others."""
    replay, passes, arrived = Replay(), LoaderPasses(print), []
    batches = passes.run(DataLoader(Sampled(replay), 2), lambda: None)
    first = next(batches)
    replay.push(70)
    position = passes.position(Tensors())
    expected = [first.tolist(), *(each.tolist() for each in batches)]
    resumed, passes = Replay(), LoaderPasses(print)
    resumed.push(71)
    passes.continue_from(position)

    rest = passes.run(
        DataLoader(Sampled(resumed), 2), lambda: arrived.append(list(resumed.rows)), lambda _: None
    )

    assert expected[1:] == [each.tolist() for each in rest]
    assert [[*range(1, 8), 71]] == arrived


def two_loaders() -> list[DataLoader[Any]]:
    return [
        DataLoader(TensorDataset(torch.arange(rows)), batch_size=4, shuffle=True)
        for rows in (20, 28)
    ]


def test_iterators_made_before_the_loop_draw_as_without_the_lines():
    """A loader draws a seed when its iterator is made, and its order with the first batch."""
    torch.manual_seed(3)
    plain = [iter(each) for each in two_loaders()]
    expected = [next(each)[0].tolist() for each in plain * 2]
    torch.manual_seed(3)
    passes = LoaderPasses(print)

    read = [iter(passes.run(each, lambda: None)) for each in two_loaders()]

    assert expected == [next(each)[0].tolist() for each in read * 2]


def test_iterators_made_before_the_loop_go_on_in_their_order():
    """Between the seed and the order of one loader lies the seed of the other."""
    torch.manual_seed(3)
    passes = LoaderPasses(print)
    read = [iter(passes.run(each, lambda: None)) for each in two_loaders()]
    for _ in range(2):
        drawn = [next(each)[0].tolist() for each in read]
    position = passes.position()
    expected = [next(each)[0].tolist() for each in read]
    torch.manual_seed(4)
    resumed = LoaderPasses(print)
    resumed.continue_from(position)

    again = [iter(resumed.run(each, lambda: None)) for each in two_loaders()]

    assert expected == [next(each)[0].tolist() for each in again]
    assert expected != drawn
