"""A convolutional classifier: a sequential model and one fit."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
x_train, y_train = rng.random((160, 8, 8, 1), "float32"), rng.integers(0, 10, 160)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(4, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile(loss="sparse_categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=16, epochs=5, validation_split=0.1, verbose=2)
model.save_weights("convnet.weights.h5")
