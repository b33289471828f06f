"""Loops without an optimizer are found; one that cannot be saved tells the user and the daemon."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from daemon_stand_in import StandIn  # noqa: E402

from watchdog_app.agent.found import gradients, torch_signals  # noqa: E402
from watchdog_app.agent.runtime import link  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def _no_other_rescue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that an earlier test of this process has left open is a program with a Rescue."""
    monkeypatch.setattr(link, "_open_links", weakref.WeakSet())


@pytest.fixture
def soon(program_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gradients, "_REPORT_AFTER_S", 0.0)
    return program_folder


def by_new_tensors(steps: int) -> None:
    weights = torch.ones(3, requires_grad=True)
    for _ in range(steps):
        (weights * 2).sum().backward()
        weights = (weights - 0.1 * weights.grad).detach().requires_grad_()


def by_hand(steps: int) -> None:
    weights = torch.ones(3, requires_grad=True)
    for _ in range(steps):
        (weights * 2).sum().backward()
        with torch.no_grad():
            weights -= 0.1 * weights.grad
            weights.grad = None


def by_optimizer(made: Any, weights: Any, calls: int) -> None:
    def closure() -> Any:
        made.zero_grad()
        loss = (weights - 2).square().sum()
        for _ in range(calls):
            loss.backward(retain_graph=True)
        return loss

    made.step(closure)


def test_new_tensors_in_place_of_parameters_are_reported_once(
    soon: Path, capsys: pytest.CaptureFixture[str]
):
    """The daemon gets the reason too, for `watchdog status`."""
    daemon = StandIn(str(soon / "run" / "daemon.sock"))

    by_new_tensors(40)

    said = capsys.readouterr().err
    assert 1 == said.count("no parameters are updated in place")
    daemon.wait_for("agent.report")
    daemon.until(lambda: daemon.last("agent.report").get("not_restored"))
    told = daemon.last("agent.report")
    assert told["training"] is False
    assert "updated in place" in told["not_restored"][0]
    daemon.close()


def test_one_long_step_of_an_optimizer_is_reported(soon: Path, capsys: pytest.CaptureFixture[str]):
    """LBFGS computes gradients many times in one step; it is saved between two steps."""
    weights = torch.ones(3, requires_grad=True)

    by_optimizer(torch.optim.LBFGS([weights], max_iter=1), weights, calls=12)

    assert "LBFGS" in capsys.readouterr().err


def test_a_training_with_an_optimizer_is_not_reported_and_is_watched_no_longer(
    soon: Path, capsys: pytest.CaptureFixture[str]
):
    """After the first step PyTorch's own method is back."""
    weights = torch.ones(3, requires_grad=True)
    watched = torch.Tensor.backward

    by_optimizer(torch.optim.SGD([weights], lr=0.1), weights, calls=2)

    assert watched is not torch.Tensor.backward
    by_new_tensors(40)
    assert "" == capsys.readouterr().err
    assert not torch_signals._gradients.is_on


def test_a_loop_by_hand_is_a_training_whose_steps_are_counted_from_the_first(
    program_folder: Path,
):
    """The first calls only show that the parameters change; they count all the same."""
    weights, bias = torch.ones(3, requires_grad=True), torch.zeros(1, requires_grad=True)
    for _ in range(9):
        (weights * 2 + bias).sum().backward()
        with torch.no_grad():
            weights -= 0.1 * weights.grad
            bias -= 0.1 * bias.grad

    (training,) = torch_signals.trainings.active()
    assert 9 == training.detector.iterations
    assert {id(weights), id(bias)} == {id(each) for each in training.optimizers()[0].parameters}


def test_a_loop_by_hand_says_that_an_update_may_have_begun(
    program_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The agent sees gradients, and not the updates behind them."""
    weights = torch.ones(3, requires_grad=True)
    for _ in range(9):
        one_step(weights)
    (training,) = torch_signals.trainings.active()
    with monkeypatch.context() as patch:
        patch.setattr(training, "session", SimpleNamespace())
        training.out_of_memory(MemoryError())

    assert "memory ran out perhaps in an update by the loop:" in capsys.readouterr().err


def one_step(weights: Any) -> None:
    (weights * 2).sum().backward()
    with torch.no_grad():
        weights -= 0.1 * weights.grad


@pytest.mark.parametrize(("module", "trainings"), [("train", 1), ("keras.src.trainers", 0)])
def test_keras_on_pytorch_saves_its_fits_and_no_loop_of_the_program(
    program_folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, trainings: int
):
    """A loop that gives its gradients to an optimizer of Keras steps none of PyTorch's."""
    config = SimpleNamespace(dtype_policy=lambda: SimpleNamespace(name="float32"))
    keras = SimpleNamespace(backend=SimpleNamespace(backend=lambda: "torch"), config=config)
    monkeypatch.setitem(sys.modules, "keras", keras)
    weights = torch.ones(3, requires_grad=True)
    step = FunctionType(one_step.__code__, {"__name__": module, "torch": torch})

    for _ in range(9):
        step(weights)

    assert trainings == len(torch_signals.trainings.active())


def test_gradients_that_change_nothing_are_no_training(program_folder: Path):
    """A program that explains a network, or attacks it, computes gradients of its weights too."""
    weights = torch.ones(3, requires_grad=True)
    for _ in range(40):
        (weights * 2).sum().backward()

    assert [] == torch_signals.trainings.active()


def test_two_gradients_of_one_iteration_make_one_step(program_folder: Path):
    """As in a GAN by hand: the places in the text tell them apart."""
    one, two = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    for _ in range(12):
        (one * 2).sum().backward()
        with torch.no_grad():
            one -= 0.1 * one.grad
        (two * 2).sum().backward()
        with torch.no_grad():
            two -= 0.1 * two.grad

    (training,) = torch_signals.trainings.active()
    assert 12 == training.detector.iterations


def test_a_place_that_changes_nothing_ends_no_watch_of_one_that_does(
    soon: Path, capsys: pytest.CaptureFixture[str]
):
    """An attack on the network is evaluated after each epoch; only the training is a training."""
    weights = torch.ones(3, requires_grad=True)
    for _ in range(6):
        for _ in range(5):
            (weights * 2).sum().backward()
            with torch.no_grad():
                weights -= 0.1 * weights.grad
        for _ in range(5):
            (weights * torch.ones(3, requires_grad=True)).sum().backward()

    (training,) = torch_signals.trainings.active()
    assert 30 == training.detector.iterations
    assert "" == capsys.readouterr().err


def test_a_loop_by_hand_begins_again_at_its_first_step(program_folder: Path):
    """As in a notebook whose cell is run a second time."""
    found = gradients.ByHand()
    weights = torch.ones(3, requires_grad=True)
    for _ in range(3):
        found.look([weights], lambda each: float(each.detach().sum()))
        weights.data.add_(1.0)

    assert found.is_known
    assert [3, 0] == [found.unseen_steps(), found.unseen_steps()]
