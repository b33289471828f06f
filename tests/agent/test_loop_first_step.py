"""Reports at the first steps of a loop, and state that is restored besides its tensors."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from watchdog_app.agent.adapters.torch_data import LoaderPasses  # noqa: E402
from watchdog_app.agent.adapters.torch_state import TorchState  # noqa: E402
from watchdog_app.agent.identity.attributes import Attributes  # noqa: E402
from watchdog_app.agent.torch import Rescue  # noqa: E402
from watchdog_app.base.errors import RescueError, RescueMismatch  # noqa: E402
from watchdog_app.rescue.checkpoint.reader import LoadedRescue  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        self.rows = torch.arange(24.0).reshape(12, 2)
        self.drawn = 0

    def __len__(self):
        return 12

    def __getitem__(self, index):
        self.drawn += 1
        return self.rows[index] * SCALE


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 1)
        self.heat = 1.0
        self._calls = 0
        self.counts = {"n": 0, "last": []}
        self.bank = []
        self.pair = (torch.zeros(1), None)
        self.means = [0.5] * 1200

    def forward(self, x):
        self._calls += 1
        self.counts["n"] += 1
        self.counts["last"] = [*self.counts["last"], self._calls][-2:]
        self.pair = (self.pair[0].detach() + 1 + 0 * self.inner(x).mean(), None)
        self.means.append(float(self._calls))
        if KEPT:
            self.bank.append(x)
        return self.inner(x) * self.heat


SCALE = 1.0
KEPT = False


def make():
    torch.manual_seed(0)
    model = Net()
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


def train(rescue, model, optimizer, steps, loader):
    seen = []
    for epoch in rescue.epochs(9):
        for number, x in rescue.enumerate(loader):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            model.heat *= 0.5
            seen.append((epoch, number))
            rescue.step()
            if len(seen) == steps:
                return seen


def plain(rescue, loader, model):
    for epoch in rescue.epochs(1):
        for x in rescue.data(loader):
            print(model(x))
            rescue.step()
    return rescue.step_number


def counted(rescue, loader):
    for number, x in enumerate(rescue.data(loader)):
        if number % 2:
            rescue.save()
        rescue.step()
"""


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run without a daemon, and raise the agent's own errors."""
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("WATCHDOG_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("WATCHDOG_AGENT_STRICT", "1")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return the module's text with edits, imported."""

    def load(before: str = "", after: str = "") -> Any:
        path = tmp_path / "train.py"
        path.write_text(text := PROGRAM.replace(before, after))
        module = ModuleType("looped")
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, "looped", module)
        linecache.clearcache()
        exec(compile(text, str(path), "exec"), vars(module))
        return module

    return load


def loader(module: Any) -> Any:
    return module.DataLoader(module.Rows(), 2, shuffle=True)


def started(folder: Path, module: Any, **wishes: Any) -> tuple[Rescue, dict[str, Any]]:
    objects = module.make()
    return Rescue(folder, name="a", resume="newest" if wishes else True, **objects), objects


@pytest.fixture
def left(tmp_path: Path, program: Callable[..., Any]) -> Path:
    """A training that was saved after four of the six batches of its first epoch."""
    module = program()
    rescue, objects = started(tmp_path / "rescues", module)
    module.train(rescue, **objects, steps=4, loader=loader(module))
    assert rescue.save() is not None
    return tmp_path / "rescues"


def test_the_number_of_a_batch_goes_on_after_a_resume(left: Path, program: Callable[..., Any]):
    """It starts at 0 in the next epoch."""
    module = program()
    rescue, objects = started(left, module, resumes=True)

    seen = module.train(rescue, **objects, steps=4, loader=loader(module))

    assert [(0, 4), (0, 5), (1, 0), (1, 1)] == seen


def test_a_break_loses_no_number_of_a_batch(tmp_path: Path, program: Callable[..., Any]):
    left_early = "if number == 1:\n                break\n            if len(seen) == steps:"
    module = program("if len(seen) == steps:", left_early)
    rescue, objects = started(tmp_path / "rescues", module)

    module.train(rescue, **objects, steps=3, loader=loader(module))

    path = rescue.save()
    with LoadedRescue(str(path)) as saved:
        assert not [each for each in saved.meta["not_restored"] if "enumerate" in each]


def test_attributes_that_training_changed_come_back(left: Path, program: Callable[..., Any]):
    """
    These belong to the program's modules and data sets:

    `self.calls += 1`, `model.heat *= 0.5`.
    """
    module = program()
    rescue, objects = started(left, module, resumes=True)
    batches = loader(module)
    drawn = []
    objects["model"].register_forward_pre_hook(lambda *_: drawn.append(batches.dataset.drawn))

    assert (1 / 16, 4) == (objects["model"].heat, objects["model"]._calls)
    assert (torch.full((1,), 4.0), None) == objects["model"].pair
    assert [0.5, 1.0, 2.0, 3.0, 4.0] == objects["model"].means[1199:]
    module.train(rescue, **objects, steps=1, loader=batches)

    assert {"n": 5, "last": [4, 5]} == objects["model"].counts
    assert (1 / 32, 5, [10]) == (objects["model"].heat, objects["model"]._calls, drawn)


@pytest.mark.parametrize(("kept", "is_held"), [("x", True), ("object()", False)])
def test_a_list_that_training_fills_comes_back_or_is_reported(
    tmp_path: Path, program: Callable[..., Any], kept: str, is_held: bool
):
    """The list is not a buffer; a rescue holds it if it consists of tensors and plain values."""
    module = program("self.bank.append(x)", f"self.bank.append({kept})")
    module.KEPT, objects = True, module.make()
    rescue = Rescue(tmp_path / "rescues", name="a", strict=not is_held, **objects)

    expected = pytest.raises(RescueError, match=r"bank, which training changes")
    with nullcontext() if is_held else expected:
        module.train(rescue, **objects, steps=4, loader=loader(module))
    rescue.save()
    again = module.make()
    Rescue(tmp_path / "rescues", name="a", resume="newest", **again) if is_held else None

    banks = [each["model"].bank for each in (objects, again)]
    assert [4, 4] == list(map(len, banks)) or not is_held
    assert all(torch.equal(*pair) for pair in zip(*banks, strict=False))


def test_a_list_that_a_training_without_a_rescue_fills_is_reported(program: Callable[..., Any]):
    """The agent finds it during the training; lists of plain values are restored."""
    model = program("KEPT = False", "KEPT = True").make()["model"]
    found = Attributes([("model", model)], begins=False)
    model(torch.ones(1, 2))

    assert ["model.bank, which training changes (make it a buffer, or name it)"] == [
        each for each in found.lost() if "bank" in each
    ]
    assert {"n": 1, "last": [1]} == found.changed_values()["model"]["counts"]


def test_a_tuple_and_a_long_list_that_nothing_restores_are_reported(program: Callable[..., Any]):
    """A state of PyTorch holds tuples of tensors and long lists of floats."""
    model = program().make()["model"]
    found = Attributes([("model", model)])
    assert [] == found.lost()
    model(torch.ones(1, 2))

    assert ["model.pair", "model.means"] == [each.partition(",")[0] for each in found.lost()]


def test_what_a_library_saves_of_a_module_is_not_saved_twice(program: Callable[..., Any]):
    """A module may keep any object there, which only the library's way names."""
    objects = program("KEPT = False", "KEPT = True").make()
    passes = LoaderPasses(print)
    state = TorchState(objects, lambda _: {"variables": {}}, passes, set, lambda _: True)
    objects["model"].bank.append(object())

    meta = state.capture().meta

    assert ([], {}) == (meta["not_restored"], meta["held_attributes"])


def test_an_attribute_that_training_changed_is_no_other_model(
    left: Path, program: Callable[..., Any]
):
    """Another value in the program's text does make another model."""
    with pytest.raises(RescueMismatch, match=r"inner\W"):
        started(left, program("nn.Linear(2, 1)", "nn.Linear(2, 1, bias=False)"), resumes=True)

    rescue, _ = started(left, program("self.heat = 1.0", "self.heat = 1"), resumes=True)

    assert 4 == rescue.step_number


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (("", ""), False),
        (("SCALE = 1.0", "SCALE = 2.0"), True),
        (("self.rows[index] * SCALE", "self.rows[11 - index]"), True),
    ],
)
def test_another_first_batch_is_reported(
    left: Path,
    program: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    edit: tuple[str, str],
    said: bool,
):
    """Values or order differ; the training continues."""
    module = program(*edit)
    rescue, objects = started(left, module, resumes=True)

    module.train(rescue, **objects, steps=2, loader=loader(module))

    shown = capsys.readouterr().err
    assert said == ("the first batch of this epoch is not the one it was" in shown)
    assert said == ("4 batches of it are left out all the same" in shown)


def test_batches_of_other_tensors_are_refused(left: Path, program: Callable[..., Any]):
    """There are two tensors instead of one, or another element type."""
    module = program("return self.rows[index] * SCALE", "return self.rows[index], 1")
    rescue, objects = started(left, module, resumes=True)

    with pytest.raises(RescueMismatch, match="a batch of the data is float32 of rank 2, int64"):
        module.train(rescue, **objects, steps=2, loader=loader(module))


def test_what_will_not_come_back_is_said_at_the_first_step(
    tmp_path: Path, program: Callable[..., Any], capsys: pytest.CaptureFixture[str]
):
    """The message appears once, before any save; the rescue also stores it."""
    module = program()
    rescue, _ = started(tmp_path / "rescues", module)

    module.counted(rescue, loader(module))

    said = [line for line in capsys.readouterr().err.splitlines() if "will not bring back" in line]
    assert 1 == len(said)
    assert "the counter number of enumerate(), which counts from 0 again" in said[0]
    assert rescue._session is not None
    assert rescue._session.link.fields["not_restored"] == rescue._audit_result


def test_strict_raises_in_place_of_saying_so(tmp_path: Path, program: Callable[..., Any]):
    """The error comes at the first step. If everything is restored, there is no error."""
    module = program()
    objects = module.make()
    with pytest.raises(RescueError, match="the counter number"):
        module.counted(Rescue(tmp_path / "a", strict=True, **objects), loader(module))

    rescue = Rescue(tmp_path / "b", strict=True, **objects)

    assert 6 == module.plain(rescue, loader(module), objects["model"])
