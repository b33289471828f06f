"""A model with its own `train_step` and metrics."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)


class CustomModel(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = keras.losses.mean_squared_error(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae_metric]


inputs = keras.Input(shape=(8,))
outputs = keras.layers.Dense(1)(keras.layers.Dropout(0.1)(keras.layers.Dense(16)(inputs)))
model = CustomModel(inputs, outputs)
model.compile(optimizer="adam")
x, y = np.random.random((160, 8)), np.random.random((160, 1))
model.fit(x, y, batch_size=16, epochs=5, verbose=2)
model.save_weights("custom.weights.h5")
