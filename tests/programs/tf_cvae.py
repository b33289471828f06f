"""A convolutional autoencoder: `train_step(model, x, optimizer)`, epochs counted from 1."""

import tensorflow as tf

tf.keras.utils.set_random_seed(4)
train_dataset = tf.data.Dataset.from_tensor_slices(tf.random.uniform((128, 8))).shuffle(128)
train_dataset = train_dataset.batch(16)


class CVAE(tf.keras.Model):
    def __init__(self, latent_dim):
        super().__init__()
        dense, Input = tf.keras.layers.Dense, tf.keras.Input
        self.encoder = tf.keras.Sequential([Input((8,)), dense(16, "relu"), dense(2 * latent_dim)])
        self.decoder = tf.keras.Sequential([Input((latent_dim,)), dense(16, "relu"), dense(8)])
        self.seeds = tf.random.Generator.from_seed(1)


def compute_loss(model, x):
    mean, logvar = tf.split(model.encoder(x), num_or_size_splits=2, axis=1)
    z = mean + tf.exp(0.5 * logvar) * model.seeds.normal(tf.shape(mean))
    kl = tf.reduce_mean(tf.square(mean) + tf.exp(logvar) - logvar)
    return tf.reduce_mean(tf.square(model.decoder(z) - x)) + 0.1 * kl


@tf.function
def train_step(model, x, optimizer):
    with tf.GradientTape() as tape:
        loss = compute_loss(model, x)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


epochs = 5
optimizer = tf.keras.optimizers.Adam(1e-3)
model = CVAE(2)
for epoch in range(1, epochs + 1):
    for train_x in train_dataset:
        train_step(model, train_x, optimizer)
    print(f"Epoch: {epoch}")
model.decoder.save_weights("cvae.weights.h5")
