"""
A Keras training that survives a kill, with one callback.

    python examples/keras_fit.py

Press Ctrl-C or kill it after it has saved (`watchdog checkpoint keras_fit.py` saves a rescue at any
time), and run it again: it resumes after that batch.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from watchdog_app.agent.keras import Rescue

keras.utils.set_random_seed(7)  # without a seed the order of the data cannot be repeated

rng = np.random.default_rng(0)
patterns = rng.normal(size=(10, 28, 28, 1))
labels = rng.integers(0, 10, 20_000)
images = (patterns[labels] + 6 * rng.normal(size=(20_000, 28, 28, 1))).astype("float32")

model = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer="adam",
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(
    images,
    labels,
    batch_size=64,
    epochs=5,
    validation_split=0.1,
    callbacks=[Rescue("rescues/keras_fit")],
)
