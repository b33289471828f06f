"""A siamese network on pairs, split by `take` and `skip` of one shuffled data set, then fine-tuned."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(2)
rng = np.random.default_rng(1)
anchors = rng.random((240, 8), dtype=np.float32)
pairs = tf.data.Dataset.zip(
    tf.data.Dataset.from_tensor_slices(anchors),
    tf.data.Dataset.from_tensor_slices(anchors[::-1].copy()).shuffle(64, seed=3),
)
pairs = tf.data.Dataset.zip(pairs, tf.data.Dataset.from_tensor_slices((anchors[:, :1] > 0.5) * 1.0))
pairs = pairs.shuffle(240, seed=4)
train, validation = pairs.take(160).batch(16).prefetch(2), pairs.skip(160).batch(16)

embedding = keras.Sequential(
    [layers.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(4)], name="embedding"
)
left, right = layers.Input((8,)), layers.Input((8,))
distance = ops.sum(ops.square(embedding(left) - embedding(right)), axis=-1, keepdims=True)
model = keras.Model([left, right], layers.Dense(1, activation="sigmoid")(distance))
model.compile(optimizer="adam", loss="binary_crossentropy")
model.fit(train, validation_data=validation, epochs=4, verbose=2)
embedding.trainable = False
model.compile(optimizer=keras.optimizers.Adam(1e-4), loss="binary_crossentropy")
model.fit(train, validation_data=validation, validation_freq=2, epochs=4, verbose=2)
model.save_weights("model.weights.h5")
