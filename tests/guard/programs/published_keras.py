"""A Keras fit that waits at given places: FOLDER STEPS [place=step ...]."""

from __future__ import annotations

import os
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras
import numpy as np
import tensorflow as tf
from stages import Stages, checksum

from watchdog_app.agent.keras import Rescue

keras.utils.set_random_seed(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
folder, steps = sys.argv[1], int(sys.argv[2])
stages = Stages(word for word in sys.argv[3:] if "=" in word)
logged = "log" in sys.argv


class Standing(keras.optimizers.Adam):
    """An optimizer inside whose update the training can wait."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)

        def stand(count, _changed):
            stages.stand("optimizer", int(count))
            return count

        if "optimizer" in stages._at:  # after the change, because it takes the changed variable
            changed = tf.reduce_sum(variable.read_value())
            tf.numpy_function(stand, [self.iterations.value, changed], tf.int64)


def batches():
    generator = np.random.default_rng(3)
    while True:
        stages.stand("data", rescue.step_number)
        if logged:  # gives the test time to stop it
            time.sleep(0.005)
        yield generator.random((8, 32), dtype="f4"), generator.random((8, 32), dtype="f4")


class Shown(keras.callbacks.Callback):
    """A callback before or after the Rescue callback."""

    def __init__(self, behind):
        super().__init__()
        self.behind = behind
        self.phase = "early"  # a rescue says that a resume does not restore a later value

    def on_train_batch_begin(self, batch, logs=None):
        step = rescue._steps_before + batch
        if self.behind:
            for place in ("boundary", "gil"):
                stages.stand(place, step)
            if step == steps:
                raise SystemExit(shown())
        else:
            stages.save_too(rescue, step)
            self.log(step)

    def on_train_batch_end(self, batch, logs=None):
        if not self.behind:  # no other callback has seen the step's end
            step = rescue._steps_before + batch + 1
            if step == 30:
                self.phase = "late"
            self.log(step)
            rate = self.model.optimizer.learning_rate
            rate.assign(rate * 0.99)

    def on_test_begin(self, logs=None):
        if not self.behind:
            self.log(rescue.step_number)  # Keras resets its metrics before the next batch

    def log(self, step):
        if logged and step:
            print("step", step, checksum(rescue._state.capture().entries), flush=True)


def shown():
    values = [np.asarray(each.holder).astype("f8").sum() for each in rescue._state.variables()]
    print("end", repr([float(each) for each in values]), flush=True)


data = tf.data.Dataset.from_generator(
    batches, output_signature=(tf.TensorSpec((8, 32)), tf.TensorSpec((8, 32)))
)
model = keras.Sequential(
    [
        keras.Input((32,)),
        keras.layers.Dense(256, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(32),
    ]
)
model.compile(Standing(), "mse", metrics=["mae"])
rescue = Rescue(folder)
model.fit(
    data,
    steps_per_epoch=25,
    epochs=1000,
    verbose=0,
    validation_data=(np.ones((8, 32)), np.ones((8, 32))),
    callbacks=[Shown(False), rescue, Shown(True)],
)
