"""A Keras fit whose losses can be compared bit for bit; an option makes it leak."""

import threading

from manners import BATCH, Diary, arguments, data, model_of, warm_up, write_final

options = arguments()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

keras.utils.set_random_seed(5)
tf.config.experimental.enable_op_determinism()


class Watchful(keras.callbacks.Callback):
    def __init__(self, diary):
        super().__init__()
        self.diary, self.epoch = diary, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        self.diary.begin(self.epoch * options.steps + batch + 1)

    def on_train_batch_end(self, batch, logs=None):
        self.diary.step(self.epoch * options.steps + batch + 1, float(logs["loss"]))

    def state_dict(self):
        return {}  # this callback has no state of the training

    def load_state_dict(self, state):
        pass


def batches(diary):
    """Yield the batches of all epochs in order, each created when it is read."""
    features, labels = data(options.steps)
    for number in range(options.epochs * options.steps):
        diary.fetch(number + 1)
        begin = number % options.steps * BATCH
        yield features[begin : begin + BATCH], labels[begin : begin + BATCH]


def main():
    diary = Diary(options)
    model = model_of(options.state_mb)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    held = warm_up(options.plateau_mb)
    callbacks = [Watchful(diary)]
    if not options.no_agent:
        from watchdog_app.agent.keras import Rescue

        callbacks.append(Rescue(options.rescues))
    how = {"epochs": options.epochs, "verbose": 0, "callbacks": callbacks}
    if options.generator:
        model.fit(batches(diary), steps_per_epoch=options.steps, **how)
    else:
        model.fit(*data(options.steps), BATCH, **how)
    write_final(options.out, model.variables + model.optimizer.variables)
    del held


if options.in_thread:
    worker = threading.Thread(target=main)
    worker.start()
    worker.join()
else:
    main()
