"""Whether a rescue of a Keras fit fits a program that was edited since."""

from __future__ import annotations

import json
import linecache
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

keras = pytest.importorskip("keras")

from watchdog_app.agent.adapters.keras.identity import gather  # noqa: E402
from watchdog_app.base.errors import RescueMismatch  # noqa: E402
from watchdog_app.rescue.identity.compare import Decision, compare  # noqa: E402

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

PROGRAM = '''
import keras
import numpy as np
from keras import ops

TEMPERATURE = 0.5
UNITS = 4
EPOCHS = 3
BATCH_SIZE = 8
LEARNING_RATE = 0.05


def scaled(value):
    """Divided by the temperature."""
    return value / TEMPERATURE


def summary(model):
    return len(model.layers)


def loss(truth, guess):
    """Mean of squares."""
    error = truth - guess  # the difference
    return ops.mean(ops.square(error))


class Scale(keras.layers.Layer):
    def __init__(self, factor=2.0, **more):
        super().__init__(**more)
        self.factor = factor

    def call(self, x):
        shifted = scaled(x)
        return shifted * self.factor


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(UNITS, activation="relu")
        self.second = keras.layers.Dense(UNITS, activation="tanh")
        self.last = keras.layers.Dense(1)

    def call(self, x, training=False):
        h = self.first(x)
        h = self.second(h)
        return self.last(h)


def data():
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    return x, x.sum(1, keepdims=True)


def functional():
    at = keras.Input((3,))
    left = keras.layers.Dense(UNITS, activation="relu", kernel_regularizer="l2")(at)
    right = keras.layers.Dense(UNITS, activation="tanh")(at)
    joined = keras.layers.Subtract()([left, right])
    joined = keras.layers.Dropout(0.2)(joined)
    joined = Scale(2.0)(joined)
    shown = keras.layers.Lambda(lambda t: t * 3.0)(joined)
    return keras.Model(at, keras.layers.Dense(1)(shown) + 1.0)


def make(kind):
    if kind == "functional":
        model = functional()
    elif kind == "subclassed":
        model = Net()
        model(np.zeros((1, 3), "float32"))
    else:
        model = keras.Sequential(
            [
                keras.layers.Dense(UNITS, activation="relu"),
                keras.layers.Dense(UNITS, activation="tanh"),
                keras.layers.Dense(1),
            ]
        )
        model.build((None, 3))
    optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)
    model.compile(optimizer, loss, metrics=["mae"])
    return model


def fit(model, callbacks):
    x, y = data()
    history = model.fit(x, y, BATCH_SIZE, EPOCHS, verbose=0, callbacks=[*callbacks])
    return history.history
'''


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


def edited(before: str, after: str) -> str:
    assert before in PROGRAM
    return PROGRAM.replace(before, after)


def identity(module: ModuleType, kind: str) -> Any:
    from keras.src.trainers.epoch_iterator import EpochIterator

    x, y = module.data()
    iterator = EpochIterator(x, y, batch_size=module.BATCH_SIZE, shuffle=True)
    return gather(module.make(kind), iterator, keras.backend.backend())


def saved(found: Any) -> Any:
    return json.loads(json.dumps(found.to_json()))


KINDS = ("functional", "subclassed", "sequential")

LEGAL = {
    "nothing": ("", ""),
    "a comment": ("# the difference", "# truth less guess"),
    "a docstring": ("Mean of squares.", "MSE"),
    "a print in the loss": ("    error = truth", '    print("loss")\n    error = truth'),
    "a print in call": ("        h = self.first(x)", "        print(x)\n        h = self.first(x)"),
    "a local renamed": ("error", "difference"),
    "a local of call renamed": ("shifted", "moved"),
    "a parameter renamed": ("guess", "prediction"),
    "a helper renamed": ("scaled", "divided"),
    "the loss renamed": ("loss", "criterion"),
    "a helper outside": ("return len(model.layers)", "return model.count_params()"),
    "more epochs": ("EPOCHS = 3", "EPOCHS = 30"),
    "a smaller batch": ("BATCH_SIZE = 8", "BATCH_SIZE = 4"),
    "a larger batch": ("BATCH_SIZE = 8", "BATCH_SIZE = 20"),
    "another learning rate": ("LEARNING_RATE = 0.05", "LEARNING_RATE = 0.001"),
    "a schedule": (
        "SGD(LEARNING_RATE,",
        "SGD(keras.optimizers.schedules.CosineDecay(0.1, 100),",
    ),
    "another momentum": ("momentum=0.9", "momentum=0.8"),
    "weight decay": ("momentum=0.9", "momentum=0.9, weight_decay=0.01"),
    "clipping": ("momentum=0.9", "momentum=0.9, clipnorm=1.0"),
    "another metric": ('metrics=["mae"]', 'metrics=["mae", "mse"]'),
    "no metric": (', metrics=["mae"]', ""),
    "run eagerly": ("loss, metrics", "loss, run_eagerly=True, metrics"),
    "compiled by XLA": ("loss, metrics", "loss, jit_compile=True, metrics"),
    "several steps at once": ("loss, metrics", "loss, steps_per_execution=2, metrics"),
    "names of layers": ("Dense(1)", 'Dense(1, name="output")'),
    "another initializer": ("Dense(1)", 'Dense(1, kernel_initializer="zeros")'),
    "seeds of initializers": (
        "Dense(1)",
        "Dense(1, kernel_initializer=keras.initializers.GlorotUniform(7))",
    ),
    "a seed of dropout": ("Dropout(0.2)", "Dropout(0.2, seed=7)"),
    "an import": ("import keras\n", "import json\nimport keras\n"),
    "an alias": ("from keras import ops", "from keras import ops as o\nops = o"),
    "formatting": ("truth - guess", "(truth  -  guess)"),
    "annotations": ("def loss(truth, guess):", "def loss(truth: object, guess: object) -> object:"),
    "a log folder": ("self.factor = factor", 'self.factor = factor\n        self.log_dir = "a"'),
    "a name": ("self.factor = factor", 'self.factor = factor\n        self.run_name = "a"'),
    "an unused function": ("def data():", "def other():\n    return 1\n\n\ndef data():"),
    "a constant's name": ("TEMPERATURE", "HEAT"),
    "a constant written otherwise": ("TEMPERATURE = 0.5", "TEMPERATURE = 5e-1"),
    "a constant for a number": ("Scale(2.0)", "Scale(4.0 / 2.0)"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edit", LEGAL)
def test_a_legal_edit_is_never_refused(program: Callable[[str], ModuleType], edit: str, kind: str):
    """Whatever a person may change between two starts of one training."""
    before = saved(identity(program(PROGRAM), kind))

    found = compare(before, identity(program(edited(*LEGAL[edit])), kind))

    assert [] == found.texts(Decision.REFUSE) + found.texts(Decision.NEVER)


TRAIN_STEP = """    def train_step(self, data):
        return super().train_step(data)

    def call(self, x, training=False):"""
OTHERS = {
    "activation": (
        'activation="relu"', 'activation="gelu"', KINDS, "activation is gelu in the program, relu"
    ),
    "activations swapped": (
        'UNITS, activation="relu"', 'UNITS, activation="tanh"', KINDS, "activation is tanh",
    ),
    "rate": ("Dropout(0.2)", "Dropout(0.7)", ("functional",), "Dropout's rate is 0.7"),
    "regularizer": ('kernel_regularizer="l2"', "", ("functional",), "kernel_regularizer"),
    "rewired": (
        'activation="tanh")(at)', 'activation="tanh")(left)', ("functional",),
        "Dense 2 is given other inputs",
    ),
    "the other way round": (
        "Subtract()([left, right])", "Subtract()([right, left])", ("functional",), "activation is"
    ),
    "merged otherwise": ("Subtract()", "Add()", ("functional",), "is a Add in the program"),
    "a layer more": (
        "joined = Scale(2.0)(joined)",
        "joined = Scale(2.0)(keras.layers.ReLU()(joined))",
        ("functional",),
        "ReLU (ReLU) is in the program only",
    ),
    "an operation's constant": (
        "(shown) + 1.0", "(shown) + 2.0", ("functional",), "other inputs"
    ),
    "an argument of a layer": ("Scale(2.0)", "Scale(4.0)", ("functional",), "Scale's factor is 4"),
    "a helper of call": (
        "return value / TEMPERATURE", "return value * TEMPERATURE", ("functional",),
        "the code of Scale.call (train.py:",
    ),
    "a constant of the module": (
        "TEMPERATURE = 0.5", "TEMPERATURE = 0.9", ("functional",), "(scaled, which it calls)"
    ),
    "a lambda": ("t * 3.0", "t * 4.0", ("functional",), "Lambda's function"),
    "call": (
        "h = self.second(h)", "h = self.second(h) * 2", ("subclassed",), "the code of Net.call"
    ),
    "call in another order": (
        "h = self.first(x)\n        h = self.second(h)",
        "h = self.second(x)\n        h = self.first(h)",
        ("subclassed",),
        "the code of Net.call",
    ),
    "loss": ("ops.square(error)", "ops.abs(error)", KINDS, "the code of loss (train.py:"),
    "loss of the library": (
        "compile(optimizer, loss,", 'compile(optimizer, "mse",', KINDS, "the loss is mse"
    ),
    "optimizer": ("SGD(LEARNING_RATE, momentum=0.9)", "Adam(LEARNING_RATE)", KINDS,
        "the optimizer is Adam in the program, SGD in the rescue"),
    "rows": ("size=(40, 3)", "size=(80, 3)", KINDS, "80 rows in the program, 40 in the rescue"),
    "elements": ('astype("float32")', 'astype("float64")', KINDS, "a row of the data is"),
    "train_step": (
        "    def call(self, x, training=False):",
        TRAIN_STEP,
        ("subclassed",),
        "the code of Net.train_step",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "kind"),
    [(name, kind) for name, (_, _, kinds, _) in OTHERS.items() for kind in kinds],
)
def test_another_computation_is_refused_and_named(
    program: Callable[[str], ModuleType], change: str, kind: str
):
    """The shapes of all variables are equal: only the identity tells."""
    before, after, _, named = OTHERS[change]
    held = saved(identity(program(PROGRAM), kind))

    found = compare(held, identity(program(edited(before, after)), kind))

    refused = found.texts(Decision.REFUSE)
    assert any(named in text for text in refused), refused


def test_other_values_of_the_data_are_reported(program: Callable[[str], ModuleType]):
    """They may be drawn anew in each run."""
    before = saved(identity(program(PROGRAM), "sequential"))
    other = program(edited("default_rng(0)", "default_rng(1)"))

    found = compare(before, identity(other, "sequential"))

    assert [] == found.texts(Decision.REFUSE)
    assert ["the rows of the data hold other values than when the rescue was saved."] == (
        found.texts(Decision.SAY)
    )


def test_another_backend_is_never_resumed(program: Callable[[str], ModuleType]):
    """Its random numbers and the order of its data are others."""
    found = identity(program(PROGRAM), "sequential")
    before = {**saved(found), "framework": "a fit of Keras on jax"}

    refused = compare(before, found).texts(Decision.NEVER)

    assert 1 == len(refused)
    assert "saved by a fit of Keras on jax, and this is a fit of Keras on" in refused[0]


def test_a_model_that_cannot_be_looked_at_is_no_obstacle():
    """Not compiled, layers without a configuration, no model at all."""

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
    """Stands for the kill."""


class StopAt(keras.callbacks.Callback):
    """Saves before the batch that comes next, and is killed at the one after it."""

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
    """A fit that was stopped after seven batches, the second of its second epoch."""
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("WATCHDOG_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("WATCHDOG_AGENT_STRICT", "1")
    folder = tmp_path / "rescues"
    keras.utils.set_random_seed(1)
    module = program(PROGRAM)
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
    module = program(PROGRAM)
    return module.fit(module.make("sequential"), [])


def test_an_edited_print_goes_on_bit_for_bit(
    left: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """And nothing is said of it."""
    _, history = goes_on(left, program(edited("# the difference", "# another")))

    assert whole(program)["loss"] == history["loss"]
    assert "rate" not in capsys.readouterr().err


def test_a_program_that_computes_something_else_is_refused(
    left: Path, program: Callable[[str], ModuleType]
):
    """The error names the rescue, its step, what differs and both ways on; nothing is trained."""
    module = program(edited("ops.square(error)", "ops.abs(error)"))
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
    """The state is loaded, and trains on with the other loss."""
    model, _ = goes_on(left, program(edited("ops.square(error)", "ops.abs(error)")), "force")

    assert 15 == int(model.optimizer.iterations)
    assert "goes on although the code of loss" in capsys.readouterr().err


def test_force_does_not_load_tensors_of_another_shape(
    left: Path, program: Callable[[str], ModuleType]
):
    """There is nothing to load them into."""
    with pytest.raises(RescueMismatch, match="To begin anew") as caught:
        goes_on(left, program(edited("UNITS = 4", "UNITS = 5")), "force")

    assert 'resume="force"' not in str(caught.value)


def test_a_learning_rate_that_was_changed_on_purpose_takes_effect(
    left: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """It is said; the next resume without a change keeps it."""
    changed = program(edited("LEARNING_RATE = 0.05", "LEARNING_RATE = 0.001"))
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
    """Unless the callback moves it again; both rates are said."""
    folder = tmp_path / "moved"
    module = program(PROGRAM)
    model, rescue = module.make("sequential"), rescued(folder)

    class Halve(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                model.optimizer.learning_rate = 0.025

    with pytest.raises(Stop):
        module.fit(model, [rescue, Halve(), StopAt(rescue, 7)])

    resumed, _ = goes_on(folder, program(PROGRAM))

    assert pytest.approx(0.025) == float(resumed.optimizer.learning_rate)
    assert "learning rate: 0.025 of the rescue goes on (the program began with 0.05)." in (
        capsys.readouterr().err
    )


def test_a_smaller_batch_goes_on_at_the_same_sample(
    left: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """Sixteen of the forty rows of the second epoch are trained: six batches of four are left."""
    model, _ = goes_on(left, program(edited("BATCH_SIZE = 8", "BATCH_SIZE = 4")))

    assert 7 + 6 + 10 == int(model.optimizer.iterations)
    assert "batches are of 4 rows now (were 8): goes on after 16 rows, at batch 4." in (
        capsys.readouterr().err
    )


def test_a_batch_that_does_not_divide_trains_some_rows_again(
    left: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """Fewer than a batch of them."""
    model, _ = goes_on(left, program(edited("BATCH_SIZE = 8", "BATCH_SIZE = 10")))

    assert 7 + 3 + 4 == int(model.optimizer.iterations)
    assert "at batch 1; 6 rows are trained again." in capsys.readouterr().err


def test_a_metric_more_begins_anew_and_the_others_go_on(
    left: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """Also one less is no obstacle."""
    text = edited('metrics=["mae"]', 'metrics=["mae", "mse"]')
    _, history = goes_on(left, program(text))

    assert "the metric mean_squared_error begins anew." in capsys.readouterr().err
    assert whole(program)["loss"] == history["loss"]
    assert whole(program)["mae"] == history["mae"]


def test_gathering_never_raises(monkeypatch: pytest.MonkeyPatch):
    """Data that raises at each look, a model whose attributes do."""

    class Hostile:
        def __getattr__(self, name):
            raise RuntimeError(name)

    found = gather(Hostile(), Hostile(), "tensorflow")

    assert {} == found.data
    assert np.size(found.model) == 0
