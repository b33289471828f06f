"""A rescue that does not fit must not stop a training that did not request a resume."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from support.finished import finished

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

PROGRAM = """
import os, signal, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras, numpy as np
class Killer(keras.callbacks.Callback):
    seen = ()
    def on_train_batch_begin(self, batch, logs=None):
        self.seen = (*self.seen, batch)
        if "KILL" in os.environ and batch == 3:
            sys._getframe(1).f_locals["self"].callbacks[0].save("as the daemon would ask")
            os.kill(os.getpid(), signal.SIGKILL)
x = np.ones((256, 8), "float32")
units = int(os.environ.get("UNITS", "16"))
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(units), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, x[:, :1], 32, 2, verbose=0, callbacks=[Killer()])
print("TRAINED")
"""


@pytest.fixture
def train(tmp_path):
    """Run the program with the agent in it."""
    (tmp_path / "train.py").write_text(PROGRAM)

    def run(**env):
        own = {"WATCHDOG_RUNTIME_DIR": str(tmp_path / "no-daemon"), "WATCHDOG_AGENT_STRICT": "1"}
        return finished(
            [sys.executable, "-m", "watchdog_app", "exec", "--", sys.executable, "train.py"],
            cwd=tmp_path,
            timeout=120,
            env={**os.environ, **own, **env},
        )

    return run


def rescues(folder):
    """Return the names of the rescues in a folder, without lock files."""
    return [name for name in sorted(os.listdir(folder)) if name.startswith("rescue-")]


def test_a_changed_program_trains_anew_beside_the_rescue_that_does_not_fit(train, tmp_path):
    """
    The old rescue stays, the new one gets its own folder, and each program finds its own again.
    """
    assert -signal.SIGKILL == train(KILL="1").returncode
    kept = rescues(tmp_path / "rescues" / "train.py")

    other = train(KILL="1", UNITS="17")

    assert -signal.SIGKILL == other.returncode
    assert 1 == other.stderr.count("saved in rescues/train.py-2/rescue-0000000003-")
    assert 1 == other.stderr.count(
        "When the fit is run again in a new process, it resumes from there."
    )
    before, _, after = other.stderr.partition("saved in rescues/train.py-2/")
    assert 1 == before.count("will not bring back: what Killer keeps in seen")
    assert "Killer" not in after
    refused = [line for line in other.stderr.splitlines() if "does not fit this program" in line]
    assert 1 == len(refused)
    assert "watchdog: not resumed: the rescue in rescues/train.py does not fit" in refused[0]
    assert ": Dense 1's units is 17 in the program, 16 in the rescue" in refused[0]
    assert "its rescues go to rescues/train.py-2. Remove the other folder if" in refused[0]
    assert "fits are saved in" not in other.stderr
    assert "Rescue(...," not in other.stderr
    assert kept == rescues(tmp_path / "rescues" / "train.py")
    assert 1 == len(rescues(tmp_path / "rescues" / "train.py-2"))

    again, first = train(UNITS="17"), train()

    for done, folder in ((again, "train.py-2"), (first, "train.py")):
        assert "TRAINED" in done.stdout
        assert f"resuming from {tmp_path}/rescues/{folder}/" in done.stderr
