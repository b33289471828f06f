"""
What the Keras callback costs a healthy training: the same fit with and without it, in turns.

    python bench/agent.py [--turns 30] [--steps-ms 5 50]

Each turn is three fits of one model in a rotating order: without `Rescue`,
without it again, which shows what chance does, and with it. Compared are the
steps after the fifth, so that tracing and the start of a fit are left out; what
the callback adds to the start is shown beside them. `wall` is the whole time.
`quiet` is the time of the step that a fifth of the steps beat: what else the
machine does blurs it least. `processor` is the processor time of all threads.
Finer than that are stretches of 20 steps within one fit, in turns with the
callback's batch hooks and without: what the machine does meanwhile meets both.
The callback's own code is also timed by itself, reports to a daemon included.
No daemon runs unless there is one already.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
import numpy as np
import tensorflow as tf

from watchdog_app.agent.keras import Rescue

WARM_BATCHES = 5


class Clock(keras.callbacks.Callback):
    """Times of the batches after the warm ones."""

    def __init__(self) -> None:
        super().__init__()
        self.made = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        if batch == 0:
            self.start_s = now - self.made
        if batch == WARM_BATCHES - 1:
            self.cpu_began, self.steps = time.process_time(), []
        elif batch >= WARM_BATCHES:
            self.steps.append(now - self.last)
        self.last = now

    def on_train_end(self, logs=None):
        self.cpu = time.process_time() - self.cpu_began

    def taken(self) -> tuple[float, float, float]:
        """Wall, quiet and processor seconds a step."""
        steps = len(self.steps)
        return sum(self.steps) / steps, quiet(self.steps), self.cpu / steps


def model_of(step_s: float) -> tuple[keras.Model, np.ndarray]:
    """A network whose training step takes about `step_s` here, and one batch for it."""
    width, rows = 256, 64
    while True:
        keras.utils.clear_session()
        layers = [keras.layers.Dense(width, activation="relu") for _ in range(3)]
        model = keras.Sequential([keras.Input((width,)), *layers, keras.layers.Dense(1)])
        model.compile("adam", "mse")
        x = np.ones((rows, width), "float32")
        batches = 4 * WARM_BATCHES
        taken = fit(model, dataset(x, batches), None).taken()[1]
        if taken >= 0.9 * step_s or rows >= 2**16:
            return model, x
        rows = int(rows * min(3.0, max(1.2, step_s / taken)))


def dataset(x: np.ndarray, steps: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors((x, x[:, :1])).cache().repeat(steps)


def quiet(times: list[float]) -> float:
    """The time that a fifth of the steps beat."""
    return sorted(times)[len(times) // 5]


class Stretches(keras.callbacks.Callback):
    """Hands the batch hooks on to a `Rescue` in every other stretch, and times the steps."""

    LENGTH, SETTLE = 20, 2

    def __init__(self, rescue: Rescue) -> None:
        super().__init__()
        self.rescue = rescue
        self.last = 0.0
        self.times: dict[bool, list[list[float]]] = {False: [], True: []}

    def set_model(self, model):
        super().set_model(model)
        self.rescue.set_model(model)

    def on_train_begin(self, logs=None):
        self.rescue.on_train_begin(logs)

    def on_epoch_begin(self, epoch, logs=None):
        self.rescue.on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch, logs=None):
        if batch // self.LENGTH % 2:
            self.rescue.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        stretch, place = divmod(batch, self.LENGTH)
        if stretch % 2:
            self.rescue.on_train_batch_end(batch, logs)
        now = time.perf_counter()
        if place == self.SETTLE:
            self.times[bool(stretch % 2)].append([])
        if place >= self.SETTLE and stretch > 0:
            self.times[bool(stretch % 2)][-1].append(now - self.last)
        self.last = now

    def on_epoch_end(self, epoch, logs=None):
        self.rescue.on_epoch_end(epoch, logs)

    def on_train_end(self, logs=None):
        self.rescue.on_train_end(logs)

    def ratios(self) -> list[float]:
        """Of each pair of neighbours: how much slower the quiet step is with the hooks."""
        pairs = zip(self.times[False][1:], self.times[True], strict=False)
        return [quiet(on) / quiet(off) - 1 for off, on in pairs]


def stretches(model: keras.Model, x: np.ndarray, step_s: float, rescues: str) -> list[float]:
    """Ratios of neighbouring stretches, over about forty seconds."""
    timed = Stretches(Rescue(rescues, resume=False))
    steps = min(6000, int(40 / step_s))
    model.fit(dataset(x, steps), shuffle=False, verbose=0, callbacks=[timed])
    return timed.ratios()


class Hooks(keras.callbacks.Callback):
    """Calls the hooks of a step many times over, within a fit, and takes the time."""

    def __init__(self, rescue: Rescue, calls: int) -> None:
        super().__init__()
        self.rescue, self.calls, self.step_s = rescue, calls, 0.0

    def on_train_batch_end(self, batch, logs=None):
        if batch == WARM_BATCHES:
            began = time.perf_counter()
            for _ in range(self.calls):
                self.rescue.on_train_batch_begin(batch)
                self.rescue.on_train_batch_end(batch, logs)
            self.step_s = (time.perf_counter() - began) / self.calls


def hooks_s(model: keras.Model, data: tf.data.Dataset, rescues: str) -> float:
    """Seconds that the callback's own code takes a step, reports to the daemon included."""
    rescue = Rescue(rescues, resume=False)
    hooks = Hooks(rescue, 100_000)
    model.fit(data, shuffle=False, verbose=0, callbacks=[rescue, hooks])
    return hooks.step_s


def fit(model: keras.Model, data: tf.data.Dataset, rescues: str | None) -> Clock:
    clock = Clock()
    used = [clock] if rescues is None else [Rescue(rescues, resume=False), clock]
    model.fit(data, shuffle=False, verbose=0, callbacks=used)
    return clock


def spread(ratios: list[float]) -> str:
    """Median and the 90 % interval of the median, by resampling."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    low, high = medians[100], medians[-100]
    return f"{100 * statistics.median(ratios):+6.2f} %  ({100 * low:+.2f} to {100 * high:+.2f})"


def compare(step_ms: float, turns: int, rescues: str) -> None:
    model, x = model_of(step_ms / 1000)
    steps = WARM_BATCHES + max(20, int(500 / step_ms))
    data = dataset(x, steps)
    fit(model, data, None)
    ratios: dict[str, list[tuple[float, ...]]] = {"without, again": [], "with": []}
    start, step_s = [], []
    arms = ["without", "without, again", "with"]
    for turn in range(turns):
        order = arms[turn % 3 :] + arms[: turn % 3]
        clocks = {arm: fit(model, data, rescues if arm == "with" else None) for arm in order}
        plain = clocks["without"]
        for arm, column in ratios.items():
            both = zip(clocks[arm].taken(), plain.taken(), strict=True)
            column.append(tuple(other / base - 1 for other, base in both))
        start.append(clocks["with"].start_s - plain.start_s)
        step_s.append(plain.taken()[1])
    typical = statistics.median(step_s)
    print(f"{1000 * typical:.1f} ms a step; fit begins {1000 * statistics.median(start):+.0f} ms")
    for arm, rows in ratios.items():
        wall, quiet, cpu = (spread(list(column)) for column in zip(*rows, strict=True))
        print(f"  {arm:15} quiet {quiet}   wall {wall}   processor {cpu}")
    print(f"  in stretches    steps {spread(stretches(model, x, typical, rescues))}")
    own_s = hooks_s(model, data, rescues)
    print(
        f"  its own code    {1e6 * own_s:.2f} us a step, {100 * own_s / typical:.3f} % of the step"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--steps-ms", type=float, nargs="+", default=[5, 50])
    options = parser.parse_args()
    print(f"slower with the callback: median of {options.turns} turns (90 % interval)")
    with tempfile.TemporaryDirectory(prefix="watchdog-bench-") as folder:
        for step_ms in options.steps_ms:
            compare(step_ms, options.turns, os.path.join(folder, "rescues"))


if __name__ == "__main__":
    main()
