"""A loop written from scratch: eager steps, `enumerate` over the dataset, a metric for each."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)
inputs = keras.Input(shape=(20,))
x = keras.layers.Dense(16, activation="relu")(inputs)
outputs = keras.layers.Dense(4)(keras.layers.Dropout(0.2)(x))
model = keras.Model(inputs=inputs, outputs=outputs)
optimizer = keras.optimizers.SGD(learning_rate=1e-2, momentum=0.9)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
train_acc_metric = keras.metrics.SparseCategoricalAccuracy()
x_train, y_train = np.random.random((128, 20)).astype("float32"), np.random.randint(0, 4, 128)
train_dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train))
train_dataset = train_dataset.shuffle(buffer_size=128).batch(16)
epochs = 5
for epoch in range(epochs):
    print(f"Start of epoch {epoch}")
    for step, (x_batch_train, y_batch_train) in enumerate(train_dataset):
        with tf.GradientTape() as tape:
            logits = model(x_batch_train, training=True)
            loss_value = loss_fn(y_batch_train, logits)
        grads = tape.gradient(loss_value, model.trainable_weights)
        optimizer.apply(grads, model.trainable_weights)
        train_acc_metric.update_state(y_batch_train, logits)
        if step % 5 == 0:
            print(f"Training loss at step {step}: {float(loss_value):.4f}")
    print(f"Training acc over epoch: {float(train_acc_metric.result()):.4f}")
    train_acc_metric.reset_state()
model.save_weights("scratch.weights.h5")
