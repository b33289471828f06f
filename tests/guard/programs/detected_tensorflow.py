"""A TensorFlow loop without a Rescue that leaks; the guard cannot copy its state from outside."""

import time

import keras
import numpy as np
import tensorflow as tf

LEAK_BYTES = 6_000_000

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64), keras.layers.Dense(10)])
optimizer = keras.optimizers.Adam()
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
features, labels = np.random.rand(640, 32).astype("float32"), np.random.randint(0, 10, 640)
batches = tf.data.Dataset.from_tensor_slices((features, labels)).batch(32)


@tf.function
def train(inputs, wanted):
    with tf.GradientTape() as tape:
        loss = loss_of(wanted, model(inputs, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


held = []
for epoch in range(60):
    for inputs, wanted in batches:
        train(inputs, wanted)
        time.sleep(0.01)
        if epoch >= 3:
            held.append(np.ones(LEAK_BYTES // 8))
