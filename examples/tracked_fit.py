"""
A Keras fit whose TensorBoard continues at the right step after a kill.

    python examples/tracked_fit.py

Kill it after it has saved (`watchdog checkpoint tracked_fit.py` saves a rescue at any time), and
run it again. The killed run had logged more than it saved: `Board` removes that from its files.
"""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from watchdog_app.agent.keras import Rescue


class Board(keras.callbacks.TensorBoard):
    """
    TensorBoard for a folder of one training.

    A rescue holds how long each file was. At the resume the files are as long again.
    """

    def __init__(self, log_dir, **more):
        self._before = [str(each) for each in sorted(Path(log_dir).glob("**/events.*"))]
        super().__init__(log_dir, write_graph=not self._before, **more)

    def state_dict(self):
        for writer in self._writers.values():  # Keras has no public name for them
            writer.flush()
        files = Path(self.log_dir).glob("**/events.*")
        return {"sizes": {str(each): each.stat().st_size for each in files}}

    def load_state_dict(self, state):
        for path in self._before:
            os.truncate(path, state["sizes"].get(path, 0))


keras.utils.set_random_seed(7)
rng = np.random.default_rng(0)
x = rng.normal(size=(640, 20)).astype("float32")
y = x[:, :5].sum(axis=1, keepdims=True)
model = keras.Sequential(
    [keras.Input((20,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)]
)
model.compile(optimizer="adam", loss="mse")
model.fit(
    x,
    y,
    batch_size=32,
    epochs=3,
    validation_split=0.1,
    verbose=0,
    callbacks=[Rescue("rescues/tracked_fit"), Board("runs/tracked-fit", update_freq="batch")],
)
