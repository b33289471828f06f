"""
Fits that really run out of memory: `fit_exhausted.py FOLDER CASE...`, one line of JSON each.

During the training of batches the address space is limited to the current use plus a reserve. Only
the one large tensor must not fit: a failed small allocation on a thread of TensorFlow ends the
process. TensorFlow never returns memory, so the fit with the limit runs first in its process.
"""

import gc
import io
import json
import os
import resource
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["WATCHDOG_AGENT_STRICT"] = "1"

import keras
import numpy as np
import tensorflow as tf

from watchdog_app.agent.keras import Rescue

layers = keras.layers
BATCH, BATCHES, ROWS = 64, 6, 32
MIB = 2**20
x = np.random.default_rng(0).normal(size=(BATCH * BATCHES - 7, ROWS, 8)).astype("float32")
y = x.mean(axis=(1, 2))[:, None]
weights = np.random.default_rng(1).uniform(0.5, 2.0, len(x)).astype("float32")


class Log(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append({name: float(value).hex() for name, value in logs.items()})


class Narrow(keras.callbacks.Callback):
    """
    Limits the address space from one batch of each epoch on, because the next batch starts threads.
    """

    def __init__(self, batch, room_mib):
        super().__init__()
        self.batch, self.room_mib = batch, room_mib

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.batch:
            gc.collect()
            narrow(self.room_mib)

    def on_train_batch_end(self, batch, logs=None):
        if batch == BATCHES - 1:
            wide()


def narrow(room_mib):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room_mib * MIB, resource.RLIM_INFINITY))


def wide():
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def network(*, noisy, activation="relu"):
    between = [layers.BatchNormalization(), layers.Dropout(0.2)] if noisy else []
    return keras.Sequential(
        [
            keras.Input((None, 8)),
            layers.Dense(8, activation=activation, kernel_regularizer="l2"),
            *between,
            layers.UpSampling1D(1024),  # 64 MiB for a whole batch, the only large tensor
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )


def batches_of_unequal_length(dear_at=None):
    """Yield batches of which the fourth of each epoch is eight times as long and too large."""
    drawn = []

    def batches():
        for number in range(BATCHES):
            drawn.append(number)
            if len(drawn) == dear_at:
                np.ones(2**50, "u1")
            rows = slice(number * BATCH, (number + 1) * BATCH)
            length = ROWS if number == 3 else ROWS // 8
            yield x[rows, :length], y[rows], weights[rows]

    shapes = [(None, None, 8), (None, 1), (None,)]
    signature = tuple(tf.TensorSpec(shape, "float32") for shape in shapes)
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def fit(
    folder,
    *,
    noisy=False,
    narrow_at=None,
    room_mib=40,
    dear_at=None,
    epochs=2,
    options=None,
    **rescue,
):
    keras.utils.set_random_seed(1)
    options = {"jit_compile": False, "loss": "mse", **(options or {})}
    model = options.pop("model", None) or network(noisy=noisy)
    optimizer = options.pop("optimizer", None) or keras.optimizers.Adam(
        keras.optimizers.schedules.CosineDecay(1e-2, 40)
    )
    model.compile(optimizer, weighted_metrics=["mae"], **options)
    log = Log()
    before = [log]
    if narrow_at is not None:
        before.append(Narrow(narrow_at, room_mib))
    step = model.train_function
    said, sys.stderr = sys.stderr, io.StringIO()
    found = {"error": None, "notes": []}
    if folder is not None:
        before.append(Rescue(folder, **rescue))
    try:
        model.fit(
            batches_of_unequal_length(dear_at),
            epochs=epochs,
            verbose=0,
            callbacks=before,
        )
    except Exception as error:
        found["error"] = type(error).__name__
        found["notes"] = list(getattr(error, "__notes__", []))
    finally:
        wide()
        found["said"], sys.stderr = sys.stderr.getvalue(), said
    names = getattr(model.train_function, "__qualname__", None)
    found["step_is_its_own"] = step is None and "watched" not in str(names)
    found["iterations"] = int(model.optimizer.iterations.numpy())
    return {**found, "losses": log.losses}


def saved(name):
    where = os.path.join(sys.argv[1], name)
    stopped = fit(where, noisy=True, narrow_at=3)
    resumed = fit(where, noisy=True, resume="newest")
    reference = fit(None, noisy=True)
    return {"stopped": stopped, "resumed": resumed, "reference": reference}


def fetched(name):
    """Fails in a fetch so late that the agent no longer checks every step before it begins."""
    where = os.path.join(sys.argv[1], name)
    stopped = fit(where, noisy=True, dear_at=21, epochs=5)
    resumed = fit(where, noisy=True, epochs=5, resume="newest")
    reference = fit(None, noisy=True, epochs=5)
    return {"stopped": stopped, "resumed": resumed, "reference": reference}


def shrunk(name):
    where = os.path.join(sys.argv[1], name)
    parts = fit(where, narrow_at=3, epochs=9, on_oom="shrink")
    return {"parts": parts, "reference": fit(None, epochs=9)}


def compared(_, y_pred):
    """A loss that compares the samples of a batch: each should differ from the others."""
    own = tf.range(tf.shape(y_pred)[0])
    likeness = tf.matmul(y_pred, y_pred, transpose_b=True)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(own, likeness)


def coupled(name):
    where = os.path.join(sys.argv[1], name)
    stopped = fit(where, narrow_at=3, on_oom="shrink", options={"loss": compared})
    stopped["rescues"] = [each for each in os.listdir(where) if each.startswith("rescue-")]
    return {"stopped": stopped}


class Greedy(keras.optimizers.SGD):
    """Allocates too much after it applied the fourth step's gradients."""

    def apply(self, grads, trainable_variables=None):
        super().apply(grads, trainable_variables)
        if int(self.iterations.numpy()) == 4:
            np.empty(2**50)


def torn(name):
    where = os.path.join(sys.argv[1], name)
    stopped = fit(where, options={"optimizer": Greedy(), "run_eagerly": True})
    stopped["rescues"] = [each for each in os.listdir(where) if each.startswith("rescue-")]
    return {"stopped": stopped}


CASES = {
    "saved": lambda: saved("saved"),
    "fetched": lambda: fetched("fetched"),
    "torn": lambda: torn("torn"),
    "coupled": lambda: coupled("coupled"),
    "shrunk": lambda: shrunk("shrunk"),
}

if __name__ == "__main__":
    tf.config.experimental.enable_op_determinism()
    for case in sys.argv[2:]:
        print(json.dumps({case: CASES[case]()}), flush=True)
