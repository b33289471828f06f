"""A loop over steps of an endless dataset, with a global step and a rate that follows it."""

import tensorflow as tf

tf.keras.utils.set_random_seed(5)
x = tf.random.normal((128, 6))
dataset = tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, 1, keepdims=True)))
dataset = dataset.shuffle(128, seed=1).repeat().batch(16)
model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(16, "relu")])
model.add(tf.keras.layers.Dense(1))
schedule = tf.keras.optimizers.schedules.CosineDecay(0.02, 50)
optimizer = tf.keras.optimizers.Adam(schedule)
global_step = 0


@tf.function
def train_step(features, target):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(features) - target))
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss


for features, target in dataset.take(60):
    loss = train_step(features, target)
    global_step += 1
    if global_step % 20 == 0:
        print(f"step {global_step}: {float(loss):.4f}")
model.save_weights("repeat.weights.h5")
