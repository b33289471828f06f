"""Whether a program computes what the rescue's did: layers, loss, optimizer, as configured."""

from __future__ import annotations

import json
import os
import random

import pytest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

keras = pytest.importorskip("keras")

from watchdog_app.agent.fit import program  # noqa: E402

pytestmark = pytest.mark.tensorflow


def model(*, activation="relu", rate=0.2, loss="mse", optimizer=None, weights=None):
    made = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(4, activation=activation, kernel_regularizer="l2"),
            keras.layers.Lambda(lambda x: x * 2),
            keras.layers.Dropout(rate, seed=random.randrange(1000)),
            keras.layers.Dense(1),
        ]
    )
    made.compile(optimizer or keras.optimizers.Adam(1e-3), loss, loss_weights=weights)
    return made


def saved(made):
    return json.loads(json.dumps(program.record(made)))


def mine(truth, guess):
    return truth - guess


def other(truth, guess):
    return guess


def test_an_unchanged_program_differs_in_nothing():
    """Names are numbered on, lambdas lie elsewhere, seeds are drawn anew."""
    before = saved(model(loss=lambda truth, guess: truth))

    assert [] == program.differences(before, program.record(model(loss=lambda t, g: g)))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"activation": "tanh"}, 'a layer Dense\'s activation is "tanh"'),
        ({"rate": 0.7}, "a layer Dropout's rate is 0.7 in the program, 0.2 in the rescue"),
        ({"loss": "mae"}, 'the loss is "mae" in the program, "mse" in the rescue'),
        ({"loss": mine}, 'the loss is "mine"'),
        ({"weights": [0.5]}, "the loss weights is [0.5]"),
        ({"optimizer": "sgd"}, "the optimizer is SGD in the program, Adam in the rescue"),
        ({"optimizer": "weight decay"}, "the optimizer Adam's weight_decay is 0.1"),
    ],
)
def test_what_changed_is_named(change, named):
    """The shapes are equal; only the words tell."""
    if change.get("optimizer") == "weight decay":
        change = {"optimizer": keras.optimizers.Adam(1e-3, weight_decay=0.1)}

    found = program.differences(saved(model()), program.record(model(**change)))

    assert 1 == len(found)
    assert named in found[0]


def test_two_losses_of_the_users_own_are_told_apart_by_name():
    """A function has no other mark that is the same tomorrow."""
    assert program.differences(saved(model(loss=mine)), program.record(model(loss=other)))


def test_another_learning_rate_is_no_other_program():
    """It is a variable, and given back."""
    faster = model(optimizer=keras.optimizers.Adam(1e-1))

    assert [] == program.differences(saved(model()), program.record(faster))


def test_layers_in_another_order_are_the_same_program():
    """Branches that are built in a loop over a set."""

    def branches(order):
        at = keras.Input((4,))
        outputs = [keras.layers.Dense(2, activation=kind)(at) for kind in order]
        return keras.Model(at, outputs)

    before = saved(branches(["relu", "tanh"]))

    assert [] == program.differences(before, program.record(branches(["tanh", "relu"])))


def test_a_model_that_cannot_be_looked_at_is_no_obstacle():
    """Not compiled, layers without a configuration, a rescue from before there was a record."""

    class Odd(keras.layers.Layer):
        def get_config(self):
            raise NotImplementedError

    bare = keras.Sequential([keras.Input((2,)), Odd()])

    assert [] == program.differences(saved(bare), program.record(bare))
    assert [] == program.differences(None, program.record(bare))
    assert [] == program.record(object())["layers"]
