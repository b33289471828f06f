"""Whether a rescue of a Keras fit fits a program that was edited later."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from identity_edits import KERAS, edited

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

keras = pytest.importorskip("keras")

from watchdog_app.agent.adapters.keras.identity import gather  # noqa: E402
from watchdog_app.agent.adapters.keras.state import FitState  # noqa: E402
from watchdog_app.agent.state import randomness  # noqa: E402
from watchdog_app.base.errors import RescueMismatch  # noqa: E402
from watchdog_app.rescue.identity.compare import Decision, compare  # noqa: E402

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]


def identity(module: ModuleType, kind: str) -> Any:
    from keras.src.trainers.epoch_iterator import EpochIterator

    x, y = module.data()
    iterator = EpochIterator(x, y, batch_size=module.BATCH_SIZE, shuffle=y is not None)
    return gather(module.make(kind), iterator, keras.backend.backend())


def saved(found: Any) -> Any:
    return json.loads(json.dumps(found.to_json()))


def test_other_values_of_the_data_are_reported(program: Callable[[str], ModuleType]):
    """A program may draw its data in each run."""
    before = saved(identity(program(KERAS), "sequential"))
    other = program(edited(KERAS, "default_rng(0)", "default_rng(1)"))

    found = compare(before, identity(other, "sequential"))

    assert [] == found.texts(Decision.REFUSE)
    assert ["the rows of the data hold other values than when the rescue was saved."] == (
        found.texts(Decision.SAY)
    )


ARRAYS = KERAS.replace("def data():", "def arrays():")
PIPELINE = (
    ARRAYS
    + """
import tensorflow as tf

GAIN = 2.0


def augment(pair, one):
    return pair[0] * GAIN, pair[1] * tf.cast(one, pair[1].dtype)


def data():
    rows = tf.data.Dataset.from_tensor_slices(arrays())
    one = tf.data.Dataset.from_tensors(1.0).repeat()
    rows = tf.data.Dataset.zip((rows, one)).shuffle(8, seed=1)
    return rows.map(augment).batch(BATCH_SIZE), None
"""
)
SEQUENCE = (
    ARRAYS
    + """
class Rows(keras.utils.PyDataset):
    def __init__(self, gain):
        super().__init__()
        self.x, self.y = arrays()
        self.gain = gain

    def __len__(self):
        return len(self.x) // BATCH_SIZE

    def __getitem__(self, index):
        rows = slice(index * BATCH_SIZE, (index + 1) * BATCH_SIZE)
        return self.x[rows] * self.gain, self.y[rows]


def data():
    return Rows(2.0), None
"""
)


@pytest.mark.parametrize(
    ("text", "before", "after", "told"),
    [
        (PIPELINE, "pair[0] * GAIN", "pair[0] + GAIN", "augment"),
        (PIPELINE, "GAIN = 2.0", "GAIN = 3.0", "augment"),
        (PIPELINE, "seed=1", "seed=2", "steps"),
        (PIPELINE, "shuffle(8", "shuffle(4", "steps"),
        (PIPELINE, ".shuffle(8, seed=1)", "", "steps"),
        (PIPELINE, ".batch(BATCH_SIZE)", ".batch(BATCH_SIZE).prefetch(2)", None),
        (PIPELINE, "pair", "element", None),
        (SEQUENCE, "* self.gain", "+ self.gain", "__getitem__"),
        (SEQUENCE, "Rows(2.0)", "Rows(3.0)", "gain"),
        (SEQUENCE, "return self.x[rows]", "print(index)\n        return self.x[rows]", None),
    ],
)
def test_data_that_is_made_in_another_way_is_reported(
    program: Callable[[str], ModuleType], text: str, before: str, after: str, told: str | None
):
    """A fit skips finished batches, so that it goes on, and says so."""
    rescue = saved(identity(program(text), "sequential"))

    found = compare(rescue, identity(program(edited(text, before, after)), "sequential"))

    assert [] == found.texts(Decision.REFUSE)
    lines = [each for each in found.texts(Decision.SAY) if "left out all the same" in each]
    assert [told] == [told for each in lines if told in each] if told else [] == lines


def test_another_backend_is_never_resumed(program: Callable[[str], ModuleType]):
    """Its random numbers and the order of its data differ."""
    found = identity(program(KERAS), "sequential")
    before = {**saved(found), "framework": "a fit of Keras on jax"}

    refused = compare(before, found).texts(Decision.NEVER)

    assert 1 == len(refused)
    assert "saved by a fit of Keras on jax, and this is a fit of Keras on" in refused[0]


def test_a_model_that_cannot_be_looked_at_is_no_obstacle():
    """The model is not compiled, has layers without a configuration, or is missing."""

    class Odd(keras.layers.Layer):
        def __init__(self, needed):
            super().__init__()

        def get_config(self):
            raise NotImplementedError

        def call(self, x):
            return x

    at = keras.Input((2,))
    bare = keras.Model(at, keras.layers.Dense(2)(Odd(1)(at)))
    other = keras.Model(at, Odd(1)(keras.layers.Dense(2)(at)))
    found = gather(bare, None, "tensorflow")

    assert () == compare(saved(found), found).found
    assert compare(saved(found), gather(other, None, "tensorflow")).found
    assert [] == gather(object(), None, "tensorflow").model


class Stop(Exception):
    """Simulates the kill."""


class StopAt(keras.callbacks.Callback):
    """Saves before the next batch, and raises at the one after it."""

    def __init__(self, rescue, batch):
        super().__init__()
        self.rescue, self.batch, self.seen = rescue, batch, 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen == self.batch:
            assert self.rescue.save() is not None
            raise Stop


def rescued(folder: Path, **wishes: Any) -> Any:
    from watchdog_app.agent.keras import Rescue

    return Rescue(folder, name="a", **wishes)


@pytest.fixture
def left(
    tmp_path: Path, program: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A fit that stopped after seven batches, the second of its second epoch."""
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("WATCHDOG_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("WATCHDOG_AGENT_STRICT", "1")
    folder = tmp_path / "rescues"
    keras.utils.set_random_seed(1)
    module = program(KERAS)
    rescue = rescued(folder)
    with pytest.raises(Stop):
        module.fit(module.make("sequential"), [rescue, StopAt(rescue, 7)])
    return folder


def goes_on(folder: Path, module: ModuleType, resume: str = "newest") -> tuple[Any, Any]:
    keras.utils.set_random_seed(1)
    model = module.make("sequential")
    return model, module.fit(model, [rescued(folder, resume=resume)])


def whole(program: Callable[[str], ModuleType]) -> Any:
    keras.utils.set_random_seed(1)
    module = program(KERAS)
    return module.fit(module.make("sequential"), [])


def test_an_edited_print_goes_on_bit_for_bit(
    left: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """The agent reports nothing."""
    _, history = goes_on(left, program(edited(KERAS, "# the difference", "# another")))

    assert whole(program)["loss"] == history["loss"]
    assert "rate" not in capsys.readouterr().err


def test_a_program_that_computes_something_else_is_refused(
    left: Path, program: Callable[[str], ModuleType]
):
    """The error names the rescue, its step, the difference and two remedies; nothing is trained."""
    module = program(edited(KERAS, "ops.square(error)", "ops.abs(error)"))
    model = module.make("sequential")

    with pytest.raises(RescueMismatch) as caught:
        module.fit(model, [rescued(left, resume="newest")])

    text = str(caught.value)
    assert "(step 7, saved " in text
    assert "does not fit this program: the code of loss (train.py:" in text
    assert 'resume="force"' in text
    assert "resume=False" in text
    assert 1 == len(caught.value.differences)
    assert 0 == int(model.optimizer.iterations)


def test_force_goes_on_all_the_same_and_says_so(
    left: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """The run loads the state and trains with the other loss."""
    model, _ = goes_on(left, program(edited(KERAS, "ops.square(error)", "ops.abs(error)")), "force")

    assert 15 == int(model.optimizer.iterations)
    assert "resumes although the code of loss" in capsys.readouterr().err


def test_force_does_not_load_tensors_of_another_shape(
    left: Path, program: Callable[[str], ModuleType]
):
    """The new program has no tensors of these shapes."""
    with pytest.raises(RescueMismatch, match="To start over") as caught:
        goes_on(left, program(edited(KERAS, "UNITS = 4", "UNITS = 5")), "force")

    assert 'resume="force"' not in str(caught.value)


def test_a_learning_rate_that_was_changed_on_purpose_takes_effect(
    left: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """The agent reports it. The next resume without a change keeps the new rate."""
    changed = program(edited(KERAS, "LEARNING_RATE = 0.05", "LEARNING_RATE = 0.001"))
    model, history = goes_on(left, changed)

    assert pytest.approx(0.001) == float(model.optimizer.learning_rate)
    assert whole(program)["loss"][2] != history["loss"][2]
    assert "learning rate: 0.001 of the program is used from here on (was 0.05)." in (
        capsys.readouterr().err
    )


def test_a_learning_rate_that_the_training_moved_goes_on(
    tmp_path: Path,
    left: Path,
    program: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
):
    """The saved rate applies unless the callback changes it again; the agent reports both rates."""
    folder = tmp_path / "moved"
    module = program(KERAS)
    model, rescue = module.make("sequential"), rescued(folder)

    class Halve(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                model.optimizer.learning_rate = 0.025

    with pytest.raises(Stop):
        module.fit(model, [rescue, Halve(), StopAt(rescue, 7)])

    resumed, _ = goes_on(folder, program(KERAS))

    assert pytest.approx(0.025) == float(resumed.optimizer.learning_rate)
    assert "learning rate: 0.025 of the rescue continues (the program began with 0.05)." in (
        capsys.readouterr().err
    )


def test_a_smaller_batch_goes_on_at_the_same_sample(
    left: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """Sixteen of the forty rows of the second epoch are trained, so four of its batches remain."""
    model, _ = goes_on(left, program(edited(KERAS, "BATCH_SIZE = 8", "BATCH_SIZE = 4")))

    assert 7 + 6 + 10 == int(model.optimizer.iterations)
    assert "batches are of 4 rows now (were 8): continues after 16 rows, at batch 4." in (
        capsys.readouterr().err
    )


def test_a_batch_that_does_not_divide_trains_some_rows_again(
    left: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """These are fewer rows than a batch."""
    model, _ = goes_on(left, program(edited(KERAS, "BATCH_SIZE = 8", "BATCH_SIZE = 10")))

    assert 7 + 3 + 4 == int(model.optimizer.iterations)
    assert "at batch 1; 6 rows are trained again." in capsys.readouterr().err


def test_a_metric_more_begins_anew_and_the_others_go_on(
    left: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """Fewer metrics are allowed too."""
    text = edited(KERAS, 'metrics=["mae"]', 'metrics=["mae", "mse"]')
    _, history = goes_on(left, program(text))

    assert "the metric mean_squared_error starts over." in capsys.readouterr().err
    assert whole(program)["loss"] == history["loss"]
    assert whole(program)["mae"] == history["mae"]


def test_gathering_never_raises(monkeypatch: pytest.MonkeyPatch):
    """The data and the model's attributes raise on every access."""

    class Hostile:
        def __getattr__(self, name):
            raise RuntimeError(name)

    found = gather(Hostile(), Hostile(), "tensorflow")

    assert {} == found.data
    assert np.size(found.model) == 0


@pytest.mark.parametrize("is_drawing", [False, True])
def test_numbers_that_a_pydataset_draws_are_no_shuffle_of_keras(is_drawing: bool):
    """Keras's own shuffle is repeated; what `__getitem__` draws ahead is not restored."""
    from keras.src.trainers.epoch_iterator import EpochIterator

    class Rows(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            return np.full((2, 3), random.random() if is_drawing else index)

    iterator = EpochIterator(Rows(), shuffle=True)
    state = SimpleNamespace(
        _random_at_epoch=randomness.capture(), progress=SimpleNamespace(iterator=iterator)
    )
    for _ in range(2):
        assert 5 == len(list(iterator.data_adapter._get_iterator()))

    assert is_drawing == FitState._drawn_in_background(state, randomness.capture())
