"""Weights, gradients and optimizer state: exact sizes from the objects."""

from __future__ import annotations

import subprocess
import sys

import pytest

from watchdog_app.agent.telemetry import slots
from watchdog_app.agent.telemetry.parts import keras_optimizer_bytes, parts_of_keras, parts_of_torch

# Dense 20 -> 30 -> 7 with biases: 847 weights of 4 bytes.
WEIGHTS = (20 * 30 + 30 + 30 * 7 + 7) * 4


def keras_model():
    import keras

    layers = keras.layers
    return keras.Sequential([layers.Input((20,)), layers.Dense(30), layers.Dense(7)])


def torch_model():
    from torch import nn

    return nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 7))


KERAS = (
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "use_ema": True}),
    ("AdamW", {"gradient_accumulation_steps": 4}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.1, "centered": True}),
    ("Adafactor", {}),
    ("Adagrad", {}),
    ("Adadelta", {}),
    ("Adamax", {}),
    ("Ftrl", {}),
    ("Lion", {}),
    ("Lamb", {}),
    ("Muon", {}),
)


@pytest.mark.tensorflow
def test_slots_of_keras_optimizers_are_known_before_they_are_made():
    """The forecast for an unbuilt optimizer equals its later size to the byte."""
    import keras

    model = keras_model()
    for kind, settings in KERAS:
        optimizer = getattr(keras.optimizers, kind)(**settings)
        foretold = keras_optimizer_bytes(optimizer, model.trainable_variables)
        assert not optimizer.built
        optimizer.build(model.trainable_variables)
        held = sum(each.value.shape.num_elements() * each.value.dtype.size
                   for each in optimizer.variables)  # fmt: skip
        assert held == foretold, (kind, settings)


@pytest.mark.tensorflow
def test_a_keras_model_with_a_frozen_layer_has_gradients_of_the_others_alone():
    """Frozen weights count only as weights."""
    model = keras_model()
    model.layers[0].trainable = False
    model.compile(optimizer="adam", loss="mse")

    parts = parts_of_keras(model)

    trained = (30 * 7 + 7) * 4
    assert (WEIGHTS, trained) == (parts.weights_bytes, parts.gradients_bytes)
    assert 2 * trained + 12 == parts.optimizer_bytes  # plus the counter and the learning rate
    assert "Adam" == parts.optimizer


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("SGD", {}),
        ("SGD", {"momentum": 0.9}),
        ("Adam", {}),
        ("AdamW", {"amsgrad": True}),
        ("NAdam", {}),
        ("RAdam", {}),
        ("Adamax", {}),
        ("Adagrad", {}),
        ("Adadelta", {}),
        ("Adafactor", {}),
        ("RMSprop", {"momentum": 0.1, "centered": True}),
        ("Rprop", {}),
        ("ASGD", {}),
    ],
)
def test_slots_of_torch_optimizers_are_known_before_they_are_made(kind, settings):
    """The forecast before the first step equals the size after it."""
    import torch

    model = torch_model()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-3, **settings)
    foretold = parts_of_torch(model, optimizer)
    model(torch.ones(2, 20)).sum().backward()
    optimizer.step()

    held = sum(
        each.numel() * each.element_size()
        for state in optimizer.state.values()
        for each in state.values()
        if isinstance(each, torch.Tensor)
    )
    assert (WEIGHTS, WEIGHTS, held) == (
        foretold.weights_bytes, foretold.gradients_bytes, foretold.optimizer_bytes,
    )  # fmt: skip
    assert held == parts_of_torch(model, optimizer).optimizer_bytes


@pytest.mark.torch
def test_a_shared_weight_counts_once_and_two_modules_count_both():
    """Tied weights are one tensor; a list of modules is one training."""
    from torch import nn

    first, second = nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False)
    second.weight = first.weight

    assert 400 == parts_of_torch([first, second]).weights_bytes
    assert 800 == parts_of_torch([first, nn.Linear(10, 10, bias=False)]).weights_bytes


class Strange:
    """An optimizer of an unknown class."""

    variables = ()


def test_an_unknown_optimizer_is_unknown_and_not_nothing():
    """The size is None, because a zero would claim that there is no state."""
    assert slots.keras_slot_bytes(Strange(), (3, 3), 4) is None
    assert slots.torch_slot_bytes(Strange(), {}, (3, 3), 4) is None


def test_a_subclass_keeps_what_its_parent_keeps():
    """The agent searches the base classes."""
    adam = type("Adam", (), {"amsgrad": False})
    mine = type("MyAdam", (adam,), {})

    assert 2 * 9 * 4 == slots.keras_slot_bytes(mine(), (3, 3), 4)


def test_counting_imports_no_framework():
    """The agent uses it inside trainings of either framework."""
    program = "import sys, watchdog_app.agent.telemetry.parts; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip

    assert not {"numpy", "torch", "keras", "tensorflow"} & set(loaded)
