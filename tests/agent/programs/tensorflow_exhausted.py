"""
TensorFlow loops that really run out of memory: `tensorflow_exhausted.py FOLDER CASE...`.

As in `fit_exhausted.py`, the loop with the limit runs first in its process.
"""

import io
import json
import os
import sys

import fit_exhausted as same  # sets the environment of TensorFlow
import keras
import tensorflow as tf

from watchdog_app.agent.tensorflow import Rescue


class Training:
    def __init__(self, *, noisy):
        keras.utils.set_random_seed(1)
        self.model = same.network(noisy=noisy)
        self.optimizer = keras.optimizers.Adam(1e-2)
        self.optimizer.build(self.model.trainable_variables)
        self.mean = keras.metrics.Mean()
        self.dataset = same.batches_of_unequal_length()
        self.losses = []

        @tf.function(reduce_retracing=True)
        def loss_of(rows, targets, weights):
            errors = tf.square(self.model(rows, training=True) - targets)[:, 0]
            return tf.reduce_mean(errors * weights) + sum(self.model.losses)

        self.loss_of = loss_of

    def run(self, rescue, *, epochs, narrow_at):
        step = 0
        for _ in rescue.epochs(epochs):
            for batch in rescue.data(self.dataset):
                if step % same.BATCHES == narrow_at:
                    same.narrow(40)
                variables = self.model.trainable_variables
                loss, gradients = rescue.gradients(batch, self.loss_of, variables)
                self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
                self.mean.update_state(loss)
                self.losses.append(float(loss).hex())
                rescue.step(loss)
                step += 1
                if step % same.BATCHES == 0:
                    same.wide()


def train(name, *, noisy=False, epochs=2, narrow_at=None, **options):
    training = Training(noisy=noisy)
    said, sys.stderr = sys.stderr, io.StringIO()
    found = {"error": None, "notes": []}
    state = {"model": training.model, "optimizer": training.optimizer, "mean": training.mean}
    try:
        with Rescue(os.path.join(sys.argv[1], name), **state, **options) as rescue:
            training.run(rescue, epochs=epochs, narrow_at=narrow_at)
    except Exception as error:
        found["error"] = type(error).__name__
        found["notes"] = list(getattr(error, "__notes__", []))
    finally:
        same.wide()
        found["said"], sys.stderr = sys.stderr.getvalue(), said
    return {**found, "losses": training.losses}


def saved():
    return {
        "stopped": train("saved", noisy=True, narrow_at=3),
        "resumed": train("saved", noisy=True, resume="newest"),
        "reference": train("whole", noisy=True),
    }


def shrunk():
    return {
        "parts": train("shrunk", epochs=9, narrow_at=3, on_oom="shrink"),
        "reference": train("whole", epochs=9),
    }


CASES = {"saved": saved, "shrunk": shrunk}

if __name__ == "__main__":
    tf.config.experimental.enable_op_determinism()
    for case in sys.argv[2:]:
        print(json.dumps({case: CASES[case]()}), flush=True)
