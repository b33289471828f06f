"""
Rescues in unusual cases: `fit_manners.py before|after FOLDER` prints one JSON object.

`before` leaves unfinished rescues of several trainings; `after` is the next run of the program.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["WATCHDOG_AGENT_STRICT"] = "1"

import keras
import numpy as np
import tensorflow as tf

from watchdog_app.agent.keras import Rescue
from watchdog_app.agent.tensorflow import Rescue as LoopRescue
from watchdog_app.base.errors import RescueError

folder = Path(sys.argv[1])
x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
found = {}


class Left(Exception):
    """Simulates the kill."""


class Remembers(keras.callbacks.Callback):
    """A callback that can return its state."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.seen += 1

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class Forgets(keras.callbacks.Callback):
    """A callback whose state cannot be saved."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(np.float64(logs["loss"]))


class Finder:
    """Not a callback: its method is called by one. It counts in itself and in a list outside."""

    def __init__(self):
        self.rates, self.steps = [], 0

    def callback(self, outside):
        def on_train_batch_end(batch, logs):
            self.note(logs["loss"])
            outside.append(batch)

        return keras.callbacks.LambdaCallback(on_train_batch_end=on_train_batch_end)

    def note(self, loss):
        self.steps += 1
        self.rates.append(loss)


class Averages(keras.callbacks.Callback):
    """A callback whose state begins with the end of its first epoch."""

    average = None

    def on_epoch_end(self, epoch, logs=None):
        self.average = self.model.get_weights()


class Rows(Forgets):
    """Its running losses reveal the order of the rows."""


class SaveAt(keras.callbacks.Callback):
    """Save after some steps, and leave the fit after the last of them."""

    def __init__(self, rescue, *steps, leave_only=False):
        super().__init__()
        self.rescue, self.steps, self.leave_only = rescue, steps, leave_only

    def on_train_batch_end(self, batch, logs=None):
        if self.rescue.step_number in self.steps:
            if not self.leave_only:
                self.rescue.save()
            if self.rescue.step_number == self.steps[-1]:
                raise Left


class Saver(keras.callbacks.Callback):
    """Comes before Rescue in the list; saves in a batch or at the end of an epoch."""

    def __init__(self, rescue=None, batch=None):
        super().__init__()
        self.rescue, self.batch, self.paths = rescue, batch, []

    def on_train_batch_end(self, batch, logs=None):
        if self.batch is not None and self.rescue.step_number == self.batch - 1:
            self.paths.append(self.rescue.save())

    def on_epoch_end(self, epoch, logs=None):
        if self.batch is None:
            self.paths.append(self.rescue.save())


class Weights(keras.callbacks.Callback):
    """Records the model's weights when the first epoch begins, as other callbacks see them."""

    first = None

    def on_epoch_begin(self, epoch, logs=None):
        if self.first is None:
            self.first = float(keras.ops.sum(self.model.trainable_variables[0]))


def model(width=6):
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(width), keras.layers.Dense(1)])
    made.compile("adam", "mse")
    return made


def fit(name, *callbacks, made=None, epochs=3, batch_size=8, **options):
    """Train in the folder `name`; return the outcome."""
    leave_only = options.pop("leave_only", False)
    # Found by name: the calls of this function are on other lines in the next run.
    rescue = Rescue(str(folder / name), name=name, **options)
    for callback in callbacks:
        if isinstance(callback, Saver):
            callback.rescue = rescue
    made = made or model()
    said = io.StringIO()
    result = {"error": None}
    with contextlib.redirect_stderr(said):
        try:
            history = made.fit(
                x,
                x[:, :1],
                batch_size,
                epochs,
                verbose=0,
                callbacks=[
                    *callbacks,
                    rescue,
                    *([SaveAt(rescue, *save_at, leave_only=leave_only)] if save_at else []),
                ],
            )
            result["epochs"] = history.epoch
            result["losses"] = history.history.get("loss")
        except Left:
            pass
        except RescueError as error:
            result["error"] = f"{type(error).__name__}: {error}"
    result["said"] = said.getvalue()
    result["iterations"] = int(made.optimizer.iterations)
    result["hooked"] = sorted(set(vars(made)) & {"_get_metrics_result_or_logs"})
    result["initial_epoch"] = made._initial_epoch
    return result


save_at = ()


def unseeded(**options):
    """Train without a seed; must run first in its process."""
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    made.compile("adam", "mse")
    rows = Rows()
    result = fit("unseeded", rows, made=made, **options)
    result["batches"] = rows.losses
    return result


class Noisy(keras.Model):
    """A step that draws with an operation whose counter cannot be read."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, rows):
        return self.dense(rows + tf.random.normal(tf.shape(rows)))


def noisy():
    made = Noisy()
    made.compile("adam", "mse")
    return made


def before():
    global save_at
    save_at = (12, 10**9)
    found["unseeded"] = unseeded()
    save_at = (12,)
    for name in ("plain", "wider", "batches", "anew", "newest", "longer", "over"):
        found[name] = fit(name)
    found["memory"] = fit(
        "memory",
        Remembers(),
        Forgets(),
        keras.callbacks.CSVLogger(folder / "log.csv"),
        Finder().callback([]),
    )
    found["noisy"] = fit("noisy", made=noisy())
    for name, saver in {"early": Saver(batch=15), "epoch_end": Saver()}.items():
        save_at = (19,)
        found[name] = fit(name, saver, leave_only=True)
        found[name]["paths"] = saver.paths
        found[name]["rescues"] = sorted(path.name for path in (folder / name).glob("rescue-*"))
    save_at = (12, 17)
    found["damaged"] = fit("damaged")
    save_at = ()
    found["averages"] = fit("averages", Averages(), epochs=2)
    found["two_fits_first"] = fit("two_fits", epochs=1)
    save_at = (4,)
    found["two_fits_second"] = fit("two_fits")
    save_at = (5,)
    found["interrupted"] = fit("same_process")
    save_at = ()
    found["same_process"] = fit("same_process")
    found["ended"] = fit("ended", Saver(batch=15))
    loop = loop_rescue("loop", model=model(), numbers=[1])
    loop.step()
    loop.save()


def after():
    found["unseeded"] = unseeded(resume="newest")
    watched = Weights()
    found["plain"] = fit("plain", watched)
    found["plain"]["weights_at_epoch_begin"] = watched.first
    watched = Weights()
    found["reference"] = fit("nothing", watched)
    found["reference"]["weights_at_epoch_begin"] = watched.first
    found["finished"] = fit("plain")
    found["wider"] = fit("wider", made=model(7))
    found["batches"] = fit("batches", batch_size=10)
    found["anew"] = fit("anew", resume=False)
    found["longer"] = fit("longer", epochs=5)
    found["over"] = fit("over", epochs=1)
    for name in ("early", "epoch_end"):
        found[name] = fit(name)
    remembers, forgets, finder, outside = Remembers(), Forgets(), Finder(), []
    found["memory"] = fit(
        "memory",
        remembers,
        forgets,
        keras.callbacks.CSVLogger(folder / "log.csv"),
        finder.callback(outside),
    )
    found["memory"]["seen"] = remembers.seen
    found["memory"]["found"] = [finder.steps, len(finder.rates), len(outside)]
    found["memory"]["rows"] = (folder / "log.csv").read_text().splitlines()
    newest = max((folder / "damaged").glob("rescue-*"), key=lambda path: path.name)
    data = bytearray((newest / "state.safetensors").read_bytes())
    data[-3] ^= 1
    (newest / "state.safetensors").write_bytes(data)
    found["damaged"] = fit("damaged")
    found["two_fits_first"] = fit("two_fits", epochs=1)
    found["two_fits_second"] = fit("two_fits")
    found["nothing_newest"] = fit("empty", resume="newest")
    found["newest_of_finished"] = fit("ended", resume="newest")
    found["loop_of_fit"] = loop_error("newest", model=model(), resume="force")
    found["loop_mismatch"] = loop_error("loop", model=model(9), numbers=[1])
    found["loop_names"] = loop_error("loop", model=model(), figures=[1])
    found["loop_number"] = loop_error("fresh", count=3)
    found["loop_iterator"] = loop_error("fresh", data=iter(tf.data.Dataset.range(3)))
    found["fit_of_loop"] = fit("loop", resume="force")
    with contextlib.redirect_stderr(io.StringIO()) as said:
        loop = loop_rescue("loop", model=model(), numbers=(numbers := [2]), resume="force")
        found["loop_over"] = {"epochs": list(loop.epochs(0)), "numbers": numbers}
    found["loop_over"] |= {"said": said.getvalue(), "step": loop.step_number}


def loop_rescue(name, **state):
    return LoopRescue(str(folder / name), name=name, **state)


def loop_error(name, **state):
    try:
        loop_rescue(name, **state)
    except (RescueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


{"before": before, "after": after}[os.environ["ROLE"]]()
print(json.dumps(found))
