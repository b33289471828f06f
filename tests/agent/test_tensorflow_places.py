"""Where TensorFlow's variables lie is what TensorFlow itself says, also after they have moved."""

from __future__ import annotations

import os

import pytest

tf = pytest.importorskip("tensorflow")

import numpy as np  # noqa: E402

from watchdog_app.agent.published import tensorflow_places  # noqa: E402
from watchdog_app.agent.published.tensorflow_places import (  # noqa: E402
    Buffers,
    Moving,
    Places,
    Unknown,
    address_of,
)
from watchdog_app.airbag.foreign_memory import ForeignMemory  # noqa: E402

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(120)]
SHAPES = [(64,), (7, 33), (1024, 3), (2,)]


@pytest.fixture
def variables():
    """Of several shapes and types."""
    kinds = [tf.float32, tf.float64, tf.int64, tf.float16]
    with tf.device("CPU:0"):
        found = [
            tf.Variable(tf.cast(tf.fill(shape, place + 1), kind))
            for place, (shape, kind) in enumerate(zip(SHAPES, kinds, strict=True))
        ]
        for each in found:
            each.assign_add(tf.ones_like(each))  # gives it a buffer of its own
    return found


def test_each_variable_is_found_as_often_as_it_moves(variables):
    """Its address is TensorFlow's, and its bytes are its value; the words that say so stay."""
    places = Places(variables)
    buffers = Buffers(places)
    elements = Moving([each.numpy().nbytes for each in variables])
    seen = set()
    for _ in range(5):
        addresses = buffers.addresses()
        assert [address_of(each.read_value()) for each in variables] == addresses.tolist()
        expected = b"".join(each.numpy().tobytes() for each in variables)
        assert expected == bytes(elements.take(addresses))
        seen.add(int(addresses[0]))
        kept = [each.read_value() for each in variables]  # so that no buffer is used again
        for each in variables:
            each.assign(each + tf.ones_like(each))
        del kept

    assert len(seen) > 1, "none of them has moved, so nothing was shown"
    assert Places(variables).words == places.words


def test_one_that_is_gone_is_an_error_and_no_crash():
    """Reading is done by the kernel, which refuses what is no memory."""
    with pytest.raises(OSError, match=r".+"):
        Moving([8]).take(np.array([4096], np.uint64))


@pytest.mark.parametrize("things", [[], [tf.constant([1.0, 2.0])], [object()]])
def test_what_is_no_variable_has_no_place(things):
    """Whoever asks tells its steps whole then."""
    with pytest.raises(Unknown):
        Places(things)


def test_pointers_into_nothing_lead_nowhere():
    """A way is looked for by following words that may be anything."""
    with ForeignMemory(os.getpid()) as memory:
        assert () == tensorflow_places._words(memory, 0, 4)
        assert () == tensorflow_places._words(memory, 2**47, 4)
        assert 0 == tensorflow_places._follow(memory, 8, (0, 8))
        with pytest.raises(Unknown):
            tensorflow_places._word(memory, 4096)
