"""For Keras loops that the agent cannot save automatically, it names the right Rescue."""

from __future__ import annotations

import os
import sys

import pytest
from support.finished import finished

PROGRAM = """
from watchdog_app.agent import hook
hook.switch_on()
import keras, numpy as np
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
before = model.reset_metrics.__func__
for _ in range(3):
    model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))
print(before is model.reset_metrics.__func__, keras.Model.reset_metrics.__qualname__)
from watchdog_app.agent.tensorflow import Rescue
from watchdog_app.base.errors import RescueError
try:
    Rescue("rescues", model=model, optimizer=model.optimizer)
except RescueError as error:
    print(error)
"""


@pytest.mark.torch
@pytest.mark.tensorflow
def test_a_loop_over_train_on_batch_is_told_once_and_the_wrong_rescue_refused(tmp_path):
    """
    Three batches cause one line and leave nothing behind.

    A TensorFlow loop on PyTorch is refused.
    """
    environment = {**os.environ, "KERAS_BACKEND": "torch", "TF_CPP_MIN_LOG_LEVEL": "3"}

    done = finished([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment)

    assert 0 == done.returncode, done.stderr
    assert 1 == done.stderr.count("trains Sequential with train_on_batch")
    assert "watchdog_app.agent.keras" in done.stderr
    assert "False Trainer.reset_metrics" in done.stdout
    assert "model, optimizer: this is Keras on torch" in done.stdout
