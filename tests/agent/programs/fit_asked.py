"""A training that runs until it is killed or finished: `fit_asked.py FOLDER [EPOCHS]`."""

import os
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["WATCHDOG_AGENT_STRICT"] = "1"

import keras
import numpy as np
import tensorflow as tf

from watchdog_app.agent.keras import Rescue

folder, epochs = sys.argv[1], int(sys.argv[2])
step_s = float(os.environ["STEP_S"])  # not an argument, which would make another training
keras.utils.set_random_seed(1)
tf.config.experimental.enable_op_determinism()
x = np.random.default_rng(0).normal(size=(200, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
model.compile("adam", "mse")


class Log(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        file.write(f"{model.optimizer.iterations.numpy()} {float(logs['loss']).hex()}\n")
        time.sleep(step_s)


with open(os.path.join(folder, "losses.txt"), "a", buffering=1) as file:
    model.fit(
        x,
        x[:, :1],
        batch_size=20,
        epochs=epochs,
        verbose=0,
        callbacks=[Log(), Rescue(os.path.join(folder, "rescues"))],
    )
print("ended well")
