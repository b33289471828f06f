"""A loop of its own over data that `take` and `skip` split, with random noise in `map`."""

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(3)
x = np.random.random((200, 6)).astype("float32")
y = x.sum(1, keepdims=True)


def noise(a, b):
    return a + tf.random.normal(tf.shape(a), stddev=0.01), b


full = tf.data.Dataset.from_tensor_slices((x, y)).map(noise).shuffle(200, seed=1)
train_ds, val_ds = full.take(160).batch(16), full.skip(160).batch(16)
model = tf.keras.Sequential(
    [
        tf.keras.layers.Input((6,)),
        tf.keras.layers.Dense(8, activation="relu"),
        tf.keras.layers.Dense(1),
    ]
)
optimizer = tf.keras.optimizers.Adam(0.01)
loss_fn = tf.keras.losses.MeanSquaredError()


@tf.function
def train_step(a, b):
    with tf.GradientTape() as tape:
        loss = loss_fn(b, model(a, training=True))
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


for epoch in range(5):
    for step, (a, b) in enumerate(train_ds):
        loss = train_step(a, b)
    val = np.mean([float(loss_fn(b, model(a))) for a, b in val_ds])
    print(f"epoch {epoch} loss {float(loss):.4f} val {val:.4f}")
model.save_weights("split.weights.h5")
