"""A Keras fit whose losses can be compared bit for bit; leaks on request."""

import threading

from manners import BATCH, Diary, arguments, data, model_of, warm_up, write_final

options = arguments()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

keras.utils.set_random_seed(5)
tf.config.experimental.enable_op_determinism()


class Watchful(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.diary, self.epoch = Diary(options), 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.diary.step(self.epoch * options.steps + batch + 1, float(logs["loss"]))

    def state_dict(self):
        return {}  # nothing of this belongs to the training

    def load_state_dict(self, state):
        pass


def main():
    features, labels = data(options.steps)
    model = model_of(options.state_mb)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    held = warm_up(options.plateau_mb)
    callbacks = [Watchful()]
    if not options.no_agent:
        from watchdog_app.agent.keras import Rescue

        callbacks.append(Rescue(options.rescues))
    model.fit(features, labels, BATCH, epochs=options.epochs, verbose=0, callbacks=callbacks)
    write_final(options.out, model.variables + model.optimizer.variables)
    del held


if options.in_thread:
    worker = threading.Thread(target=main)
    worker.start()
    worker.join()
else:
    main()
