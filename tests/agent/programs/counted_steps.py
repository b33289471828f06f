"""Train with and without the counter; print what is equal, and which writes do not wait for it."""

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


def normalized():
    """The gradients of its normalization are scaled in the step that applies them."""
    return keras.Sequential(
        [
            *(layers.Input((28, 28, 1)), layers.Flatten(), layers.Dense(25, activation="relu")),
            *(layers.BatchNormalization(), layers.GaussianNoise(0.1), layers.Dense(3)),
        ]
    )


def train(make, *, counted):
    keras.utils.set_random_seed(3)
    model = make()
    model.compile(optimizer=keras.optimizers.SGD(0.02, momentum=0.9), loss="mse")
    if counted:
        add_counter(model.optimizer)
    images = np.random.default_rng(0).random((64, 28, 28, 1), np.float32)
    targets = None if make is Critic else np.ones((64, 3), np.float32)
    model.fit(images, targets, batch_size=16, epochs=3, verbose=0, shuffle=False)
    return b"".join(np.asarray(each).tobytes() for each in model.get_weights())


class Scaled(keras.Model):
    """Trains a variable of TensorFlow beside those of its layer."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)
        self.scale = tf.Variable(tf.ones((3,)), name="scale")

    def train_step(self, data):
        images, targets = data
        with tf.GradientTape() as tape:
            rows = self.dense(tf.reshape(images, (-1, 28 * 28))) * self.scale
            loss = tf.reduce_mean((rows - targets) ** 2)
        trained = [*self.dense.trainable_variables, self.scale]
        if not self.optimizer.built:
            self.optimizer.build(trained)
        self.optimizer.apply(tape.gradient(loss, trained), trained)
        return {"loss": loss}

    def call(self, images):
        return self.dense(tf.reshape(images, (-1, 28 * 28))) * self.scale


def early_writes():
    """Operations that may write to weights or slots before the counter is incremented."""
    model = normalized()
    model.optimizer = optimizer = keras.optimizers.AdamW(1e-3, use_ema=True)
    optimizer.build(model.trainable_variables)
    add_counter(optimizer)

    @tf.function
    def step(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(images, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    graph = step.get_concrete_function(tf.TensorSpec((16, 28, 28, 1))).graph
    handle = next(inner for outer, inner in graph.captures if outer is counter().handle)
    begun = next(op for op in graph.get_operations() if op.inputs and op.inputs[0] is handle)
    behind, early, writes = {begun.name}, [], 0
    operations = graph.get_operations()  # in the order in which they were made
    for op in operations[operations.index(begun) + 1 :]:
        before = [*op.control_inputs, *(each.op for each in op.inputs)]
        waits = any(each.name in behind for each in before)
        behind |= {op.name} if waits else set()
        if op.type.startswith("Assign") and op.inputs[1].shape.rank:
            writes += 1
            early += [] if waits else [op.name]
    assert writes >= 4 * len(model.trainable_variables)  # decay, two slots, update, average
    return early


for make in (Critic, normalized, Scaled):
    plain = train(make, counted=False)
    before = int(counter()[0])
    print("the same bits:", train(make, counted=True) == plain)
    print("steps counted:", int(counter()[0]) - before)
print("early writes:", early_writes())
