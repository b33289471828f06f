"""A GAN in a function `train(dataset, epochs)`: two tapes, two optimizers, one `tf.function`."""

import tensorflow as tf
from tensorflow.keras import layers

tf.keras.utils.set_random_seed(2)
train_dataset = tf.data.Dataset.from_tensor_slices(tf.random.uniform((128, 8)))
train_dataset = train_dataset.shuffle(128, seed=1).batch(16)
generator = tf.keras.Sequential([layers.Input((4,)), layers.Dense(16, "relu"), layers.Dense(8)])
discriminator = tf.keras.Sequential([layers.Input((8,)), layers.Dense(16, "relu"), layers.Dense(1)])
cross_entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True)
generator_optimizer = tf.keras.optimizers.Adam(1e-4)
discriminator_optimizer = tf.keras.optimizers.Adam(1e-4)
noise_source = tf.random.Generator.from_seed(3)


@tf.function
def train_step(images):
    noise = noise_source.normal((16, 4))
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        real, fake = discriminator(images), discriminator(generator(noise))
        gen_loss = cross_entropy(tf.ones_like(fake), fake)
        disc_loss = cross_entropy(tf.ones_like(real), real)
        disc_loss += cross_entropy(tf.zeros_like(fake), fake)
    gen_vars, disc_vars = generator.trainable_variables, discriminator.trainable_variables
    generator_optimizer.apply_gradients(zip(gen_tape.gradient(gen_loss, gen_vars), gen_vars))
    discriminator_optimizer.apply_gradients(
        zip(disc_tape.gradient(disc_loss, disc_vars), disc_vars)
    )


def train(dataset, epochs):
    for epoch in range(epochs):
        for image_batch in dataset:
            train_step(image_batch)
        print(f"epoch {epoch + 1}")


train(train_dataset, 6)
generator.save_weights("dcgan.weights.h5")
