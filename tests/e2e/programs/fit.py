"""A Keras fit whose losses can be compared bit for bit; leaks on request."""

import argparse
import os
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--rescues", default="rescues")
parser.add_argument("--leak-mb-s", type=float, default=0)
parser.add_argument("--leak-from", type=int, default=30, help="first step that leaks")
parser.add_argument("--leak-steps", type=int, default=10**9, help="how many steps leak")
parser.add_argument("--plateau-mb", type=float, default=0, help="healthy warm-up that stays")
parser.add_argument("--state-mb", type=float, default=2)
parser.add_argument("--step-s", type=float, default=0.02, help="shortest time of a step")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--no-agent", action="store_true")
parser.add_argument("--in-thread", action="store_true")
options = parser.parse_args()

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

BATCH = 16
keras.utils.set_random_seed(5)
tf.config.experimental.enable_op_determinism()


class Watchful(keras.callbacks.Callback):
    """Write each loss down and leak at a rate, in the training thread."""

    def __init__(self):
        super().__init__()
        self.file = open(options.out, "a", buffering=1)
        self.kept, self.epoch, self.last = [], 0, time.perf_counter()
        self.made = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        step = self.epoch * options.steps + batch + 1
        loss = float(logs["loss"])
        self.file.write(f"{step},{loss.hex()},{loss:.4f},{time.time():.3f}\n")
        self.made += 1
        rest = options.step_s - (time.perf_counter() - self.last)
        if rest > 0:
            time.sleep(rest)
        # A slow save must not make the leak jump: a step leaks what a step leaks.
        passed = min(time.perf_counter() - self.last, 5 * options.step_s)
        self.last = time.perf_counter()
        first = options.leak_from
        if options.leak_mb_s and first <= self.made < first + options.leak_steps:
            self.kept.append(np.ones(int(options.leak_mb_s * 1e6 * passed), np.uint8))


def warm_up():
    """Grow fast to a plateau and stay there: what caches and data sets do."""
    held = []
    for _ in range(int(options.plateau_mb // 10)):
        held.append(np.ones(10_000_000, np.uint8))
        time.sleep(0.05)
    return held


def main():
    # Adam holds three floats a weight; two square layers hold nearly all of it.
    width = max(32, int((options.state_mb * 1e6 / 4 / 3 / 2) ** 0.5))
    rng = np.random.default_rng(1)
    images = rng.normal(size=(BATCH * options.steps, 32)).astype("float32")
    labels = rng.integers(0, 5, len(images)).astype("int32")
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((32,)),
            layers.Dense(width, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(width, activation="relu"),
            layers.BatchNormalization(),
            layers.Dense(width, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(5),
        ]
    )
    model.compile(
        "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    held = warm_up()
    callbacks = [Watchful()]
    if not options.no_agent:
        from watchdog_app.agent.keras import Rescue

        callbacks.append(Rescue(options.rescues))
    model.fit(images, labels, BATCH, epochs=options.epochs, verbose=0, callbacks=callbacks)
    import hashlib

    digest = hashlib.sha256()
    for variable in model.variables + model.optimizer.variables:
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    with open(options.out + ".final", "w") as file:
        file.write(digest.hexdigest())
    del held


if options.in_thread:
    worker = threading.Thread(target=main)
    worker.start()
    worker.join()
else:
    main()
