"""Whether a rescue of a PyTorch loop fits a program that was edited since."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from watchdog_app.agent.torch import Rescue  # noqa: E402
from watchdog_app.base.errors import RescueMismatch  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

PROGRAM = '''
import torch
from torch import nn

TEMPERATURE = 0.5
WIDTH = 4
LR = 0.1
BATCH_SIZE = 4
EPOCHS = 3


def scaled(value):
    """Divided by the temperature."""
    return value / TEMPERATURE


def validate(model):
    return float(model(torch.ones(1, 3)).sum())


class Block(nn.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.factor = factor

    def forward(self, x):
        """One block."""
        hidden = self.inner(x)  # the layer
        print("hidden")
        return scaled(hidden) * self.factor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, WIDTH)
        self.act = nn.ReLU()
        self.block = Block(2.0)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x):
        h = self.act(self.first(x))
        return self.last(self.drop(self.block(h)))


def make():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.1)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def train(rescue, model, optimizer, scheduler, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(BATCH_SIZE, 3)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
        rescue.step()
'''

LEGAL = {
    "nothing": ("", ""),
    "a comment": ("# the layer", "# another"),
    "a docstring": ("One block.", "A block."),
    "no print": ('        print("hidden")\n', ""),
    "another print": ('print("hidden")', 'print(f"{hidden.mean().item():.3f}")'),
    "a local renamed": ("hidden", "inside"),
    "a parameter renamed": ("def forward(self, x):\n        h = self.act(self.first(x))",
                            "def forward(self, rows):\n        h = self.act(self.first(rows))"),
    "a helper renamed": ("scaled", "divided"),
    "a class renamed": ("Block", "Piece"),
    "the model renamed": ("Net", "Network"),
    "an import in it": ("        print(", "        import json\n        print("),
    "a helper outside": (".sum())", ".mean())"),
    "the loop": ("        optimizer.zero_grad()", "        optimizer.zero_grad(set_to_none=True)"),
    "another loss in the loop": (".pow(2).mean()", ".abs().mean()"),
    "more epochs": ("EPOCHS = 3", "EPOCHS = 30"),
    "a smaller batch": ("BATCH_SIZE = 4", "BATCH_SIZE = 2"),
    "another learning rate": ("LR = 0.1", "LR = 0.01"),
    "another momentum": ("momentum=0.9", "momentum=0.8"),
    "weight decay": ("momentum=0.9", "momentum=0.9, weight_decay=0.1"),
    "another schedule step": ("optimizer, 3", "optimizer, 5"),
    "another gamma": ("gamma=0.1", "gamma=0.5"),
    "in place": ("nn.ReLU()", "nn.ReLU(inplace=True)"),
    "an import": ("import torch\n", "import json\nimport torch\n"),
    "a constant's name": ("TEMPERATURE", "HEAT"),
    "a constant written otherwise": ("TEMPERATURE = 0.5", "TEMPERATURE = 5e-1"),
    "formatting": ("scaled(hidden) * self.factor", "(scaled(hidden)*self.factor)"),
    "annotations": ("def forward(self, x):", "def forward(self, x: torch.Tensor) -> torch.Tensor:"),
    "an assertion": ("        print(", "        assert hidden is not None\n        print("),
    "timing": ("        print(", "        import time\n        at = time.time()\n        print("),
    "a log folder": ("self.factor = factor", 'self.factor = factor\n        self.log_dir = "a"'),
    "another seed": ("manual_seed(0)", "manual_seed(1)"),
    "how weights begin": (
        "    model = Net()", "    model = Net()\n    nn.init.zeros_(model.last.bias)"
    ),
}  # fmt: skip

OTHERS = {
    "activation": ("nn.ReLU()", "nn.GELU()", "model.act is a GELU in the program, a ReLU in"),
    "rate": ("Dropout(0.2)", "Dropout(0.5)", "model.drop's configuration is p=0.5 in the program"),
    "attribute": ("Block(2.0)", "Block(3.0)", "model.block's factor is 3 in the program, 2 in"),
    "forward": ("* self.factor", "- self.factor", "the code of Block.forward (train.py:"),
    "helper": ("value / TEMP", "value * TEMP", "has changed (scaled, which it calls)"),
    "constant": ("TEMPERATURE = 0.5", "TEMPERATURE = 0.9", "(scaled, which it calls)"),
    "order": ("self.drop(self.block(h))", "self.block(self.drop(h))", "the code of Net.forward"),
    "optimizer": (
        "SGD(model.parameters(), lr=LR, momentum=0.9)",
        "AdamW(model.parameters(), lr=LR)",
        "optimizer is AdamW in the program, SGD in the rescue",
    ),
    "a layer more": (
        "        self.drop =", "        self.more = nn.Tanh()\n        self.drop =",
        "model.more (Tanh) is in the program only",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No daemon; faults of ours are raised."""
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("WATCHDOG_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("WATCHDOG_AGENT_STRICT", "1")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A module of this text, imported anew."""
    count = 0

    def load(text: str) -> ModuleType:
        nonlocal count
        count += 1
        name = f"program_{count}"
        path = tmp_path / name / "train.py"
        path.parent.mkdir()
        path.write_text(text)
        module = ModuleType(name)
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, name, module)
        linecache.clearcache()
        exec(compile(text, str(path), "exec"), vars(module))
        return module

    return load


@pytest.fixture
def left(tmp_path: Path, program: Callable[[str], ModuleType]) -> Callable[[int], Path]:
    """A rescue of the program as it was, after so many steps."""

    def train(steps: int) -> Path:
        module = program(PROGRAM)
        objects = module.make()
        rescue = Rescue(tmp_path / "rescues", name="a", **objects)
        module.train(rescue, **objects, steps=steps)
        assert rescue.save() is not None
        return tmp_path / "rescues"

    return train


def resumed(folder: Path, module: ModuleType, resume: str = "newest") -> tuple[Rescue, Any]:
    objects = module.make()
    return Rescue(folder, name="a", resume=resume, **objects), objects


def edited(before: str, after: str) -> str:
    assert before in PROGRAM
    return PROGRAM.replace(before, after)


@pytest.mark.parametrize("edit", LEGAL)
def test_a_legal_edit_is_never_refused(
    left: Callable[[int], Path], program: Callable[[str], ModuleType], edit: str
):
    """Whatever a person may change between two starts of one training."""
    folder = left(2)

    rescue, _ = resumed(folder, program(edited(*LEGAL[edit])))

    assert 2 == rescue.step_number


@pytest.mark.parametrize("change", OTHERS)
def test_another_computation_is_refused_and_named(
    left: Callable[[int], Path], program: Callable[[str], ModuleType], change: str
):
    """Nothing is loaded; with force it goes on and says so, where the optimizer's state fits."""
    folder = left(2)
    before, after, named = OTHERS[change]
    module = program(edited(before, after))

    with pytest.raises(RescueMismatch) as caught:
        resumed(folder, module)

    assert any(named in each for each in caught.value.differences), caught.value.differences
    assert 'resume="force"' in str(caught.value)


def test_force_goes_on_and_says_what_differs(
    left: Callable[[int], Path],
    program: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
):
    """With another activation, at a person's word."""
    folder = left(2)

    rescue, _ = resumed(folder, program(edited("nn.ReLU()", "nn.GELU()")), "force")

    assert 2 == rescue.step_number
    assert "goes on although model.act is a GELU" in capsys.readouterr().err


@pytest.mark.parametrize(
    "case",
    [
        (("LR = 0.1", "LR = 0.5"), 2, {"lr": 0.5, "initial_lr": 0.5, "base_lrs": [0.5]},
         "optimizer's lr: 0.5 of the program is used from here on (was 0.1)."),
        (("", ""), 4, {"lr": 0.01, "initial_lr": 0.1, "base_lrs": [0.1]},
         "optimizer's lr: 0.01 of the rescue goes on (the program began with 0.1)."),
        (("LR = 0.1", "LR = 0.5"), 4, {"lr": 0.01, "initial_lr": 0.1, "base_lrs": [0.1]},
         "optimizer's lr: 0.01, which the training had come to, goes on; the program says 0.5."),
        (("gamma=0.1", "gamma=0.5"), 2, {"lr": 0.1, "gamma": 0.5},
         "scheduler's gamma: 0.5 of the program is used from here on (was 0.1)."),
        (("lr=LR, momentum=0.9", "lr=LR, momentum=0.9, nesterov=True"), 2, {"nesterov": True},
         "optimizer's nesterov: true of the program is used from here on (was false)."),
        (("momentum=0.9", "momentum=0.8"), 2, {"momentum": 0.8},
         "optimizer's momentum: 0.8 of the program is used from here on (was 0.9)."),
    ],
)  # fmt: skip
def test_settings_are_merged(
    left: Callable[[int], Path],
    program: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
    case: tuple[tuple[str, str], int, dict[str, Any], str],
):
    """Changed on purpose they take effect; what the schedule moved goes on; both are said."""
    edit, steps, expected, said = case
    folder = left(steps)

    _, objects = resumed(folder, program(edited(*edit)))

    group, schedule = objects["optimizer"].param_groups[0], vars(objects["scheduler"])
    found = {key: group.get(key, schedule.get(key)) for key in expected}
    assert pytest.approx(expected.get("lr", 0.1)) == group["lr"]
    assert {key: pytest.approx(value) for key, value in expected.items()} == found
    assert said in capsys.readouterr().err


def test_nothing_changed_is_nothing_said(
    left: Callable[[int], Path],
    program: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
):
    """Only where it goes on."""
    folder = left(2)
    capsys.readouterr()

    resumed(folder, program(PROGRAM))

    said = capsys.readouterr().err
    assert "going on from" in said
    assert not any(each in said for each in ("optimizer's", "scheduler's", "program", "edited"))


def test_the_base_of_the_merge_is_written_anew_at_each_resume(
    left: Callable[[int], Path], program: Callable[[str], ModuleType], tmp_path: Path
):
    """A rate that was changed once stays, and may be changed again."""
    folder = left(1)
    for rate in (0.5, 0.25):
        module = program(edited("LR = 0.1", f"LR = {rate}"))
        rescue, objects = resumed(folder, module)
        assert rate == objects["optimizer"].param_groups[0]["lr"]
        assert rescue.save() is not None


# The loss of a loop, which is written in no function of its own.
LOSSES = {
    "the same": (lambda out: out.pow(2).mean(), True),
    "mean for sum": (lambda out: out.pow(2).sum(), False),
    "absolute": (lambda out: out.abs().mean(), False),
    "negated": (lambda out: -out.pow(2).mean(), False),
    "another order": (lambda out: out.mean().pow(2), False),
}


def looped(rescue: Rescue, objects: Any, loss_of: Callable[[Any], Any], steps: int) -> None:
    for _ in range(steps):
        objects["optimizer"].zero_grad()
        loss = loss_of(objects["model"](torch.ones(3, 3)))
        loss.backward()
        objects["optimizer"].step()
        rescue.step(loss=loss)


@pytest.mark.parametrize("name", LOSSES)
def test_another_loss_in_the_loop_is_seen_at_the_third_step(
    tmp_path: Path, program: Callable[[str], ModuleType], name: str
):
    """By the autograd graph of the loss; nothing on disk has changed then."""
    loss_of, same = LOSSES[name]
    module = program(PROGRAM)
    objects = module.make()
    rescue = Rescue(tmp_path / "r", name="a", **objects)
    looped(rescue, objects, LOSSES["the same"][0], steps=3)
    assert rescue.save() is not None
    stored = sorted(each.name for each in (tmp_path / "r").glob("rescue-*"))
    again, others = resumed(tmp_path / "r", module)
    looped(again, others, loss_of, steps=2)

    if same:
        looped(again, others, loss_of, steps=3)
        return
    with pytest.raises(RescueMismatch, match="the first steps compute something else"):
        looped(again, others, loss_of, steps=1)
    assert stored == sorted(each.name for each in (tmp_path / "r").glob("rescue-*"))


def test_a_training_of_several_graphs_goes_on_in_each(
    tmp_path: Path, program: Callable[[str], ModuleType]
):
    """Layers that are thawed later, losses in turn."""
    module = program(PROGRAM)
    objects = module.make()
    rescue = Rescue(tmp_path / "r", name="a", **objects)
    for name in ("the same", "absolute"):
        looped(rescue, objects, LOSSES[name][0], steps=3)
    assert rescue.save() is not None
    again, others = resumed(tmp_path / "r", module)

    looped(again, others, LOSSES["absolute"][0], steps=4)

    assert 10 == again.step_number


def test_a_loss_that_is_not_given_is_not_compared(
    tmp_path: Path, program: Callable[[str], ModuleType]
):
    """Nor is one whose graph is gone when the program saves, or a plain number."""
    module = program(PROGRAM)
    objects = module.make()
    rescue = Rescue(tmp_path / "r", name="a", **objects)
    looped(rescue, objects, LOSSES["the same"][0], steps=1)
    module.train(rescue, **objects, steps=2)
    rescue.step(loss=0.5)
    assert rescue.save() is not None
    again, others = resumed(tmp_path / "r", module)

    looped(again, others, LOSSES["absolute"][0], steps=4)

    assert 8 == again.step_number


def test_force_goes_on_with_another_loss_and_says_so(
    tmp_path: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """Once."""
    module = program(PROGRAM)
    objects = module.make()
    rescue = Rescue(tmp_path / "r", name="a", **objects)
    looped(rescue, objects, LOSSES["the same"][0], steps=2)
    assert rescue.save() is not None
    again, others = resumed(tmp_path / "r", module, "force")

    looped(again, others, LOSSES["absolute"][0], steps=6)

    said = capsys.readouterr().err
    assert 1 == said.count("compute something else")
    assert "AbsBackward0*1" in said


def test_precision_and_batch_size_leave_the_graph_as_it_is(program: Callable[[str], ModuleType]):
    """What a person changes to save memory."""
    from watchdog_app.agent.identity.torch_graph import signature

    model = program(PROGRAM).make()["model"]

    def graph(rows: int, precise: bool = True) -> str | None:
        with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
            loss = model(torch.ones(rows, 3)).pow(2).mean()
        return signature(loss, {})

    assert graph(2) == graph(7)
    assert graph(2, precise=False) == graph(7, precise=False)
