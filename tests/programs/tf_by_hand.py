"""A `tf.Module` whose variables the loop updates itself."""

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(6)


class Linear(tf.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = tf.Variable(5.0), tf.Variable(0.0)

    def __call__(self, x):
        return self.w * x + self.b


x = tf.random.normal((160,))
data = tf.data.Dataset.from_tensor_slices((x, 3.0 * x + 2.0)).shuffle(160, seed=1).batch(16)
model = Linear()
for epoch in range(5):
    for features, target in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(target - model(features)))
        dw, db = tape.gradient(loss, [model.w, model.b])
        model.w.assign_sub(0.05 * dw)
        model.b.assign_sub(0.05 * db)
    print(f"Epoch {epoch:2d}: W = {model.w.numpy():.3f}")
np.savez("linear.npz", w=model.w.numpy(), b=model.b.numpy())
