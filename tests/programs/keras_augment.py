"""Image classification with augmentation layers in the model and callbacks for the learning rate."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(7)
rng = np.random.default_rng(0)
images, labels = rng.random((160, 12, 12, 3), dtype=np.float32), rng.integers(0, 3, 160)
augmentation = keras.Sequential([layers.RandomFlip("horizontal"), layers.RandomRotation(0.1)])
inputs = keras.Input((12, 12, 3))
x = augmentation(inputs)
x = layers.Conv2D(8, 3, activation="relu")(x)
x = layers.BatchNormalization()(x)
x = layers.GlobalAveragePooling2D()(x)
x = layers.Dropout(0.3)(x)
model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x))
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(
    images,
    labels,
    batch_size=16,
    epochs=5,
    validation_split=0.2,
    verbose=2,
    callbacks=[
        keras.callbacks.ReduceLROnPlateau(patience=1),
        keras.callbacks.EarlyStopping(patience=4),
    ],
)
model.save_weights("augment.weights.h5")
