"""Every optimizer and every scheduler of PyTorch resumes exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from watchdog_app.agent.identity import torch_facts
from watchdog_app.agent.torch import Rescue

pytestmark = pytest.mark.torch

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    **{
        name: lambda weights, name=name: getattr(optim, name)(weights, lr=0.01)
        for name in (
            *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS"),
            *("Muon", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
        )
    },
    "fused": lambda weights: optim.Adam(weights, amsgrad=True, fused=True),
    "rate in a tensor": lambda weights: optim.Adam(weights, lr=torch.tensor(0.01)),
}
SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "lambda": lambda it: lr_scheduler.LambdaLR(it, lambda step: 0.9**step),
    "multiplicative": lambda it: lr_scheduler.MultiplicativeLR(it, lambda step: 0.9),
    "step": lambda it: lr_scheduler.StepLR(it, 2),
    "milestones": lambda it: lr_scheduler.MultiStepLR(it, [2, 3, 3, 7]),
    "constant": lr_scheduler.ConstantLR,
    "linear": lr_scheduler.LinearLR,
    "exponential": lambda it: lr_scheduler.ExponentialLR(it, 0.9),
    "polynomial": lr_scheduler.PolynomialLR,
    "cosine": lambda it: lr_scheduler.CosineAnnealingLR(it, 10),
    "restarts": lambda it: lr_scheduler.CosineAnnealingWarmRestarts(it, 3),
    "cyclic": lambda it: lr_scheduler.CyclicLR(
        it, 0.01, 0.1, scale_fn=lambda x: 1 / 2**x, cycle_momentum=False
    ),
    "one cycle": lambda it: lr_scheduler.OneCycleLR(it, 0.1, total_steps=20),
    "sequence": lambda it: lr_scheduler.SequentialLR(
        it, [lr_scheduler.ConstantLR(it), lr_scheduler.ExponentialLR(it, 0.9)], [3]
    ),
    "chain": lambda it: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(it), lr_scheduler.ExponentialLR(it, 0.9)]
    ),
    "averaging": lambda it: optim.swa_utils.SWALR(it, 0.05),
    "plateau": lambda it: lr_scheduler.ReduceLROnPlateau(it, patience=0),
}
CASES = [
    *((name, make, SCHEDULERS["step"]) for name, make in OPTIMIZERS.items()),
    *(
        (name, lambda weights: optim.SGD(weights, lr=0.05, momentum=0.9), make)
        for name, make in SCHEDULERS.items()
    ),
]


def trained(model: nn.Module, optimizer: optim.Optimizer, scheduler: Any, steps: int) -> list[Any]:
    """Return loss and learning rate of each step."""
    found = []
    for _ in range(steps):
        rows = torch.randn(5, 4)

        def closure(rows: torch.Tensor = rows) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(rows).pow(2).sum()
            loss.backward()
            return loss

        loss = float(optimizer.step(closure).detach())
        plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
        scheduler.step(*([loss] if plateau else []))
        found.append((loss, float(optimizer.param_groups[0]["lr"])))
    return found


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*:UserWarning")
@pytest.mark.parametrize(("name", "optimizer", "scheduler"), CASES)
def test_it_goes_on_where_it_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, optimizer: Any, scheduler: Any
):
    """Losses and learning rates after a save equal those after a restore into new objects."""
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path / "nobody"))

    def program(**options: Any) -> tuple[Any, ...]:
        torch.manual_seed(0)
        model = nn.Linear(4, 3, bias=False)
        stepper = optimizer(model.parameters())
        driver = scheduler(stepper)
        rescue = Rescue(tmp_path / "r", model=model, optimizer=stepper, scheduler=driver, **options)
        return rescue, model, stepper, driver

    rescue, *objects = program()
    trained(*objects, steps=4)
    assert rescue.save() is not None
    expected = trained(*objects, steps=5)
    _, *objects = program(resume="newest")

    assert expected == trained(*objects, steps=5)


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_how_far_a_schedule_has_come_is_no_setting(kind: str):
    """A resume must restore the progress, so the agent reports nothing."""
    model = nn.Linear(2, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    schedule = SCHEDULERS[kind](optimizer)
    before = torch_facts.settings_of({"scheduler": schedule})
    for _ in range(5):
        optimizer.step()
        schedule.step(*([1.0] if kind == "plateau" else []))

    assert before == torch_facts.settings_of({"scheduler": schedule})


def test_what_a_schedule_was_given_is_a_setting():
    """The agent reports that the program now has another argument."""
    optimizer = optim.SGD(nn.Linear(2, 1).parameters(), lr=0.05)

    found = torch_facts.settings_of({"scheduler": lr_scheduler.StepLR(optimizer, 7)})

    assert 7 == found["scheduler's step_size"]
    assert {"gamma", "step_size", "base_lrs"} == {each.rpartition(" ")[2] for each in found}
