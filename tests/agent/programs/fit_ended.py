"""
Three fits of a program; it may die after the second one: `fit_ended.py ROLE FOLDER`.

Before that, role `dies` saves in a batch, and in role `near` a guard finds its limit near.
"""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["WATCHDOG_AGENT_STRICT"] = "1"

import keras
import numpy as np
import tensorflow as tf

from watchdog_app.agent.keras import Rescue
from watchdog_app.rescue.segment import exchange, segment

role, (folder,) = os.environ["ROLE"], sys.argv[1:]
if role == "near":
    os.environ[segment.ENVIRONMENT] = folder
    guard = exchange.Registry(1)
    guard.listen(os.path.join(folder, exchange.SOCKET))
tf.config.experimental.enable_op_determinism()
keras.utils.set_random_seed(3)
x = np.random.default_rng(1).normal(size=(40, 4)).astype("float32")


# Batches of each fit that this process trains. A resume would restore a list, or an attribute.
trained = np.zeros(3, int)


class Count(keras.callbacks.Callback):
    """Counts the batches, and lets memory be short as the role says."""

    def on_train_batch_end(self, batch, logs=None):
        trained[number] += 1
        if role == "dies" and number == 1 and trained[number] == 3:
            assert rescue.save() is not None
        if role == "near" and number == 1 and trained[number] == 3:
            guard.receive()
            guard.offers[os.getpid()].segment.ask_every_batch(True)


for number in range(3):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    rescue, count = Rescue(os.path.join(folder, "rescues")), Count()
    # It ends before its last epoch, and its weights are then those of another epoch.
    stop = keras.callbacks.EarlyStopping("loss", mode="max", restore_best_weights=True)
    callbacks = [rescue, stop, count]
    history = model.fit(x, x[:, :1], 8, 6, verbose=0, callbacks=callbacks).history
    told = [float(np.sum(each)).hex() for each in model.get_weights()]
    print(number, [each.hex() for each in history["loss"]], told, flush=True)
    print("trained", number, trained[number], flush=True)
    if role in ("dies", "near") and number == 1:
        os._exit(9)
