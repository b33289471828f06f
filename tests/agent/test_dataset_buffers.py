"""The future size of a tf.data pipeline's buffers, read from its structure. Real TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from daemon_stand_in import StandIn
from support.finished import finished

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

IMAGE = 32 * 32 * 3 * 4 + 180  # with the overhead of an allocation
LABEL = 8 + 180


@pytest.fixture(scope="module")
def tf():
    return pytest.importorskip("tensorflow")


def images(tf, count=1000):
    """Return elements as a map creates them: an image and a label."""

    def picture(index):
        return tf.zeros((32, 32, 3)) + tf.cast(index, tf.float32), index

    return tf.data.Dataset.range(count).map(picture)


# name: pipeline, bytes, words, whether the real size may be smaller
CASES = {
    "shuffle": (
        lambda tf: images(tf).shuffle(400),
        400 * (IMAGE + LABEL),
        "the shuffle buffer of 400 examples",
        False,
    ),
    "shuffle more than there is": (
        lambda tf: images(tf).shuffle(50_000).batch(8),
        1000 * (IMAGE + LABEL),
        "the shuffle buffer of 1,000 examples",
        False,
    ),
    "shuffle all of a repeated set": (
        lambda tf: images(tf).repeat().shuffle(5000),
        5000 * (IMAGE + LABEL),
        "the shuffle buffer of 5,000 examples",
        False,
    ),
    "shuffle of unknown length": (
        lambda tf: images(tf).filter(lambda image, label: label > 3).shuffle(400),
        400 * (IMAGE + LABEL),
        "the shuffle buffer of 400 examples",
        True,
    ),
    "shuffle before map counts what is shuffled": (
        lambda tf: (
            tf.data.Dataset.range(1000).shuffle(1000).map(lambda index: tf.zeros((512, 512)))
        ),
        1000 * LABEL,
        "the shuffle buffer of 1,000 examples",
        False,
    ),
    "shuffle of batches": (
        lambda tf: images(tf).batch(10).shuffle(50),
        50 * (10 * 32 * 32 * 3 * 4 + 180 + 10 * 8 + 180),
        "the shuffle buffer of 50 batches",
        False,
    ),
    "cache": (
        lambda tf: images(tf).cache().batch(10),
        1000 * (IMAGE + LABEL),
        "the cache in memory of 1,000 examples",
        False,
    ),
    "shuffle of what a cache holds anyway": (
        lambda tf: images(tf).cache().shuffle(500).batch(10).prefetch(-1),
        1000 * (IMAGE + LABEL),
        "the shuffle buffer of 500 examples and the cache in memory",
        False,
    ),
    "cache of which a part is read": (
        lambda tf: images(tf).cache().take(10),
        1000 * (IMAGE + LABEL),
        "the cache in memory of 1,000 examples",
        True,
    ),
    "zip": (
        lambda tf: tf.data.Dataset.zip((images(tf).shuffle(300), images(tf).shuffle(100))),
        400 * (IMAGE + LABEL),
        "the shuffle buffer of 300 examples and the shuffle buffer",
        False,
    ),
    "one after the other": (
        lambda tf: images(tf).shuffle(300).concatenate(images(tf).shuffle(300)),
        600 * (IMAGE + LABEL),
        "the shuffle buffer of 300 examples and the shuffle buffer",
        True,
    ),
    "interleaved, shuffled behind": (
        lambda tf: tf.data.Dataset.range(4).interleave(lambda index: images(tf, 100)).shuffle(300),
        300 * (IMAGE + LABEL),
        "the shuffle buffer of 300 examples",
        True,
    ),
    "prefetch": (
        lambda tf: images(tf).batch(10).prefetch(7),
        7 * (10 * 32 * 32 * 3 * 4 + 180 + 10 * 8 + 180),
        "the prefetch buffer of 7 batches",
        False,
    ),
}
UNKNOWN = {
    "cache on disk": lambda tf: images(tf).cache("/nowhere/cache"),
    "strings": lambda tf: tf.data.Dataset.from_tensor_slices(["a", "b"]).shuffle(2),
    "shapes that nobody knows": lambda tf: (
        tf.data.Dataset.range(100).map(lambda index: tf.zeros((index, 3))).shuffle(100)
    ),
    "ragged": lambda tf: tf.data.Dataset.from_tensor_slices(
        tf.ragged.constant([[1.0], [2.0, 3.0]])
    ).shuffle(2),
    "nothing is held": lambda tf: images(tf).batch(10),
    "no pipeline": lambda tf: [1, 2, 3],
}


@pytest.mark.parametrize("name", CASES)
def test_the_structure_of_a_pipeline_tells_what_it_will_hold(tf, name):
    """The sizes apply at each buffer's position; buffers that share tensors count once."""
    from watchdog_app.agent.telemetry.dataset_buffers import growth

    make, bytes_, what, at_most = CASES[name]

    assert (bytes_, what, at_most) == growth(make(tf))


@pytest.mark.parametrize("name", UNKNOWN)
def test_where_nothing_is_known_nothing_is_foretold(tf, name):
    """The size is unknown, or the pipeline has no buffer."""
    from watchdog_app.agent.telemetry.dataset_buffers import growth

    assert growth(UNKNOWN[name](tf)) is None


def test_looking_at_a_pipeline_draws_nothing_from_it(tf):
    """Reading the structure must not call the generator."""
    from watchdog_app.agent.telemetry.dataset_buffers import growth

    drawn = []

    def numbers():
        drawn.append(1)
        yield 1.0

    spec = tf.TensorSpec((1000,), tf.float32)
    source = tf.data.Dataset.from_generator(numbers, output_signature=spec)

    assert growth(source.shuffle(10)).at_most
    assert [] == drawn


def test_a_long_chain_is_looked_at_in_bounds(tf):
    """A loop over files can create many stages; the search is bounded and not recursive."""
    from watchdog_app.agent.telemetry.dataset_buffers import growth

    chain = tf.data.Dataset.range(2)
    for _ in range(1200):
        chain = chain.concatenate(tf.data.Dataset.range(1))

    assert 10 * LABEL == growth(chain.shuffle(10)).bytes


def test_only_the_first_pipeline_of_a_process_is_certain_to_grow_it(tf, monkeypatch):
    """Later pipelines may reuse freed memory."""
    from watchdog_app.agent.telemetry import dataset_buffers

    monkeypatch.setattr(dataset_buffers, "_filled_bytes", 0)
    large = images(tf, 10_000).shuffle(10_000)
    first, later = (dataset_buffers.announced_growth(large) for _ in range(2))

    assert (False, True) == (first.at_most, later.at_most)
    assert first.bytes == later.bytes
    assert dataset_buffers.announced_growth(images(tf).shuffle(10)) is None


def test_a_much_larger_pipeline_later_is_certain_for_what_goes_beyond(tf, monkeypatch):
    """A later pipeline reuses at most what the first one freed."""
    from watchdog_app.agent.telemetry import dataset_buffers

    monkeypatch.setattr(dataset_buffers, "_filled_bytes", 0)
    small = dataset_buffers.announced_growth(images(tf, 20_000).shuffle(6000))
    large = dataset_buffers.announced_growth(images(tf, 20_000).shuffle(20_000))

    assert (False, False) == (small.at_most, large.at_most)
    assert 14_000 * (IMAGE + LABEL) == large.bytes


LOOP = """
import os, sys, time
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras
import tensorflow as tf
from watchdog_app.agent.tensorflow import Rescue
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
def ready(index):
    return tf.zeros((1_000_000,)) + tf.cast(index, tf.float32)
data = tf.data.Dataset.range(20).map(ready).shuffle(20)
with Rescue(sys.argv[1], model=model) as rescue:
    for epoch in rescue.epochs(1):
        for _ in rescue.data(data):
            rescue.step()
            time.sleep(0.1)
"""


def test_a_loop_announces_what_its_data_set_will_hold(tmp_path):
    """The first pass of a process is certain."""
    daemon = StandIn(str(tmp_path / "run" / "daemon.sock"))
    try:
        subprocess.run(
            [sys.executable, "-c", LOOP, str(tmp_path / "rescues")],
            env={**os.environ, "WATCHDOG_RUNTIME_DIR": str(tmp_path / "run")},
            check=True,
            timeout=200,
        )
        daemon.wait_for("agent.bye")
        report = daemon.last("agent.report")
    finally:
        daemon.close()

    assert 20 * (4_000_000 + 180) == report["expected_bytes"]
    assert "the shuffle buffer of 20 examples" == report["expected_for"]
    assert report["expected_at_most"] is False
    assert "expected_mono_s" not in report


MEASURE = """
import os, sys
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import tensorflow as tf
from watchdog_app.agent.telemetry.dataset_buffers import growth
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
next(iter(tf.data.Dataset.range(9).map(lambda i: tf.zeros(3)).shuffle(9).batch(3)))
def picture(index):
    return tf.zeros((64, 64)) + tf.cast(index, tf.float32), index
filled = tf.data.Dataset.range(10_000).map(picture).shuffle(10_000).batch(8)
before = rss()
next(iter(filled))
print((rss() - before) / growth(filled).bytes)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_a_real_buffer_grows_by_what_was_foretold():
    """
    The estimate of 170 MB is right within a tenth; TensorFlow adds its own memory and reuses old
    memory.
    """
    shares = []
    while not any(0.9 < share < 1.15 for share in shares) and len(shares) < 5:
        done = finished([sys.executable, "-c", MEASURE], check=True)
        shares.append(float(done.stdout))

    assert 0.9 < shares[-1] < 1.15, shares
