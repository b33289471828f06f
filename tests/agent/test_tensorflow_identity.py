"""Whether a rescue of a TensorFlow loop fits a program that was edited since."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from watchdog_app.agent.tensorflow import Rescue  # noqa: E402
from watchdog_app.base.errors import RescueMismatch  # noqa: E402

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]

PROGRAM = '''
import keras
import tensorflow as tf

TEMPERATURE = 0.5
LR = 0.1


def scaled(value):
    """Divided by the temperature."""
    return value / TEMPERATURE


class Scale(tf.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.weight = tf.Variable([1.0, 2.0])
        self.factor = factor

    def __call__(self, x):
        """Scaled."""
        moved = scaled(x)  # the first
        return moved * self.weight * self.factor


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(4, activation="relu")
        self.last = keras.layers.Dense(2)

    def call(self, x):
        h = self.first(x)
        return self.last(h)


def make():
    model = Net()
    model(tf.zeros((1, 3)))
    optimizer = keras.optimizers.SGD(LR, momentum=0.9)
    return {"model": model, "optimizer": optimizer, "scale": Scale(2.0)}


def train(rescue, model, optimizer, scale, steps):
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(scale(model(tf.ones((2, 3)))) ** 2)
        trained = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
        rescue.step()
'''

LEGAL = {
    "nothing": ("", ""),
    "a comment": ("# the first", "# 1"),
    "a docstring": ("Scaled.", "It scales."),
    "a print": ("        moved = ", "        tf.print(x)\n        moved = "),
    "a local renamed": ("moved", "divided"),
    "a helper renamed": ("scaled", "divided_by"),
    "the module renamed": ("Scale", "Factor"),
    "the loop": ("tf.reduce_mean(", "tf.reduce_sum("),
    "another learning rate": ("LR = 0.1", "LR = 0.01"),
    "another momentum": ("momentum=0.9", "momentum=0.8"),
    "clipping": ("momentum=0.9", "momentum=0.9, clipnorm=1.0"),
    "another initializer": ("Dense(2)", 'Dense(2, kernel_initializer="zeros")'),
    "a constant's name": ("TEMPERATURE", "HEAT"),
    "a tf.function": ("    def __call__", "    @tf.function\n    def __call__"),
    "annotations": ("def call(self, x):", "def call(self, x: tf.Tensor) -> tf.Tensor:"),
}

OTHERS = {
    "activation": ('"relu"', '"gelu"', "Dense 1's activation is gelu in the program, relu in"),
    "call": ("self.last(h)", "self.last(h) * 2", "the code of Net.call (train.py:"),
    "module": ("* self.factor", "- self.factor", "the code of Scale.__call__ (train.py:"),
    "helper": ("value / TEMP", "value * TEMP", "has changed (scaled, which it calls)"),
    "constant": ("TEMPERATURE = 0.5", "TEMPERATURE = 0.9", "(scaled, which it calls)"),
    "attribute": ("Scale(2.0)}", "Scale(3.0)}", "scale's factor is 3 in the program, 2 in"),
    "optimizer": ("SGD(LR, momentum=0.9)", "Nadam(LR)", "optimizer is Nadam in the program, SGD"),
}


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No daemon; faults of ours are raised."""
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("WATCHDOG_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("WATCHDOG_AGENT_STRICT", "1")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A module of this text, imported anew."""
    count = 0

    def load(text: str) -> ModuleType:
        nonlocal count
        count += 1
        name = f"program_{count}"
        path = tmp_path / name / "train.py"
        path.parent.mkdir()
        path.write_text(text)
        module = ModuleType(name)
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, name, module)
        linecache.clearcache()
        exec(compile(text, str(path), "exec"), vars(module))
        return module

    return load


@pytest.fixture
def left(tmp_path: Path, program: Callable[[str], ModuleType]) -> Path:
    """A rescue of the program as it was, after two steps."""
    module = program(PROGRAM)
    objects = module.make()
    rescue = Rescue(tmp_path / "rescues", name="a", **objects)
    module.train(rescue, **objects, steps=2)
    assert rescue.save() is not None
    return tmp_path / "rescues"


def resumed(folder: Path, module: ModuleType, resume: str = "newest") -> tuple[Rescue, Any]:
    objects = module.make()
    return Rescue(folder, name="a", resume=resume, **objects), objects


def edited(before: str, after: str) -> str:
    assert before in PROGRAM
    return PROGRAM.replace(before, after)


@pytest.mark.parametrize("edit", LEGAL)
def test_a_legal_edit_is_never_refused(left: Path, program: Callable[[str], ModuleType], edit: str):
    """Whatever a person may change between two starts of one training."""
    rescue, _ = resumed(left, program(edited(*LEGAL[edit])))

    assert 2 == rescue.step_number


@pytest.mark.parametrize("change", OTHERS)
def test_another_computation_is_refused_and_named(
    left: Path, program: Callable[[str], ModuleType], change: str
):
    """Nothing is loaded."""
    before, after, named = OTHERS[change]

    with pytest.raises(RescueMismatch) as caught:
        resumed(left, program(edited(before, after)))

    assert any(named in each for each in caught.value.differences), caught.value.differences


def test_force_goes_on_and_says_what_differs(
    left: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """With another activation, at a person's word."""
    rescue, _ = resumed(left, program(edited('"relu"', '"gelu"')), "force")

    assert 2 == rescue.step_number
    assert "goes on although Dense 1's activation is gelu" in capsys.readouterr().err


def test_a_learning_rate_that_was_changed_on_purpose_takes_effect(
    left: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """It was undone without a word."""
    _, objects = resumed(left, program(edited("LR = 0.1", "LR = 0.5")))

    assert pytest.approx(0.5) == float(objects["optimizer"].learning_rate)
    assert "learning rate: 0.5 of the program is used from here on (was 0.1)." in (
        capsys.readouterr().err
    )


def test_a_learning_rate_that_the_training_moved_goes_on(
    tmp_path: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """Both are said."""
    module = program(PROGRAM)
    objects = module.make()
    rescue = Rescue(tmp_path / "moved", name="a", **objects)
    module.train(rescue, **objects, steps=1)
    objects["optimizer"].learning_rate = 0.025
    assert rescue.save() is not None

    _, objects = resumed(tmp_path / "moved", program(PROGRAM))

    assert pytest.approx(0.025) == float(objects["optimizer"].learning_rate)
    assert "learning rate: 0.025 of the rescue goes on (the program began with 0.1)." in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("batch", "rows", "said"),
    [(2, 6, ""), (3, 6, "goes on after 6 rows, at batch 2."), (4, 8, "2 rows are trained again.")],
)
def test_batches_of_another_size_go_on_at_the_same_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], batch: int, rows: int, said: str
):
    """Where the pipeline ends with a plain batch()."""
    data = tf.data.Dataset.range(12).shuffle(12, seed=1, reshuffle_each_iteration=False)
    weight = tf.Variable(1.0)
    rescue = Rescue(tmp_path / "r", name="a", weight=weight)
    for count, _ in enumerate(rescue.data(data.batch(2).prefetch(1)), 1):
        rescue.step()
        if count == 3:
            assert rescue.save() is not None
            break
    capsys.readouterr()
    again = Rescue(tmp_path / "r", name="a", resume="newest", weight=weight)

    seen = [int(row) for each in again.data(data.batch(batch).prefetch(1)) for row in each]

    assert [int(row) for row in data][-rows:] == seen
    assert said in capsys.readouterr().err
