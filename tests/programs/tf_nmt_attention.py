"""Encoder and decoder whose `call` takes a hidden state, trained by a `tf.function`."""

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(35)
BATCH_SIZE, EPOCHS, units = 8, 5, 12
rng = np.random.default_rng(7)
inputs = rng.integers(1, 20, (96, 5)).astype("int32")
targets = rng.integers(1, 15, (96, 4)).astype("int32")
dataset = tf.data.Dataset.from_tensor_slices((inputs, targets)).shuffle(96, seed=5)
dataset = dataset.batch(BATCH_SIZE, drop_remainder=True)
steps_per_epoch = len(inputs) // BATCH_SIZE


class Encoder(tf.keras.Model):
    def __init__(self, units):
        super().__init__()
        self.units = units
        self.embedding = tf.keras.layers.Embedding(20, 8)
        self.gru = tf.keras.layers.GRU(units, return_sequences=True, return_state=True)

    def call(self, x, hidden):
        return self.gru(self.embedding(x), initial_state=hidden)

    def initialize_hidden_state(self):
        return tf.zeros((BATCH_SIZE, self.units))


class Decoder(tf.keras.Model):
    def __init__(self, units):
        super().__init__()
        self.embedding = tf.keras.layers.Embedding(15, 8)
        self.gru = tf.keras.layers.GRU(units, return_state=True)
        self.score, self.fc = tf.keras.layers.Dense(1), tf.keras.layers.Dense(15)

    def call(self, x, hidden, enc_output):
        weights = tf.nn.softmax(self.score(enc_output + hidden[:, None]), axis=1)
        context = tf.reduce_sum(weights * enc_output, axis=1)
        x = tf.concat([context[:, None], self.embedding(x)], axis=-1)
        output, state = self.gru(x)
        return self.fc(output), state


encoder, decoder = Encoder(units), Decoder(units)
optimizer = tf.keras.optimizers.Adam(1e-2)
loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def train_step(inp, targ, enc_hidden):
    loss = 0.0
    with tf.GradientTape() as tape:
        enc_output, dec_hidden = encoder(inp, enc_hidden)
        for t in range(1, targ.shape[1]):
            predictions, dec_hidden = decoder(targ[:, t - 1 : t], dec_hidden, enc_output)
            loss += loss_object(targ[:, t], predictions)
    variables = encoder.trainable_variables + decoder.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss


for epoch in range(EPOCHS):
    enc_hidden = encoder.initialize_hidden_state()
    for batch, (inp, targ) in enumerate(dataset.take(steps_per_epoch)):
        batch_loss = train_step(inp, targ, enc_hidden)
        if batch % 10 == 0:
            print(f"Epoch {epoch + 1} Batch {batch} Loss {batch_loss.numpy():.4f}")
np.savez("nmt.npz", *encoder.get_weights(), *decoder.get_weights())
