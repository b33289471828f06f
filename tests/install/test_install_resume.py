"""`watchdog.resume()` in real kernels that were killed and restarted with the same id."""

from __future__ import annotations

import os
import sys

import pytest
from real_kernel import kernel

from watchdog_app.install import trust

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

IMPORTS = """
import os, signal, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras, numpy as np, tensorflow as tf
tf.config.experimental.enable_op_determinism()
"""
MODEL = """
keras.utils.set_random_seed(3)
class Killer(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_begin(self, batch, logs=None):
        if "KILL" in os.environ and (self.epoch, batch) == (2, 3):
            added = sys._getframe(1).f_locals["self"].callbacks[0]
            added.save("as the daemon would ask")
            os.kill(os.getpid(), signal.SIGKILL)
x = np.random.default_rng(1).normal(size=(128, 8)).astype("float32")
!echo again >> commands.txt
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16),
                          keras.layers.Dropout(0.3), keras.layers.Dense(1)])
model.compile("adam", "mse")
"""
FIT = """
history = model.fit(x, x[:, :1], 16, 4, verbose=0, callbacks=[Killer()])
print("LOSSES", *[float(loss).hex() for loss in history.history["loss"]])
"""
LOOP = """
from watchdog_app.agent.found.tensorflow_signals import trainings
from watchdog_app.agent.runtime.link import CheckpointRequest
optimizer = keras.optimizers.Adam()
dataset = tf.data.Dataset.from_tensor_slices(x).batch(16)
for epoch in range(50):
    for batch in dataset:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(batch) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    session = getattr(trainings.current(), "session", None)
    if session is not None and session.saved is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    elif session is not None:
        session.link.pending_request = CheckpointRequest("1", "short", time.monotonic(), 60.0)
"""


def losses(text):
    (line,) = [line for line in text.splitlines() if line.startswith("LOSSES")]
    return line


@pytest.fixture
def started(tmp_path):
    """Start a kernel with the startup file, with the same id as after a Jupyter restart."""
    folder = tmp_path / "ipython" / "profile_default" / "startup"
    folder.mkdir(parents=True)
    (folder / "90-watchdog.py").write_bytes(trust.startup_file())

    def start(**env):
        own = {"WATCHDOG_RUNTIME_DIR": str(tmp_path / "no-daemon"), "WATCHDOG_AGENT_STRICT": "1"}
        return kernel(sys.executable, tmp_path, "0a1b-2c3d", **own, **env)

    return start


def test_a_killed_notebook_goes_on_in_one_line(started, tmp_path):
    """The resume is exact and skips shell commands and the failed cell; a custom loop follows."""
    with started(KILL="1") as first:
        for text in (IMPORTS, "1/0", "!echo once >> commands.txt", MODEL, FIT):
            first.run(text)
        assert not first.is_alive()

    with started() as second:
        offered = second.run("print('hello')")
        assert "at step 19, epoch 3. watchdog.resume() resumes" in offered
        assert 2 == len(offered.splitlines())
        listed = second.run("watchdog.resume(run=None)")
        assert "nothing was run" in listed
        assert "LOSSES" not in listed
        assert "left when" not in second.run("a = 1")

        resumed = second.run("watchdog.resume()")

        assert "[2]  1/0" in resumed
        assert "left out: it ended with an error" in resumed
        assert "resuming from" in resumed
        assert "no unfinished training to resume from" in second.run("watchdog.resume()")
        second.run(MODEL)
        assert losses(second.run(FIT)) == losses(resumed)
        assert ["once", "again", "again"] == (tmp_path / "commands.txt").read_text().split()
        second.run(LOOP)
        assert not second.is_alive()

    with started() as third:
        assert "watchdog.resume() shows the lines" in third.run("a = 1")

        told = third.run("watchdog.resume()")

        assert "optimizer=optimizer" in told
        assert "    for batch in rescue.data(dataset):" in told
        assert "True\n" == third.run("print(model.built)")


def test_a_name_of_the_users_is_left_to_them(started, tmp_path):
    """A notebook without a rescue prints nothing until the user calls it."""
    with started() as only:
        assert "" == only.run("a = 1")
        asked = only.run("watchdog.resume()")
        assert "this kernel has no unfinished training to resume from" in asked
        assert str(tmp_path) in asked or "nothing" in asked
        assert "mine\n" == only.run("watchdog = 'mine'\nprint(watchdog)")
    assert not (tmp_path / "rescues").exists()
    assert os.listdir(tmp_path)
