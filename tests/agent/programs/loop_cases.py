"""
Custom training loops of different kinds; the roles are those of fit_cases.py.

    loop_cases.py ROLE FOLDER [CASE...]
"""

import hashlib
import os
import random
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["WATCHDOG_AGENT_STRICT"] = "1"

import keras
import numpy as np
import tensorflow as tf

from watchdog_app.agent.tensorflow import Rescue

ROWS, BATCH, EPOCHS = 80, 8, 4
layers = keras.layers
inputs = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
targets = inputs.sum(axis=1, keepdims=True)


class Left(Exception):
    """Simulates the kill: the loop ends at once."""


class Run:
    """Records a case's results and interrupts it at its position."""

    def __init__(self, name, role, folder, place):
        self.role, self.place = role, place
        self.rescues = f"{folder}/{name}.{'none' if role == 'reference' else 'rescues'}"
        self.file = open(f"{folder}/{name}.{role}.txt", "w")
        self.rescue = None

    def watch(self, **state):
        self.rescue = Rescue(self.rescues, **state)
        return self.rescue

    def note(self, *values):
        shown = [float(v).hex() if not isinstance(v, (str, int)) else str(v) for v in values]
        self.file.write(" ".join(shown) + "\n")

    def maybe_leave(self):
        if self.role == "interrupted" and self.rescue.step_number == self.place:
            assert self.rescue.save() is not None
            raise Left


def network():
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(16, activation="relu"),
            layers.Dropout(0.3, seed=2),
            layers.Dense(1),
        ]
    )


def pipeline(seed=5):
    source = tf.data.Dataset.from_tensor_slices((inputs, targets))
    return source.shuffle(30, seed=seed, reshuffle_each_iteration=True).batch(BATCH)


def stepper(model, optimizer, mean):
    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        found = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
        mean.update_state(loss)
        return loss

    return step


class Grown(layers.Layer):
    """Makes its layers when it is built."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[1:], initializer="ones")
        self.inner = [layers.Dense(shape[-1]) for _ in range(2)]

    def call(self, x):
        return self.inner[1](self.inner[0](x * self.scale))


class Unbuilt(keras.Model):
    """Has no variables before its first call, as the models of most tutorials."""

    def __init__(self):
        super().__init__()
        self.grown, self.normalized = Grown(), layers.BatchNormalization()
        self.attention = layers.MultiHeadAttention(1, 2)
        self.ends = keras.Sequential([layers.Dropout(0.3, seed=2), layers.Dense(1)])

    def call(self, x, training=False):
        x = self.normalized(self.grown(x), training=training)[:, None]
        return self.ends(self.attention(x, x)[:, 0], training=training)


def unbuilt(run):
    """A model that its first step builds."""
    return tf_data(run, Unbuilt())


def tf_data(run, model=None):
    """Epochs over a reshuffling pipeline, with a metric reset and a validation in each."""
    model, optimizer, mean = model or network(), keras.optimizers.Adam(1e-2), keras.metrics.Mean()
    history = {"loss": []}
    dataset, held_out = pipeline(), pipeline(8)
    rescue = run.watch(model=model, optimizer=optimizer, mean=mean, history=history)
    step = stepper(model, optimizer, mean)
    for epoch in rescue.epochs(EPOCHS):
        mean.reset_state()
        for x, y in rescue.data(dataset):
            run.note(epoch, rescue.step_number, step(x, y))
            rescue.step()
            run.maybe_leave()
        judged = [tf.reduce_mean((model(x) - y) ** 2) for x, y in rescue.data(held_out)]
        run.note("epoch", epoch, mean.result(), sum(judged))
        history["loss"].append(float(mean.result()))
    run.note("history", str([value.hex() for value in history["loss"]]))
    return model.variables + optimizer.variables


def generators(run):
    """All generators: NumPy's, Python's and TensorFlow's, global and local."""
    model, optimizer, mean = (
        network(),
        keras.optimizers.SGD(1e-2, momentum=0.9),
        keras.metrics.Mean(),
    )
    own, old, plain = np.random.default_rng(3), np.random.RandomState(4), random.Random(5)
    tensor_flow = tf.random.Generator.from_seed(6)
    weights = np.ones(3, "float32")
    rescue = run.watch(
        model=model,
        optimizer=optimizer,
        own=own,
        old=old,
        plain=plain,
        tf_own=tensor_flow,
        w=weights,
    )
    step = stepper(model, optimizer, mean)
    with rescue:
        while rescue.step_number < 24:
            rows = own.integers(0, ROWS, BATCH)
            noise = tensor_flow.normal((BATCH, 1)) + tf.random.normal((BATCH, 1))
            weights[:] += np.random.normal(size=3) + old.normal() + plain.random() + random.random()
            run.note(rescue.step_number, step(inputs[rows], targets[rows] + noise), *weights)
            rescue.step()
            run.maybe_leave()
    return model.variables + optimizer.variables


def zipped(run):
    """Two zipped data sets, created in each epoch, and a generator that is created once."""
    model, optimizer, mean = network(), keras.optimizers.Adam(1e-2), keras.metrics.Mean()

    def endless():
        own = np.random.default_rng(8)
        while True:
            yield own.normal(size=(BATCH, 1)).astype("float32")

    noise = endless()
    rescue = run.watch(model=model, optimizer=optimizer, mean=mean)
    step = stepper(model, optimizer, mean)
    for epoch in rescue.epochs(EPOCHS):
        pairs = zip(rescue.data(pipeline(epoch)), rescue.data(noise), strict=False)
        for (x, y), extra in pairs:
            run.note(epoch, rescue.step_number, step(x, y + extra[: len(y)]))
            rescue.step()
            run.maybe_leave()
        run.note("epoch", epoch, mean.result())
    return model.variables + optimizer.variables


class Counter:
    """User-defined state, with arrays."""

    def __init__(self):
        self.seen, self.sums = 0, np.zeros(4)

    def state_dict(self):
        return {"seen": self.seen, "nested": [{"sums": self.sums}]}

    def load_state_dict(self, state):
        self.seen, self.sums = state["seen"], state["nested"][0]["sums"].copy()


def module(run):
    """A tf.Module with plain variables, a checkpointable group, and a user-defined object."""

    class Line(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(tf.ones((4, 1)))
            self.b = tf.Variable(0.0)
            self.half = tf.Variable(tf.zeros(3, tf.bfloat16))

    line, counter = Line(), Counter()
    group = tf.train.Checkpoint(rate=tf.Variable(0.1), steps=tf.Variable(0, dtype=tf.int64))
    dataset = pipeline()
    rescue = run.watch(line=line, group=group, counter=counter)
    for epoch in rescue.epochs(EPOCHS):
        for x, y in rescue.data(dataset):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ line.w + line.b - y) ** 2)
            for variable, slope in zip(
                (line.w, line.b), tape.gradient(loss, (line.w, line.b)), strict=True
            ):
                variable.assign_sub(group.rate * slope)
            line.half.assign_add(tf.cast(tf.fill(3, loss), tf.bfloat16))
            group.rate.assign(group.rate * 0.97)
            group.steps.assign_add(1)
            counter.seen += 1
            counter.sums = counter.sums + x.numpy().sum(axis=0)
            run.note(epoch, counter.seen, loss, *counter.sums)
            rescue.step(loss)
            run.maybe_leave()
    return [line.w, line.b, line.half, group.rate, group.steps]


class Loader:
    """Draws the order of each pass from its own generator."""

    def __init__(self):
        self.draw = np.random.default_rng(11)
        self.order = np.arange(ROWS)

    def __iter__(self):
        self.draw.shuffle(self.order)  # shuffles the previous order
        order = self.order
        for first in range(0, ROWS, BATCH):
            rows = order[first : first + BATCH]
            yield inputs[rows], targets[rows]


def own_order(run):
    """
    Orders drawn at the start of an epoch and by the iterated object, which each epoch creates.
    """
    model, optimizer, mean = network(), keras.optimizers.Adam(1e-2), keras.metrics.Mean()
    named, unnamed, loader = np.random.default_rng(5), np.random.default_rng(6), Loader()
    shuffled = pipeline()

    def generated():
        for row in unnamed.permutation(ROWS // BATCH):
            yield int(row)

    rescue = run.watch(model=model, optimizer=optimizer, mean=mean, named=named)
    step = stepper(model, optimizer, mean)
    for epoch in rescue.epochs(EPOCHS):
        order, other = named.permutation(ROWS), np.random.permutation(ROWS)
        sources = (range(0, ROWS, BATCH), shuffled.take(ROWS // BATCH), loader, generated())
        for first, (x, y), (more, _), row in zip(*map(rescue.data, sources), strict=True):
            rows = (order[first : first + BATCH] + other[first : first + BATCH] + row) % ROWS
            run.note(epoch, rescue.step_number, step(x + more + inputs[rows], y + targets[rows]))
            rescue.step()
            run.maybe_leave()
    return model.variables + optimizer.variables


CASES = {
    "own_order": (own_order, 15),
    "tf_data": (tf_data, 23),
    "generators": (generators, 9),
    "zipped": (zipped, 16),
    "module": (module, 10),
    "unbuilt": (unbuilt, 13),
}
CASES["tf_data_end_of_epoch"] = (tf_data, 20)


def main():
    role = os.environ["ROLE"]
    folder, *names = sys.argv[1:]
    tf.config.experimental.enable_op_determinism()
    for name in names or CASES:
        body, place = CASES[name]
        keras.utils.clear_session()
        keras.utils.set_random_seed(1)
        run = Run(name, role, folder, place)
        try:
            kept = body(run)
        except Left:
            run.file.close()
            continue
        found = hashlib.sha256()
        for variable in kept:
            found.update(np.ascontiguousarray(variable.numpy()).tobytes())
        run.note("state", found.hexdigest())
        run.file.close()


if __name__ == "__main__":
    main()
