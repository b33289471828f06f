"""
Fits whose callback requests too much memory: `fit_callback_exhausted.py FOLDER CASE...`.

A case is a moment and the callback's position, before or after Rescue. The program prints one line
of JSON for an uninterrupted fit first. Then one line per case has the values of the stopped and the
resumed fit.
"""

import io
import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["WATCHDOG_AGENT_STRICT"] = "1"

import keras
import numpy as np

from watchdog_app.agent.keras import Rescue

BATCHES = 5
numbers = np.random.default_rng(0)
x = numbers.normal(size=(BATCHES * 8, 6)).astype("float32")
y = x.sum(axis=1, keepdims=True)


class Log(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []
        self.rescue = None
        self.steps = []  # as the callback counts them

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append([batch, float(logs["loss"]).hex(), float(logs["mae"]).hex()])

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(["epoch", epoch, {key: float(logs[key]).hex() for key in sorted(logs)}])
        if self.rescue is not None:
            self.steps.append(self.rescue.step_number)

    def state_dict(self):
        return {}  # this callback has no state of the training

    def load_state_dict(self, state):
        pass


class Greedy(keras.callbacks.Callback):
    """Requests a petabyte at one moment of the second epoch: "on_train_batch_end:2"."""

    def __init__(self, moment):
        super().__init__()
        self.epoch = 0
        self.hook, _, number = moment.partition(":")
        self.number = int(number)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.at("on_train_batch_end", batch)

    def on_epoch_end(self, epoch, logs=None):
        self.at("on_epoch_end", 0)

    def at(self, hook, number):
        if self.epoch == 1 and (hook, number) == (self.hook, self.number):
            np.empty(2**50)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def fit(folder, callbacks=(), *, first=False, **rescue):
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-2), loss="mse", metrics=["mae"])
    log = Log()
    listed = [log]
    if folder is not None:
        log.rescue = Rescue(folder, **rescue)
        listed.append(log.rescue)
    listed = [*callbacks, *listed] if first else [*listed, *callbacks]
    found = {"error": None, "notes": []}
    said, sys.stderr = sys.stderr, io.StringIO()
    try:
        model.fit(
            x, y, 8, epochs=3, verbose=0, callbacks=listed, validation_data=(x[:16], y[:16]),
        )  # fmt: skip
    except MemoryError as error:
        found["error"] = type(error).__name__
        found["notes"] = list(getattr(error, "__notes__", []))
    finally:
        found["said"], sys.stderr = sys.stderr.getvalue(), said
    found["weights"] = [
        np.array(keras.ops.convert_to_numpy(each)).tobytes().hex() for each in model.weights
    ]
    return {**found, "seen": log.seen, "steps": log.steps}


if __name__ == "__main__":
    print(json.dumps({"reference": fit(None)}), flush=True)
    for name in sys.argv[2:]:
        moment, _, place = name.partition(" ")
        where, first = os.path.join(sys.argv[1], name), place == "before"
        stopped = fit(where, [Greedy(moment)], first=first)
        resumed = fit(where, first=first, resume="newest")
        print(json.dumps({name: {"stopped": stopped, "resumed": resumed}}), flush=True)
