"""A fit of a convolutional network: `batch.py --out CSV --rescues FOLDER --batch N`."""

import argparse
import os
import shlex
import sys
import time

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
import numpy as np
import tensorflow as tf

from watchdog_app.agent.keras import Rescue

EDGE, CHANNELS, EXAMPLES = 64, 32, 960


def build():
    """Return the model, as `watchdog estimate batch.py:build` requires."""
    model = keras.Sequential(
        [
            keras.Input((EDGE, EDGE, 3)),
            keras.layers.Conv2D(CHANNELS, 3, activation="relu", padding="same"),
            keras.layers.Conv2D(CHANNELS, 3, activation="relu", padding="same"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    return model


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--out")
    options.add_argument("--rescues")
    options.add_argument("--batch", type=int)
    options.add_argument("--epochs", type=int, default=1)
    words = [*sys.argv[1:], *shlex.split(os.environ.get("TRAINING_WORDS", ""))]
    given = options.parse_args(words)

    pictures = np.random.default_rng(1).random((EXAMPLES, EDGE, EDGE, 3), np.float32)
    targets = pictures.mean((1, 2, 3))
    data = tf.data.Dataset.from_tensor_slices((pictures, targets)).batch(given.batch)
    build().fit(data, epochs=given.epochs, verbose=0, callbacks=[Rescue(given.rescues)])
    print("trained", flush=True)
    time.sleep(2)


if __name__ == "__main__":
    main()
