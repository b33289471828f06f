"""A fit that announces growth and has a slow validation: `fit_phases.py FOLDER`."""

import os
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["WATCHDOG_AGENT_STRICT"] = "1"

import keras
import numpy as np

from watchdog_app.agent.keras import Rescue
from watchdog_app.agent.tensorflow import Rescue as LoopRescue

x = np.zeros((40, 4), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
rescue = Rescue(os.path.join(sys.argv[1], "fit"))
rescue.expect(123_456, "the shuffle buffer")


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.2)

    def on_test_batch_end(self, batch, logs=None):
        time.sleep(0.2)

    def on_epoch_end(self, epoch, logs=None):
        time.sleep(0.6)


callbacks = [Slow(), rescue]
model.fit(x, x[:, :1], 10, 2, validation_data=(x, x[:, :1]), verbose=0, callbacks=callbacks)

with LoopRescue(os.path.join(sys.argv[1], "loop"), model=model) as loop:
    for _ in range(5):
        loop.step()
        time.sleep(0.2)
    with loop.phase("validate"):
        time.sleep(0.8)
    loop.expect(99, "a cache")
    time.sleep(0.8)
print("ended well")
