"""Fits that an interrupt leaves: `fit_left.py cells|script`; prints one JSON object."""

import contextlib
import json
import os
import sys
import threading
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["WATCHDOG_AGENT_STRICT"] = "1"

import keras
import numpy as np
from IPython.core.interactiveshell import InteractiveShell

from watchdog_app.agent import hook
from watchdog_app.agent.adapters.keras import running
from watchdog_app.agent.keras import Rescue
from watchdog_app.rescue.checkpoint import names

x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
found = {}


class AtStep(keras.callbacks.Callback):
    """Save at step 2, and do something at step 4."""

    def __init__(self, action):
        super().__init__()
        self.action = action

    def on_train_batch_end(self, batch, logs=None):
        rescue = next(each for each in running._open if each.model is self.model)
        if rescue.step_number == 2:
            rescue.save()
        if rescue.step_number == 4:
            self.action(rescue)


def interrupt(rescue):
    raise KeyboardInterrupt


def wait_for_request(rescue):
    print("waits", flush=True)
    while rescue._session.link.pending_request is None:
        pass
    raise KeyboardInterrupt


def nothing(rescue):
    pass


def fit(action, *rescues, epochs=2):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(
        x, x[:, :1], batch_size=8, epochs=epochs, verbose=0, callbacks=[AtStep(action), *rescues]
    )


def fit_and_catch(*arguments):
    with contextlib.suppress(KeyboardInterrupt):
        fit(*arguments)


def finished(folder):
    """Whether the rescues in a folder are of a finished training."""
    return [names.is_finished(str(each)) for each in Path(folder).glob("**/rescue-*")]


def in_use(folder):
    """Whether the rescues in a folder look to be of a running training."""
    found = [(str(each.parent), each.name) for each in Path(folder).glob("**/rescue-*")]
    return [names.is_in_use(parent, names.RescueName.parse(name)) for parent, name in found]


def is_open(rescue):
    return rescue._session is not None


def cells():
    """Each `run` is a cell."""
    shell = InteractiveShell.instance()
    shell.user_ns.update(globals())

    def run(text):
        return shell.run_cell(text, store_history=True)

    hook.switch_on()
    result = run("fit(interrupt)")
    found["interrupted"] = type(result.error_in_exec).__name__
    found["open after its cell"] = len(running._open)
    found["finished after its cell"] = finished("rescues")
    found["in use after its cell"] = in_use("rescues")
    run("fit(nothing)")
    found["finished after the next fit"] = finished("rescues")

    outer, inner, threaded = Rescue("outer"), Rescue("inner"), Rescue("threaded")

    def nested(rescue):
        run("fit_and_catch(interrupt, inner)")
        found["nested"] = is_open(outer), is_open(inner)
        found["nested finished"] = finished("inner")

    def hold(rescue):
        began.set()
        go_on.wait()

    began, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=fit, args=(hold, threaded))
    shell.user_ns.update(locals())
    run("fit(nested, outer)")
    run("thread.start(); began.wait()")
    run("1")
    found["thread"] = is_open(threaded)
    go_on.set()
    thread.join()
    found["thread at its end"] = is_open(threaded)


def script():
    """The test asks for a rescue in the first fit, and begins the second fit."""
    rescue = Rescue("rescues")
    fit_and_catch(wait_for_request, rescue)
    sys.stdin.readline()
    found["open"] = is_open(rescue)
    fit(nothing, rescue)
    found["open at the end"] = is_open(rescue)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print(json.dumps(found))
