"""Whether a rescue of a TensorFlow loop fits a program that was edited later."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from identity_edits import TENSORFLOW, edited

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from watchdog_app.agent.adapters.tensorflow_state import LoopState  # noqa: E402
from watchdog_app.agent.found.tensorflow_passes import WatchedPasses  # noqa: E402
from watchdog_app.agent.found.tensorflow_training import find_objects  # noqa: E402
from watchdog_app.agent.identity.audit import ids_within  # noqa: E402
from watchdog_app.agent.tensorflow import Rescue  # noqa: E402

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("nobody"), pytest.mark.timeout(600)]


@pytest.fixture
def left(tmp_path: Path, program: Callable[[str], ModuleType]) -> Path:
    """A rescue of the unedited program after two steps."""
    module = program(TENSORFLOW)
    objects = module.make()
    rescue = Rescue(tmp_path / "rescues", name="a", **objects)
    module.train(rescue, **objects, steps=2)
    assert rescue.save() is not None
    return tmp_path / "rescues"


def resumed(folder: Path, module: ModuleType, resume: str = "newest") -> tuple[Rescue, Any]:
    objects = module.make()
    return Rescue(folder, name="a", resume=resume, **objects), objects


def test_force_goes_on_and_says_what_differs(
    left: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """The program has another activation, and the user passed resume="force"."""
    rescue, _ = resumed(left, program(edited(TENSORFLOW, '"relu"', '"gelu"')), "force")

    assert 2 == rescue.step_number
    assert "resumes although Dense 1's activation is gelu" in capsys.readouterr().err


def test_a_learning_rate_that_was_changed_on_purpose_takes_effect(
    left: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """An earlier version silently restored the old rate."""
    _, objects = resumed(left, program(edited(TENSORFLOW, "LR = 0.1", "LR = 0.5")))

    assert pytest.approx(0.5) == float(objects["optimizer"].learning_rate)
    assert "learning rate: 0.5 of the program is used from here on (was 0.1)." in (
        capsys.readouterr().err
    )


def test_a_learning_rate_that_the_training_moved_goes_on(
    tmp_path: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """The agent reports both rates."""
    module = program(TENSORFLOW)
    objects = module.make()
    rescue = Rescue(tmp_path / "moved", name="a", **objects)
    module.train(rescue, **objects, steps=1)
    objects["optimizer"].learning_rate = 0.025
    assert rescue.save() is not None

    _, objects = resumed(tmp_path / "moved", program(TENSORFLOW))

    assert pytest.approx(0.025) == float(objects["optimizer"].learning_rate)
    assert "learning rate: 0.025 of the rescue continues (the program began with 0.1)." in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("batch", "rows", "said"),
    [
        (2, 6, ""),
        (3, 6, "continues after 6 rows, at batch 2."),
        (4, 8, "2 rows are trained again."),
    ],
)
def test_batches_of_another_size_go_on_at_the_same_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], batch: int, rows: int, said: str
):
    """This works if the pipeline ends with a plain batch()."""
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


def test_an_optimizer_of_a_variable_outside_models_gets_its_slots_at_a_resume(tmp_path: Path):
    """As in style transfer, where the pixels of an image are trained."""
    for resume in (False, "newest"):
        image, optimizer = tf.Variable([1.0, 2.0]), keras.optimizers.Adam(0.1)
        rescue = Rescue(tmp_path / "r", name="a", resume=resume, image=image, optimizer=optimizer)
        optimizer.apply_gradients([(tf.constant([1.0, 1.0]), image)])
        rescue.step()
        assert rescue.save() is not None

    assert 2 == rescue.step_number == int(optimizer.iterations)


def test_metrics_that_keras_has_not_made_yet_do_not_keep_a_found_loop_from_its_rescue():
    """A loop over `train_on_batch`: compiled metrics have variables from the first batch on."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    model.train_on_batch(tf.ones((1, 2)), tf.ones((1, 1)))
    loss = keras.metrics.Mean()
    position: dict[str, Any] = {"variables": {}}

    state = LoopState(
        {"model": model, "loss": loss}, lambda: position, WatchedPasses(), begins=False
    )
    late = state.capture().meta["late"]

    assert any("mean_absolute_error" in name for name in late)
    assert {"model"} == {name.partition("/")[0] for name in late}
    assert [] == state.lost


def test_what_a_model_keeps_is_not_said_to_be_lost():
    """Its rescue holds the variables and optimizers in its attributes, too."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.beta, model.own = tf.Variable(0.0), keras.optimizers.Adam()

    assert {id(model.beta), id(model.own)} <= set(ids_within([model]))


def test_the_save_counter_of_a_checkpoint_belongs_to_its_state(tmp_path: Path):
    """TensorFlow makes this variable at the first save of the program's own checkpoints."""
    position: dict[str, Any] = {"variables": {}}

    def make() -> tuple[Any, LoopState]:
        group = tf.train.Checkpoint(step=tf.Variable(0))
        return group, LoopState({"group": group}, lambda: position, WatchedPasses())

    group, state = make()
    tf.train.CheckpointManager(group, str(tmp_path), max_to_keep=1).save()
    meta = state.capture().meta
    rows = {name: each for name, *each in meta["variables"]}
    _, again = make()
    again.build(SimpleNamespace(meta=meta, row=rows.get))

    assert [] == state.lost == meta["late"]
    assert rows.keys() == {each.name for each in again.variables()}
    assert id(group.step) in set(ids_within([group]))


def test_a_checkpoint_of_the_program_is_found_before_its_first_save():
    """All its variables belong to the model and the optimizer until it makes its counter."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)

    found = find_objects([optimizer], sys._getframe())

    assert checkpoint in [each.thing for each in found]
