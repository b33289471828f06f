"""Train a critic with a gradient penalty with and without the counter; print what is equal."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from watchdog_app.agent.snapshot.tensorflow_marker import add_counter, counter


class Critic(keras.Model):
    """Its gradients are sums of many parts, whose order decides the last digits."""

    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential(
            [
                layers.Conv2D(16, 5, strides=2, padding="same"),
                layers.LeakyReLU(0.2),
                layers.Conv2D(32, 5, strides=2, padding="same"),
                layers.LeakyReLU(0.2),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )

    def call(self, images, training=False):
        return self.inner(images, training=training)

    def train_step(self, images):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(images)
                real = self(images, training=True)
            squares = tf.square(inner.gradient(real, images))
            norm = tf.sqrt(tf.reduce_sum(squares, axis=[1, 2, 3]) + 1e-8)
            penalty = 10 * tf.reduce_mean((norm - 1) ** 2)
            fake = tf.square(self(-images, training=True))
            loss = tf.reduce_mean(real) - tf.reduce_mean(fake) + penalty
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


def train(*, counted):
    keras.utils.set_random_seed(3)
    model = Critic()
    model.compile(optimizer=keras.optimizers.Adam(1e-3))
    if counted:
        add_counter(model.optimizer)
    images = np.random.default_rng(0).random((64, 28, 28, 1), np.float32)
    model.fit(images, batch_size=16, epochs=3, verbose=0, shuffle=False)
    return b"".join(np.asarray(each).tobytes() for each in model.get_weights())


plain = train(counted=False)
before = int(counter()[0])
print("the same bits:", train(counted=True) == plain)
print("steps counted:", int(counter()[0]) - before)
