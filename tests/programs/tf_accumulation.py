"""Gradients accumulated in variables by one function, and applied every fourth batch by another."""

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(5)
x = np.random.random((192, 6)).astype("float32")
y = x.sum(1, keepdims=True)
train_ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(192, seed=4).batch(8).prefetch(2)
model = tf.keras.Sequential([tf.keras.layers.Input((6,)), tf.keras.layers.Dense(8, "relu")])
head = tf.keras.Sequential([tf.keras.layers.Input((8,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.AdamW(0.01)
head_optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
loss_fn = tf.keras.losses.MeanSquaredError()
accumulation_steps = 4
weights = model.trainable_variables + head.trainable_variables
sums = [tf.Variable(tf.zeros_like(each), trainable=False) for each in weights]


@tf.function
def accumulate(a, b):
    with tf.GradientTape() as tape:
        loss = loss_fn(b, head(model(a))) / accumulation_steps
    for total, gradient in zip(sums, tape.gradient(loss, weights)):
        total.assign_add(gradient)


@tf.function
def apply():
    optimizer.apply_gradients(zip(sums[:2], model.trainable_variables))
    head_optimizer.apply_gradients(zip(sums[2:], head.trainable_variables))
    for total in sums:
        total.assign(tf.zeros_like(total))


for epoch in range(5):
    for i, (a, b) in enumerate(train_ds):
        accumulate(a, b)
        if (i + 1) % accumulation_steps == 0:
            apply()
    print(f"epoch {epoch} loss {float(loss_fn(y, head(model(x)))):.4f}")
model.save_weights("model.weights.h5")
head.save_weights("head.weights.h5")
