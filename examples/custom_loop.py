"""
A custom TensorFlow loop that survives a kill, with three changed lines.

    python examples/custom_loop.py

Kill it after it has saved (`watchdog checkpoint custom_loop.py` saves a rescue at any time), and
run it again: it resumes after that step.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

from watchdog_app.agent.tensorflow import Rescue

keras.utils.set_random_seed(7)

x = tf.random.normal((10_000, 20))
y = tf.reduce_sum(x[:, :5], axis=1, keepdims=True)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000, seed=1).batch(32)

model = keras.Sequential(
    [keras.Input((20,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)]
)
optimizer = keras.optimizers.Adam(1e-3)
mean = keras.metrics.Mean()
history = {"loss": []}


@tf.function
def train_step(features, targets):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(features, training=True) - targets) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    mean.update_state(loss)
    return loss


rescue = Rescue("rescues/custom_loop", model=model, optimizer=optimizer, mean=mean, history=history)
for epoch in rescue.epochs(10):
    mean.reset_state()
    for features, targets in rescue.data(dataset):
        loss = train_step(features, targets)
        rescue.step(loss)
    history["loss"].append(float(mean.result()))
    print(f"epoch {epoch + 1}: loss {history['loss'][-1]:.4f}")
