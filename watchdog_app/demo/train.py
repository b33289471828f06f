"""
An ordinary Keras training with an ordinary bug: a callback keeps data of every batch.

`watchdog demo` copies this file into its own folder and runs it there, as a user would. The only
line about watchdog is the callback in `fit`.
"""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the number of GPUs must not change the results

import keras
import numpy as np
import tensorflow as tf

from watchdog_app.agent.keras import Rescue

PACE_S = 0.02


class LossCurve(keras.callbacks.Callback):
    """Write every loss bit for bit, and keep the activations "for a plot later"."""

    def __init__(self, path: str, keep_mib: float) -> None:
        super().__init__()
        self._file = open(path, "a", buffering=1)
        self._keep = int(keep_mib * 2**20)
        self._kept = []
        self._epoch = 0
        self._steps = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        self._steps = self.params["steps"]

    def on_train_batch_end(self, batch, logs=None):
        step = self._epoch * self._steps + batch + 1
        loss = float(logs["loss"])
        self._file.write(f"{step},{loss.hex()},{loss:.4f},{time.time():.3f}\n")
        self._kept.append(np.ones(self._keep, np.uint8))  # the bug: the list grows with every step
        time.sleep(PACE_S)  # slow down, so that the leak takes some time on a fast machine


def digits(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` noisy 16x16 images of ten fixed patterns, with their labels."""
    patterns = rng.normal(size=(10, 16, 16, 1))
    labels = rng.integers(0, 10, count)
    images = patterns[labels] + 1.5 * rng.normal(size=(count, 16, 16, 1))
    return images.astype("float32"), labels.astype("int32")


def build() -> keras.Model:
    """Return a small convolutional network with batch norm, dropout and augmentation."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            layers.RandomTranslation(0.1, 0.1, seed=3),
            layers.Conv2D(32, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(1024, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-3, 2000)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    """Train; after a kill, the same command resumes from the rescue."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--losses", default="losses.csv")
    parser.add_argument("--rescues", default="rescues")
    parser.add_argument("--keep-mib", type=float, default=1.0, help="kept of every batch")
    options = parser.parse_args()

    keras.utils.set_random_seed(7)
    tf.config.experimental.enable_op_determinism()
    images, labels = digits(64 * 200, np.random.default_rng(0))
    model = build()
    model.fit(
        images,
        labels,
        batch_size=64,
        epochs=5,
        verbose=0,
        callbacks=[
            LossCurve(options.losses, options.keep_mib),
            Rescue(options.rescues),
        ],
    )


if __name__ == "__main__":
    main()
