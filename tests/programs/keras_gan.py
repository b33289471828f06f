"""A GAN that overrides `train_step`: two optimizers inside one fit."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(4)
bce = keras.losses.BinaryCrossentropy(from_logits=True)


class GAN(keras.Model):
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.seed_generator = keras.random.SeedGenerator(1337)

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    def train_step(self, real):
        noise = keras.random.normal((16, 4), seed=self.seed_generator)
        both = tf.concat([self.generator(noise), real], 0)
        labels = tf.concat([tf.ones((16, 1)), tf.zeros((16, 1))], 0)
        with tf.GradientTape() as tape:
            d_loss = bce(labels, self.discriminator(both))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            g_loss = bce(tf.zeros((16, 1)), self.discriminator(self.generator(noise)))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        return {"d_loss": d_loss, "g_loss": g_loss}


generator = keras.Sequential([keras.Input((4,)), layers.Dense(16, "relu"), layers.Dense(6)])
discriminator = keras.Sequential([keras.Input((6,)), layers.Dense(16, "relu"), layers.Dense(1)])
gan = GAN(discriminator, generator)
gan.compile(keras.optimizers.Adam(3e-4), keras.optimizers.Adam(3e-4))
gan.fit(np.random.random((160, 6)).astype("float32"), batch_size=16, epochs=5, verbose=2)
gan.generator.save_weights("gan.weights.h5")
