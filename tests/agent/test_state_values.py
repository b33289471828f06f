"""A program's state is restored with its types, or refused with a reason."""

from __future__ import annotations

import datetime
import json
from collections import defaultdict, namedtuple
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from watchdog_app.agent.adapters.keras import callbacks as callback_state
from watchdog_app.agent.adapters.passes import Passes
from watchdog_app.agent.adapters.tensorflow_state import LoopState
from watchdog_app.agent.state import matching, values

pytestmark = pytest.mark.tensorflow


class Pair(NamedTuple):
    one: object
    other: object


def round_trip(value):
    """Convert to JSON plus arrays and back."""
    arrays = {}
    encoded = json.loads(json.dumps(values.encode_arrays(value, "state", arrays)))
    return values.decode_arrays(encoded, arrays.__getitem__)


@pytest.mark.parametrize(
    "value",
    [
        {0: 1, 1: {(2, "a"): 0.5}, None: True},
        {"nested": (1, [2, (3,)], {4, 5}), "frozen": frozenset({1})},
        {"__array__": "a key of the user's own"},
        {"__pairs__": []},
        [defaultdict(list, a=[1]), {"of": defaultdict(float, {1: 0.5})}],
        [Pair(1, (2,)), namedtuple("Kept", "one two")(3, [4])],  # the second is in no module
        [np.array([None, (1, "a")], object)],
        [[0.1, -0.0, float("inf")] * 400, [1, 0.5] * 600],
        [np.float32(0.1), np.int64(2**60), np.bool_(True), np.float64(0.1)],
    ],
)
def test_a_value_comes_back_with_its_types(value):
    """
    Examples are integer keys, tuples, sets, NumPy scalars, and keys that look like the format's
    marks.
    """
    again = round_trip(value)

    assert repr(value) == repr(again)


@pytest.mark.parametrize("damaged", [[[10**15], [1]], [[2, 2], [1]], [[-1, -2], [1, 2, 3]]])
def test_an_array_of_objects_has_the_items_of_its_shape(damaged):
    """A damaged rescue could otherwise take all memory, or fill the array with None."""
    with pytest.raises(ValueError, match="shape"):
        values.decode_arrays({"__objects__": damaged}, {}.__getitem__)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool", ">f8"])
def test_an_array_stays_out_of_the_json_and_comes_back(dtype):
    """The array object is passed on with its type and values."""
    value = {"ema": np.array([[0, 1], [1, 0]], dtype)}
    arrays = {}

    encoded = values.encode_arrays(value, "state", arrays)
    again = values.decode_arrays(encoded, arrays.__getitem__)

    assert {"ema": {"__array__": "state/ema"}} == encoded
    assert value["ema"].tolist() == again["ema"].tolist()
    assert value["ema"].dtype.name == again["ema"].dtype.name


def test_names_that_meet_keep_their_arrays_apart():
    """The key "a/b" exists next to the key "b" in the dict "a"."""
    again = round_trip({"a/b": np.zeros(1), "a": {"b": np.ones(1)}})

    assert (0.0, 1.0) == (again["a/b"][0], again["a"]["b"][0])


def test_a_tensor_in_a_dict_comes_back_as_a_tensor():
    """An array would lack `numpy()`."""
    assert 2.0 == round_trip({"loss": tf.constant(2.0)})["loss"].numpy()


@pytest.mark.parametrize(
    ("value", "word"),
    [(datetime.datetime(2020, 1, 1), "datetime"), (tf.Variable(1.0), "variable")],
)
def test_what_cannot_be_saved_is_refused_at_once(value, word):
    """Rescue(...) names the position and the type before the training starts."""
    with pytest.raises(TypeError, match=f"st/started is a {word}"):
        LoopState({"st": {"started": value}}, dict, Passes(str))


class Failing(keras.callbacks.Callback):
    def state_dict(self):
        return {"value": self.not_there_yet}

    def load_state_dict(self, state):
        pass


class Averaging(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.ema = np.zeros(3, "float32")

    def state_dict(self):
        return {"ema": self.ema}

    def load_state_dict(self, state):
        self.ema = state["ema"]


def test_a_callback_that_fails_costs_its_own_memory_alone():
    """The rescue lists it as lost; the arrays of the other callback are saved as tensors."""
    good = Averaging()

    states, arrays, lost = callback_state.capture([Failing(), good])
    good.ema = None
    callback_state.restore([Failing(), good], json.loads(json.dumps(states)), arrays.__getitem__)

    assert ["Averaging"] == [state["callback"] for state in states]
    assert ["callback/Averaging/state/ema"] == list(arrays)
    assert 1 == len(lost)
    assert "not_there_yet" in lost[0]
    assert [0, 0, 0] == good.ema.tolist()
    assert "float32" == good.ema.dtype.name


class Best(keras.callbacks.Callback):
    """As in Keras's guide to callbacks."""

    best_weights = None


def test_the_weights_that_a_callback_keeps_come_back():
    kept, fresh = Best(), Best()
    before = callback_state.baseline(callback_state.unknown([kept]))
    kept.best_weights = [np.ones(2, "float32"), np.zeros((1, 2))]
    kept.weights_of_classes = [1.0, 2.0]  # no arrays

    states, arrays, _lost = callback_state.capture([kept])
    callback_state.restore([fresh], json.loads(json.dumps(states)), arrays.__getitem__)

    assert [[1, 1], [[0, 0]]] == [each.tolist() for each in fresh.best_weights]
    assert fresh.best_weights[0] is not kept.best_weights[0]
    (changed,) = callback_state.changed_since(before, callback_state.unknown([kept]), 1, {})
    assert "keeps in weights_of_classes (give" in changed


@pytest.mark.parametrize(
    ("saved", "now", "expected"),
    [
        (["m/tower_1/k", "m/tower_2/k"], ["m/tower_2/k", "m/tower_1/k"], [1, 0]),
        (["m/dense/k", "m/dense_1/k"], ["m/dense_1/k", "m/dense_2/k"], [0, 1]),
        (
            ["m/t_1/k", "m/t_2/k", "m/dense_3/k"],
            ["m/t_2/k", "m/t_1/k", "m/dense_9/k"],
            [1, 0, 2],
        ),
    ],
)
def test_numbers_of_the_user_decide_and_numbers_of_keras_do_not(saved, now, expected):
    """Explicit names match in any order, automatic names by their order."""
    rows = [(name, "float32", (2,)) for name in saved]

    pairs = matching._pairs(rows, [(name, "float32", (2,)) for name in now])

    assert [saved[index] for index in expected] == pairs
