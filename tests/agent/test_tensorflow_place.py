"""A custom loop that finds its own batches gets its position."""

from __future__ import annotations

import os

import pytest
from support import zygote

pytestmark = pytest.mark.tensorflow

LOOP = """
import keras
from watchdog_app.agent.tensorflow import Rescue

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
rescue = Rescue("rescues", model=model)
print("starts at", rescue.step_number, flush=True)
for _ in range(3):
    rescue.step()
rescue.save()
rescue.step()
import os
os._exit(9)
"""


def test_a_loop_without_data_or_epochs_is_told_how_many_steps_are_done(tmp_path):
    """
    The weights are restored.

    The program must find its position in the data, and the agent says so once.
    """
    env = dict(os.environ, WATCHDOG_RUNTIME_DIR=str(tmp_path / "run"))
    runs = [zygote.run("-c", LOOP, cwd=tmp_path, env=env) for _ in range(2)]

    assert [9, 9] == [run.returncode for run in runs], runs[1].stderr
    assert "starts at 0" in runs[0].stdout
    assert "starts at 3" in runs[1].stdout
    assert "steps are done" not in runs[0].stderr
    assert 1 == runs[1].stderr.count("3 steps are done")


NOISE = """
import keras
import tensorflow as tf
from watchdog_app.agent.tensorflow import Rescue

weight = tf.Variable(0.0)
@tf.function
def jitter(x):
    return x + tf.random.uniform(())
data = tf.data.Dataset.range(2).map(lambda x: jitter(tf.cast(x, tf.float32)))
class Trainer:
    @tf.function
    def step(self):
        weight.assign_add(DRAW)
trainer = Trainer()
rescue = Rescue("rescues", weight=weight)
for _ in rescue.epochs(2):
    for _ in rescue.data(data):
        trainer.step()
        rescue.step()
"""


@pytest.mark.parametrize(("draw", "is_named"), [("tf.random.normal(())", True), ("1.0", False)])
def test_random_numbers_of_a_traced_function_are_named(tmp_path, draw: str, is_named: bool):
    """
    A method of the program's object is one; `tf.random.normal` counts where nobody can read.

    A function of the data set's `map` is none: the pass is repeated, and draws the same again.
    """
    (tmp_path / "train.py").write_text(NOISE.replace("DRAW", draw))
    env = dict(os.environ, WATCHDOG_RUNTIME_DIR=str(tmp_path / "run"))
    run = zygote.run("train.py", cwd=tmp_path, env=env)

    assert 0 == run.returncode, run.stderr
    assert is_named is ("the training step draws with RandomStandardNormal" in run.stderr)
    assert "RandomUniform" not in run.stderr


EVALUATED = """
from watchdog_app.agent import hook
hook.switch_on()
import keras
import tensorflow as tf
from watchdog_app.agent.tensorflow import Rescue

keras.utils.set_random_seed(1)
weight = tf.Variable(0.0)
data = tf.data.Dataset.range(2)
held_out = tf.data.Dataset.range(4).shuffle(4, SHUFFLE)
rescue = Rescue("rescues", weight=weight)
for x in held_out:
    print(int(x))
for _ in rescue.epochs(2):
    for _ in rescue.data(data):
        weight.assign_add(1.0)
        rescue.step()
    rescue.save()
    for x in held_out:
        print(int(x))
"""


@pytest.mark.parametrize(
    ("options", "is_named"), [("", True), ("reshuffle_each_iteration=False", False)]
)
def test_an_evaluation_whose_data_shuffles_in_each_pass_is_named(tmp_path, options, is_named):
    (tmp_path / "train.py").write_text(EVALUATED.replace("SHUFFLE", options))
    env = dict(os.environ, WATCHDOG_RUNTIME_DIR=str(tmp_path / "run"))
    run = zygote.run("train.py", cwd=tmp_path, env=env)

    assert 0 == run.returncode, run.stderr
    assert is_named is ("a tf.data shuffle that an evaluation reads" in run.stderr)
