"""A loop over a dataset with a `tf.function` for the step; the model is built by its first call."""

import tensorflow as tf

tf.keras.utils.set_random_seed(1)
x_train, y_train = tf.random.uniform((160, 8, 8, 1)), tf.random.uniform((160,), 0, 10, tf.int32)
train_ds = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(160).batch(16)


class MyModel(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.conv1 = tf.keras.layers.Conv2D(4, 3, activation="relu")
        self.flatten = tf.keras.layers.Flatten()
        self.d1 = tf.keras.layers.Dense(10)

    def call(self, x):
        return self.d1(self.flatten(self.conv1(x)))


model = MyModel()
loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam()
train_loss = tf.keras.metrics.Mean(name="train_loss")


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        loss = loss_object(labels, model(images, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    train_loss(loss)


EPOCHS = 5
for epoch in range(EPOCHS):
    train_loss.reset_state()
    for images, labels in train_ds:
        train_step(images, labels)
    print(f"Epoch {epoch + 1}, Loss: {train_loss.result():0.4f}")
model.save_weights("quickstart.weights.h5")
