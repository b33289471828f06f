"""A GAN by `train_on_batch`: the loop is the program's own."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(7)
x_train = np.random.random((96, 6)).astype("float32")
discriminator = keras.Sequential(
    [keras.Input((6,)), layers.Dense(16, "relu"), layers.Dense(1, "sigmoid")]
)
discriminator.compile(loss="binary_crossentropy", optimizer=keras.optimizers.Adam(2e-4, 0.5))
generator = keras.Sequential([keras.Input((4,)), layers.Dense(16, "relu"), layers.Dense(6)])
z = keras.Input((4,))
frozen = keras.models.clone_model(discriminator)
frozen.trainable = False
combined = keras.Model(z, frozen(generator(z)))
combined.compile(loss="binary_crossentropy", optimizer=keras.optimizers.Adam(2e-4, 0.5))
valid, fake = np.ones((16, 1)), np.zeros((16, 1))
for epoch in range(40):
    images = x_train[np.random.randint(0, 96, 16)]
    made = generator.predict_on_batch(np.random.normal(0, 1, (16, 4)))
    d_loss = discriminator.train_on_batch(images, valid)
    d_loss += discriminator.train_on_batch(made, fake)
    frozen.set_weights(discriminator.get_weights())
    g_loss = combined.train_on_batch(np.random.normal(0, 1, (16, 4)), valid)
    if epoch % 10 == 0:
        print(f"{epoch} [D loss: {d_loss:.4f}] [G loss: {g_loss:.4f}]")
generator.save_weights("generator.weights.h5")
