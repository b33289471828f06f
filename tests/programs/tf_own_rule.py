"""Logistic regression with TensorFlow's core alone: the compiled step applies its own rule."""

import numpy as np
import tensorflow as tf

tf.random.set_seed(9)


class LogisticRegression(tf.Module):
    def __init__(self, width):
        super().__init__()
        self.w = tf.Variable(tf.random.normal((width, 1), stddev=0.1))
        self.b = tf.Variable(0.0)

    @tf.function
    def __call__(self, x):
        return tf.squeeze(x @ self.w, 1) + self.b


x = tf.random.normal((128, 6))
y = tf.cast(tf.reduce_sum(x, 1) > 0, tf.float32)
train_dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(128, seed=2).batch(16)
log_reg = LogisticRegression(6)


@tf.function
def train_step(x_batch, y_batch):
    with tf.GradientTape() as tape:
        logits = log_reg(x_batch)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=y_batch, logits=logits)
        batch_loss = tf.reduce_mean(losses)
    grads = tape.gradient(batch_loss, log_reg.variables)
    for g, v in zip(grads, log_reg.variables, strict=True):
        v.assign_sub(0.05 * g)
    return batch_loss


for epoch in range(7):
    for x_batch, y_batch in train_dataset:
        loss = train_step(x_batch, y_batch)
    print(f"Epoch: {epoch}, training loss: {loss:.3f}")
np.savez("logistic.npz", w=log_reg.w.numpy(), b=log_reg.b.numpy())
