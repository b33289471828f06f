"""Weights, gradients and optimizer state: exact sizes from the objects."""

from __future__ import annotations

import sys

import pytest
from support.finished import finished

from watchdog_app.agent.telemetry.parts import parts_of_keras, parts_of_torch

# Dense 20 -> 30 -> 7 with biases: 847 weights of 4 bytes.
WEIGHTS = (20 * 30 + 30 + 30 * 7 + 7) * 4


def keras_model():
    import keras

    layers = keras.layers
    return keras.Sequential([layers.Input((20,)), layers.Dense(30), layers.Dense(7)])


@pytest.mark.tensorflow
def test_a_keras_model_with_a_frozen_layer_has_gradients_of_the_others_alone():
    """Frozen weights count only as weights."""
    model = keras_model()
    model.layers[0].trainable = False
    model.compile(optimizer="adam", loss="mse")
    model.optimizer.build(model.trainable_variables)

    parts = parts_of_keras(model)

    trained = (30 * 7 + 7) * 4
    assert (WEIGHTS, trained) == (parts.weights_bytes, parts.gradients_bytes)
    assert 2 * trained + 12 == parts.optimizer_bytes  # plus the counter and the learning rate
    assert "Adam" == parts.optimizer


@pytest.mark.torch
def test_a_shared_weight_counts_once_and_two_modules_count_both():
    """Tied weights are one tensor; a list of modules is one training."""
    from torch import nn

    first, second = nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False)
    second.weight = first.weight

    assert 400 == parts_of_torch([first, second]).weights_bytes
    assert 800 == parts_of_torch([first, nn.Linear(10, 10, bias=False)]).weights_bytes


def test_counting_imports_no_framework():
    """The agent uses it inside trainings of either framework."""
    program = "import sys, watchdog_app.agent.telemetry.parts; print(*sys.modules)"
    loaded = finished([sys.executable, "-c", program], check=True).stdout.split()

    assert not {"numpy", "torch", "keras", "tensorflow"} & set(loaded)
