"""Transfer learning: a fit with a frozen base, then a second one that tunes all of it."""

import keras
import numpy as np

keras.utils.set_random_seed(6)
base = keras.Sequential(
    [keras.Input((12,)), keras.layers.Dense(16, "relu"), keras.layers.BatchNormalization()]
)
base.trainable = False
inputs = keras.Input((12,))
hidden = keras.layers.Dropout(0.2)(base(inputs, training=False))
model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
x, y = np.random.random((160, 12)), np.random.randint(0, 2, (160, 1))
loss = keras.losses.BinaryCrossentropy(from_logits=True)
model.compile(optimizer=keras.optimizers.Adam(), loss=loss)
model.fit(x, y, batch_size=16, epochs=4, verbose=2)
base.trainable = True
model.compile(optimizer=keras.optimizers.Adam(1e-5), loss=loss)
model.fit(x, y, batch_size=16, epochs=3, verbose=2)
model.save_weights("transfer.weights.h5")
