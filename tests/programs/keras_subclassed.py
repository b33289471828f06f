"""A subclassed model with a layer of its own, trained from a tf.data pipeline."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(2)


class Gated(keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.value, self.gate = keras.layers.Dense(units), keras.layers.Dense(units)

    def call(self, x):
        return self.value(x) * keras.ops.sigmoid(self.gate(x))


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.gated = Gated(16)
        self.dropout = keras.layers.Dropout(0.2)
        self.out = keras.layers.Dense(1)

    def call(self, x, training=None):
        return self.out(self.dropout(self.gated(x), training=training))


x = np.random.default_rng(2).normal(size=(160, 6)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).shuffle(160).batch(16)
model = Net()
model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="mse")
model.fit(dataset, epochs=5, verbose=2)
model.save_weights("subclassed.weights.h5")
