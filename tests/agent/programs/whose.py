"""
A training of a few steps that saves and is killed; tests start it in many ways.

    FRAMEWORK=bare|torch|tensorflow|keras|found  STOP=step to be killed at ("", never)

`bare` is the part that all loops share, without a framework, which would take seconds to import.

The environment holds its options, because its arguments are part of the tests.
"""

import json
import os
import signal
import sys
import threading
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
FRAMEWORK = os.environ.get("FRAMEWORK", "bare")
FOLDER = os.environ.get("FOLDER", "rescues")
STOP = int(os.environ.get("STOP") or -1)
EPOCHS = int(os.environ.get("EPOCHS", "2"))
WISHES = json.loads(os.environ.get("WISHES", "{}"))  # arguments of Rescue
BATCHES = 5


def told(*words):
    # One write call: print() writes the line end separately, and threads interleave.
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def leave(rescue):
    """Save and be killed, or wait for a kill by the test."""
    if os.environ.get("UNSAVED"):
        os.kill(os.getpid(), signal.SIGKILL)
    assert rescue.save() is not None or FRAMEWORK == "keras"
    if os.environ.get("WAIT"):
        told("WAITS")
        time.sleep(600)
    if os.environ.pop("EXECV", None):  # restarts in the same process
        os.environ["STOP"] = ""
        os.execv(sys.executable, [sys.executable, *sys.argv])
    os.kill(os.getpid(), signal.SIGKILL)


class Bare:
    """Does what `Rescue` of a loop does, for a state that holds only its step."""

    def __init__(self, folder, resume=True, keep=2, name=None):
        from watchdog_app.agent.contain import print_message
        from watchdog_app.agent.runtime import run_choice
        from watchdog_app.rescue.checkpoint import runs
        from watchdog_app.rescue.checkpoint.store import RescueStore

        self.run_choice, self.key = run_choice, runs.KEY
        self.beginning = run_choice.begin(folder, resume, name=name)
        run = self.beginning.run
        self.store = RescueStore(self.beginning.directory, keep, run=run)
        found = run_choice.choose(self.beginning, self.store)
        self.step_number = 0 if found is None else found.step
        for line in (*self.beginning.why, *(self.beginning.notes if found else ())):
            print_message(line)

    def save(self):
        about = {self.key: self.beginning.run.record()}
        saved = self.store.save([], about, step=self.step_number)
        self.store.wait_idle()
        return saved.path

    def finish(self):
        self.run_choice.finish(self.beginning)


def bare_loop(folder=FOLDER, **wishes):
    stop = wishes.pop("stop", STOP)
    rescue = Bare(folder, **wishes)
    told("BEGINS", rescue.step_number)
    while rescue.step_number < EPOCHS * BATCHES:
        rescue.step_number += 1
        if rescue.step_number == stop:
            leave(rescue)
    rescue.finish()
    told("ENDS", rescue.step_number)


def loop_in_torch(folder=FOLDER, **wishes):
    stop = wishes.pop("stop", STOP)
    import torch

    from watchdog_app.agent.torch import Rescue

    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rescue = Rescue(folder, model=model, optimizer=optimizer, **wishes)
    told("BEGINS", rescue.step_number)
    data = [torch.ones(2, 3)] * BATCHES
    for _ in rescue.epochs(EPOCHS):
        for batch in rescue.data(data):
            optimizer.zero_grad()
            model(batch).pow(2).sum().backward()
            optimizer.step()
            rescue.step()
            if rescue.step_number == stop:
                leave(rescue)
    told("ENDS", rescue.step_number)


def loop_in_tensorflow(folder=FOLDER, **wishes):
    stop = wishes.pop("stop", STOP)
    import tensorflow as tf

    from watchdog_app.agent.tensorflow import Rescue

    weight = tf.Variable([1.0, 2.0], name="weight")
    rescue = Rescue(folder, weight=weight, **wishes)
    told("BEGINS", rescue.step_number)
    data = tf.data.Dataset.range(BATCHES)
    for _ in rescue.epochs(EPOCHS):
        for batch in rescue.data(data):
            weight.assign_add([0.5, float(batch)])
            rescue.step()
            if rescue.step_number == stop:
                leave(rescue)
    told("ENDS", rescue.step_number)


def fit_in_keras(folder=FOLDER, **wishes):
    stop = wishes.pop("stop", STOP)
    import keras
    import numpy as np

    from watchdog_app.agent.keras import Rescue

    class Leave(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            told("BEGINS", int(self.model.optimizer.iterations))

        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == stop:
                leave(rescue)

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rescue = Rescue(folder, **wishes)
    rows = np.ones((2 * BATCHES, 3), "float32")
    model.fit(rows, rows[:, :1], 2, EPOCHS, verbose=0, callbacks=[rescue, Leave()])
    told("ENDS", int(model.optimizer.iterations))


def fit_that_is_found(**wishes):
    stop = wishes.pop("stop", STOP)
    import keras
    import numpy as np

    from watchdog_app.agent import hook
    from watchdog_app.agent.adapters.keras.rescue import FitRescue

    hook.switch_on()

    class Leave(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            told("BEGINS", int(self.model.optimizer.iterations))

        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == stop:
                import gc

                leave(next(one for one in gc.get_objects() if isinstance(one, FitRescue)))

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.ones((2 * BATCHES, 3), "float32")
    model.fit(rows, rows[:, :1], 2, EPOCHS, verbose=0, callbacks=[Leave()])
    told("ENDS", int(model.optimizer.iterations))


def train(**wishes):
    kinds = {
        "bare": bare_loop,
        "torch": loop_in_torch,
        "tensorflow": loop_in_tensorflow,
        "keras": fit_in_keras,
        "found": fit_that_is_found,
    }
    kinds[FRAMEWORK](**{**WISHES, **wishes})


def two():
    """Two trainings in one folder; ORDER names them, HALT the one to kill."""
    halt = os.environ.get("HALT", "")
    for name in os.environ["ORDER"].split():
        told("TRAINING", name)
        named = {"name": name} if os.environ.get("NAMED") else {}
        loop = {"first": one_loop, "second": other_loop}[name]
        loop(stop=STOP if name == halt else -1, **named)


def one_loop(**wishes):
    import torch

    from watchdog_app.agent.torch import Rescue

    model, optimizer = made(torch)
    stop = wishes.pop("stop")
    rescue = Rescue(FOLDER, model=model, optimizer=optimizer, **wishes)
    steps(torch, model, optimizer, rescue, stop)


def other_loop(**wishes):
    import torch

    from watchdog_app.agent.torch import Rescue

    model, optimizer = made(torch)
    stop = wishes.pop("stop")
    rescue = Rescue(FOLDER, model=model, optimizer=optimizer, **wishes)
    steps(torch, model, optimizer, rescue, stop)


def made(torch):
    model = torch.nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def steps(torch, model, optimizer, rescue, stop):
    told("BEGINS", rescue.step_number)
    for _ in rescue.epochs(EPOCHS):
        for batch in rescue.data([torch.ones(2, 3)] * BATCHES):
            model(batch).pow(2).sum().backward()
            optimizer.step()
            rescue.step()
            if rescue.step_number == stop:
                leave(rescue)
    told("ENDS", rescue.step_number)


def folds():
    """A training for each fold in one folder; a rerun skips folds with a result. HALT is killed."""
    for fold in range(3):
        if os.path.exists(f"result-{fold}"):
            continue
        one_fold(fold)
        open(f"result-{fold}", "w").close()


def one_fold(fold):
    told("TRAINING", fold)
    bare_loop(stop=STOP if str(fold) == os.environ.get("HALT") else -1)


def folds_in_a_loop():
    """The same in a plain loop, without a function that gets the fold."""
    for fold in range(3):
        if os.path.exists(f"result-{fold}"):
            continue
        bare_loop(stop=STOP if str(fold) == os.environ.get("HALT") else -1)
        open(f"result-{fold}", "w").close()


class Part:
    """An object that a helper gets as argument."""

    def __init__(self, name):
        self.name = name


def train_part(part):
    bare_loop(stop=STOP if part.name == os.environ.get("HALT") else -1)


def helper():
    """Two trainings that one function starts; SKIP names one to omit."""
    if os.environ.get("SKIP") != "first":
        train_part(Part("first"))
    train_part(Part("second"))


def threads():
    """Run both trainings at the same time, each in its own thread."""
    working = [
        threading.Thread(target=loop, kwargs={"stop": -1}) for loop in (one_loop, other_loop)
    ]
    for each in working:
        each.start()
    for each in working:
        each.join()


def forked():
    """A worker that outlives its killed parent."""

    def fork(rescue):
        rescue.save()
        if os.fork() == 0:
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)

    globals()["leave"] = fork
    train()


if __name__ == "__main__":
    if os.environ.get("ARGV"):
        sys.argv = json.loads(os.environ["ARGV"])
    ways = {"": train, "two": two, "threads": threads, "forked": forked}
    ways |= {"folds": folds, "loop": folds_in_a_loop, "helper": helper}
    ways[os.environ.get("WAY", "")]()
