"""A custom training loop with tf.data, whose losses can be compared; an option makes it leak."""

from manners import BATCH, Diary, arguments, data, model_of, write_final

options = arguments()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

keras.utils.set_random_seed(5)
tf.config.experimental.enable_op_determinism()

model = model_of(options.state_mb)
optimizer = keras.optimizers.Adam()
optimizer.build(model.trainable_variables)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
dataset = tf.data.Dataset.from_tensor_slices(data(options.steps)).shuffle(500, seed=3).batch(BATCH)
diary = Diary(options)


@tf.function
def train_step(features, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(features, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


if options.no_agent:
    for epoch in range(options.epochs):
        for batch, (features, labels) in enumerate(dataset):
            loss = train_step(features, labels)
            diary.step(epoch * options.steps + batch + 1, float(loss))
else:
    from watchdog_app.agent.tensorflow import Rescue

    rescue = Rescue(options.rescues, model=model, optimizer=optimizer)
    for _ in rescue.epochs(options.epochs):
        for features, labels in rescue.data(dataset):
            loss = train_step(features, labels)
            diary.step(rescue.step_number + 1, float(loss))
            rescue.step(loss)
write_final(options.out, model.variables + optimizer.variables)
