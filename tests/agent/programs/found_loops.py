"""
Loops without a Rescue, killed in the middle, and the same loops with the printed lines.

    found_loops.py ROLE CASE ...: "reference", "killed" (the agent is on), "resumed" (the lines)
"""

from __future__ import annotations

import os
import signal
import sys
import time
import zlib

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
ROLE, *CASES = os.environ["ROLE"].split()  # not arguments: all roles are runs of one program
sys.argv[1:] = CASES  # a rescue folder for each case
if ROLE == "killed":
    from watchdog_app.agent import hook

    hook.switch_on()

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from watchdog_app.agent.found.tensorflow_signals import trainings  # noqa: E402
from watchdog_app.agent.runtime.link import CheckpointRequest  # noqa: E402

EPOCHS, ASK_AFTER = 4, 13
done = 0


def note(*values):
    """Record a step's result; the process dies once a rescue exists."""
    global done
    done += 1
    if ROLE == "killed":
        training = trainings.current()
        if done == 3:
            time.sleep(0.6)  # the agent does not watch a training that ends at once
        elif done == ASK_AFTER:
            now = time.monotonic()
            training.session.link.pending_request = CheckpointRequest(
                "1", "memory is short", now, 60.0
            )
        elif done > ASK_AFTER and training.session.saved is not None:
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    print(*(float(value).hex() for value in values))


def data():
    x = np.random.default_rng(1).normal(size=(40, 4)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(40, seed=5).batch(8)


def network():
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(6), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    )


def resume(**state):
    from watchdog_app.agent.tensorflow import Rescue

    return Rescue(os.environ[f"PLACE_{case}"], **state)


def eager():
    """Metrics and average after `apply`; a validation on its own data; global NumPy numbers."""
    model, optimizer = (
        network(),
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 50)),
    )
    mean, average = keras.metrics.Mean(), tf.Variable(0.0)
    dataset, held_out, history = data(), data().take(2), []
    rescue = None
    if ROLE == "resumed":
        rescue = resume(model=model, optimizer=optimizer, mean=mean, average=average)
    for _epoch in rescue.epochs(EPOCHS) if rescue else range(EPOCHS):
        of_epoch, called = keras.metrics.Mean(), keras.metrics.MeanSquaredError()
        if rescue:
            of_epoch, called = rescue.variables(of_epoch=of_epoch, called=called)
        for x, y in rescue.data(dataset) if rescue else dataset:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            slopes = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(slopes, model.trainable_variables, strict=False))
            mean.update_state(loss)
            of_epoch.update_state(loss)
            called(y, model(x))
            average.assign(0.9 * average + 0.1 * loss)
            history.append(loss)
            sums = mean.result(), of_epoch.result(), called.result()
            note(loss, *sums, average, np.random.normal())
            if rescue:
                rescue.step(loss)
        for x, _ in held_out:
            model(x)
    return model.variables + optimizer.variables


class Trainer:
    """The program's own trainer class, whose step is a tf.function."""

    def __init__(self):
        self.net = network()
        self.opt = keras.optimizers.SGD(0.05, momentum=0.9)
        self.seen = keras.metrics.Mean()
        self.seeds = keras.random.SeedGenerator(4)  # of no layer

    @tf.function
    def step(self, x, y):
        tf.random.normal(())
        x += keras.random.normal(tf.shape(x), stddev=0.1, seed=self.seeds)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.net(x, training=True) - y) ** 2)
        self.opt.apply_gradients(
            zip(
                tape.gradient(loss, self.net.trainable_variables),
                self.net.trainable_variables,
                strict=False,
            )
        )
        self.seen.update_state(loss)
        return loss

    def fit(self, dataset):
        rescue = None
        if ROLE == "resumed":
            rescue = resume(net=self.net, opt=self.opt, seen=self.seen, seeds=self.seeds)
        for _epoch in rescue.epochs(EPOCHS) if rescue else range(EPOCHS):
            for x, y in rescue.data(dataset) if rescue else dataset:
                loss = self.step(x, y)
                note(loss, self.seen.result())
                if rescue:
                    rescue.step(loss)


def function():
    trainer = Trainer()
    trainer.fit(data())
    return trainer.net.variables + trainer.opt.variables


def two_optimizers():
    """One step draws two batches and uses two tapes: the agent must treat it as one step."""
    generator, critic = network(), network()
    generator_optimizer, critic_optimizer = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02)
    own = np.random.default_rng(7)
    dataset, noise = data(), data()
    rescue = None
    if ROLE == "resumed":
        rescue = resume(
            generator=generator, critic=critic, generator_optimizer=generator_optimizer,
            critic_optimizer=critic_optimizer, own=own,
        )  # fmt: skip
    for _epoch in rescue.epochs(EPOCHS) if rescue else range(EPOCHS):
        pairs = zip(
            rescue.data(dataset) if rescue else dataset,
            rescue.data(noise) if rescue else noise,
            strict=False,
        )
        for (x, y), (z, _) in pairs:
            with tf.GradientTape() as tape:
                first = tf.reduce_mean((critic(x, training=True) - y * own.normal()) ** 2)
            slopes = tape.gradient(first, critic.trainable_variables)
            critic_optimizer.apply(slopes, critic.trainable_variables)
            with tf.GradientTape() as tape:
                second = tf.reduce_mean(critic(x + generator(z, training=True)) ** 2)
            slopes = tape.gradient(second, generator.trainable_variables)
            generator_optimizer.apply(slopes, generator.trainable_variables)
            note(first, second)
            if rescue:
                rescue.step(first)
    return [*generator.variables, *critic.variables, *critic_optimizer.variables]


tf.config.experimental.enable_op_determinism()
for case in CASES:
    done = 0
    print("CASE", case)
    keras.utils.set_random_seed(3)
    state = {"eager": eager, "function": function, "two_optimizers": two_optimizers}[case]()
    print("END", zlib.crc32(b"".join(np.asarray(each).tobytes() for each in state)))
