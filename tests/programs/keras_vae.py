"""A variational autoencoder with a sampling layer and three trackers."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(5)


class VAE(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([layers.Dense(16, "relu"), layers.Dense(6)])
        self.decoder = keras.Sequential([layers.Dense(16, "relu"), layers.Dense(8, "sigmoid")])
        self.seed_generator = keras.random.SeedGenerator(7)
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")

    @property
    def metrics(self):
        return [self.total_loss_tracker]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            z_mean, z_log_var = ops.split(self.encoder(data), 2, axis=1)
            noise = keras.random.normal(ops.shape(z_mean), seed=self.seed_generator)
            rebuilt = self.decoder(z_mean + ops.exp(0.5 * z_log_var) * noise)
            kl = -0.5 * (1 + z_log_var - ops.square(z_mean) - ops.exp(z_log_var))
            total = ops.mean(ops.square(data - rebuilt)) + 0.01 * ops.mean(kl)
        grads = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        self.total_loss_tracker.update_state(total)
        return {"loss": self.total_loss_tracker.result()}


vae = VAE()
vae.compile(optimizer=keras.optimizers.Adam())
vae.fit(np.random.random((160, 8)).astype("float32"), epochs=5, batch_size=16, verbose=2)
vae.decoder.save_weights("vae.weights.h5")
