"""Global random numbers where they lie in memory."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from watchdog_app.agent.loops.raw_random import RawRandom, sketch

DRAWS = {
    "one of Python's": random.random,
    "a normal number of Python's": lambda: random.gauss(0.0, 1.0),
    "one of NumPy's": np.random.rand,
    "a normal number of NumPy's": np.random.randn,
    "a new state of Python's": lambda: random.seed(12),
    "a new state of NumPy's": lambda: np.random.seed(12),
    "as many as the state has words": lambda: [random.getrandbits(32) for _ in range(624)],
}


@pytest.fixture(autouse=True)
def drawn():
    """The generators as they were, and somewhere in the middle."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(5)
    np.random.seed(5)
    random.random()
    np.random.rand(3)
    yield
    random.setstate(python)
    np.random.set_state(numpy)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_whatever_is_drawn_is_seen(draw):
    """By a few words, or by what is in store."""
    raw = RawRandom()
    before = raw.sketch(), raw.spare()

    draw()

    assert before != (raw.sketch(), raw.spare())


def test_nothing_is_seen_where_nothing_was_drawn():
    """Other generators are none of ours."""
    raw = RawRandom()
    before = raw.sketch(), raw.spare()

    random.Random(3).random()
    np.random.default_rng(3).random()

    assert before == (raw.sketch(), raw.spare())


def test_the_words_are_those_that_the_libraries_tell():
    """Python's with their index last, NumPy's with their position, and what is in store."""
    raw = RawRandom()
    random.gauss(0.0, 1.0)
    np.random.randn()

    words, spare = raw.words(), raw.spare()

    _, python, gauss = random.getstate()
    _, keys, position, there, number = np.random.get_state()
    assert (*python, *keys.tolist(), position) == struct.unpack("<1250I", words)
    assert (gauss, there, number) == spare


def test_one_generator_is_told_from_another():
    """As TensorFlow has one of its own."""
    one, other = random.Random(1), random.Random(1)
    same = sketch(one) == sketch(other)
    other.random()

    assert (True, False) == (same, sketch(one) == sketch(other))
