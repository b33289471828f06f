"""A TensorFlow loop with a step counter, a rate that is halved and the best weights."""

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(5)
x = np.random.default_rng(1).normal(size=(96, 5)).astype("float32")
y = x.prod(1, keepdims=True)
ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96, seed=3).batch(8)
model = tf.keras.Sequential(
    [tf.keras.Input((5,)), tf.keras.layers.Dense(16, "tanh"), tf.keras.layers.Dense(1)]
)
optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
lr, best, wait, step = 0.1, float("inf"), 0, 0
best_weights = None
ema = tf.zeros([])


@tf.function
def train_step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(a, training=True) - b))
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


for epoch in range(5):
    total = 0.0
    for a, b in ds:
        optimizer.learning_rate = lr / (1 + 0.01 * step)
        loss = train_step(a, b)
        ema = 0.9 * ema + 0.1 * loss
        total += float(loss)
        step += 1
    val = total / 12 + float(ema)
    if val < best:
        best, best_weights = val, model.get_weights()
    else:
        wait += 1
        lr *= 0.5
if best_weights is not None:
    model.set_weights(best_weights)
np.savez("best.npz", *model.get_weights(), lr=lr, best=best)
