"""
Loops that the agent finds: which ones it watches, where their steps end, and the cost.

Prints one JSON object. Run it in an empty folder.
"""

from __future__ import annotations

import gc
import json
import math
import os
import queue
import sys
import time
import weakref

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
from watchdog_app.agent import hook

hook.switch_on()
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from watchdog_app.agent.found import tensorflow_signals as signals  # noqa: E402
from watchdog_app.agent.runtime.link import CheckpointRequest  # noqa: E402

x = np.random.default_rng(1).normal(size=(32, 4)).astype("float32")
result = {}


def network():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(1)])


def step(model, optimizer, batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(batch) ** 2)
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return loss


def loop(training_step, batches, ask_at=None):
    """
    Run a loop long enough for the agent to find; return the step of the requested rescue, if any.
    """
    for count, batch in enumerate(batches):
        if count == 2:
            time.sleep(0.55)
        training = signals.trainings.current()
        if training and training.session:  # its boundaries are seen from the request on
            training.session._next_report = math.inf
        if count == ask_at:
            now = time.monotonic()
            training.session.link.pending_request = CheckpointRequest("1", "a test", now, 60.0)
        training_step(batch)
    session = training and training.session
    return session and session.saved and session.saved.step


def fit_beside():
    """Run fits and train_on_batch, also eager; none counts as a loop."""
    model = network()
    model.compile("adam", "mse", run_eagerly=True)
    model.fit(x, x[:, :1], 8, 2, verbose=0)
    for _ in range(3):
        model.train_on_batch(x[:8], x[:8, :1])
    model.compile("adam", "mse")
    model.fit(x, x[:, :1], 8, 2, verbose=0)
    return len(signals.trainings.active())


def arrays():
    """
    Without tf.data a step ends at the next tape.

    Reading a data set earlier does not count as a batch.
    """
    model, optimizer = network(), keras.optimizers.Adam()
    held = iter(tf.data.Dataset.from_tensor_slices(x).batch(8))
    next(held)
    return loop(lambda batch: step(model, optimizer, batch), [x[:8]] * 12, 8)


def nested():
    """A step that was traced alone, and is then part of an epoch in one function."""
    model, optimizer = network(), keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    inner = tf.function(lambda batch: step(model, optimizer, batch))
    for _ in range(3):
        inner(x[:8])

    @tf.function
    def epoch(batch):
        for _ in range(4):
            inner(batch)

    return loop(epoch, [tf.constant(x[:8])] * 12, 8)


def own_rescue():
    """The agent ignores a loop with its own Rescue."""
    from watchdog_app.agent.tensorflow import Rescue

    model, optimizer = network(), keras.optimizers.Adam()
    rescue = Rescue("own", model=model, optimizer=optimizer)
    for _ in rescue.epochs(2):
        for batch in rescue.data(tf.data.Dataset.from_tensor_slices(x).batch(8)):
            step(model, optimizer, batch)
            rescue.step()
    training = signals.trainings.current()
    return training is not None and training.session is not None


def kept_alive():
    """The agent must not keep a model alive."""
    model, optimizer = network(), keras.optimizers.Adam()
    data = tf.data.Dataset.from_tensor_slices(x).batch(8).repeat(2)
    loop(lambda batch: step(model, optimizer, batch), data)
    return signals.trainings.current().session is not None, weakref.ref(model)


def nameless():
    """The agent reports once what no variable name reaches."""

    hidden = queue.Queue()
    hidden.put((network(), keras.optimizers.Adam()))

    def training_step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(hidden.queue[0][0](batch) ** 2)
        hidden.queue[0][1].apply(
            tape.gradient(loss, hidden.queue[0][0].trainable_variables),
            hidden.queue[0][0].trainable_variables,
        )

    loop(training_step, [x[:8]] * 5)
    return signals.trainings.current() is not None


def seconds(function, count=20_000):
    best = 1.0
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(count):
            function()
        best = min(best, (time.perf_counter() - began) / count)
    return best


def cost():
    """Return the added cost of each wrapper and of a step's boundary, in µs."""
    model, optimizer = network(), keras.optimizers.Adam()
    data = tf.data.Dataset.from_tensor_slices(x).batch(8).repeat(2)
    loop(lambda batch: step(model, optimizer, batch), data)

    class Nothing:
        def __call__(self):
            pass

    nothing = Nothing()
    plain = seconds(nothing)
    call = signals._wrap_call(Nothing.__call__)
    frame = sys._getframe()

    def whole():
        signals.trainings.stepped(optimizer, frame)
        signals.trainings.about_to_draw()

    figures = {"call": seconds(lambda: call(nothing)) - plain, "boundary": seconds(whole)}
    return {name: taken * 1e6 for name, taken in figures.items()}


names = sys.argv[1:] or [
    "fit_beside", "arrays", "nested", "own_rescue", "kept_alive", "nameless", "cost"
]  # fmt: skip
for name in names:
    result[name] = globals()[name]()
    print(name, result[name], file=sys.stderr)
if "kept_alive" in result:
    gc.collect()
    opened, model_ref = result["kept_alive"]
    result["kept_alive"] = [opened, model_ref() is None]
print(json.dumps(result))
