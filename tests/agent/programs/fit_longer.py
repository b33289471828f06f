"""A fit that saves at its end, and is made longer later: `fit_longer.py ROLE FOLDER`."""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["WATCHDOG_AGENT_STRICT"] = "1"

import keras
import numpy as np
import tensorflow as tf

from watchdog_app.agent.keras import Rescue

role, (folder,) = os.environ["ROLE"], sys.argv[1:]
tf.config.experimental.enable_op_determinism()
keras.utils.set_random_seed(3)
draw = np.random.default_rng(1)
x = draw.normal(size=(40, 4)).astype("float32")
model = keras.Sequential(
    [keras.Input((4,)), keras.layers.Dropout(0.3, seed=2), keras.layers.Dense(1)]
)
model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])


class Log(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(self.epoch, batch, {name: float(value).hex() for name, value in logs.items()})

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        print(epoch, "end", float(self.model.optimizer.learning_rate).hex())
        if role == "saved" and epoch == 1:
            assert rescue.save() is None


rescue = Rescue(os.path.join(folder, "rescues"), resume="newest" if role == "longer" else False)
callbacks = [
    Log(),
    keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
    *([] if role == "reference" else [rescue]),
    keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1),
]
epochs = 2 if role == "saved" else 4
history = model.fit(x, x[:, :1], 8, epochs, verbose=0, callbacks=callbacks).history
if role != "saved":
    print({name: [float(value).hex() for value in values] for name, values in history.items()})
    print([float(np.sum(value)).hex() for value in model.get_weights()])
