"""Common code of the training programs: arguments, the leak, the recorded losses."""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import signal
import sys
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np

BATCH = 16
WARM_STEPS = 40


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--rescues", default="rescues")
    parser.add_argument("--leak-mb-s", type=float, default=0)
    parser.add_argument("--leak-from", type=int, default=30, help="first step that leaks")
    parser.add_argument("--jump-mb", type=float, default=0, help="one array, before a step")
    parser.add_argument("--jump-at", type=int, default=60, help="the step before which it comes")
    parser.add_argument("--jump-in", choices=("step", "data"), default="step")
    parser.add_argument("--generator", action="store_true", help="data that is made as it is read")
    parser.add_argument("--until", type=int, default=0, help="the last step that is of interest")
    parser.add_argument("--term-after-s", type=float, help="SIGTERM so long after the second step")
    parser.add_argument("--plateau-mb", type=float, default=0, help="healthy warm-up that stays")
    parser.add_argument("--state-mb", type=float, default=2)
    parser.add_argument("--step-s", type=float, default=0.02, help="shortest time of a step")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--no-agent", action="store_true")
    parser.add_argument("--in-thread", action="store_true")
    # Values from the environment do not make it another training.
    return parser.parse_args([*sys.argv[1:], *shlex.split(os.environ.get("TRAINING_WORDS", ""))])


class Diary:
    """Writes each loss bit for bit, and leaks at a given rate in the training thread."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.file = open(options.out, "a", buffering=1)
        self.kept: list[np.ndarray] = []
        self.last = time.perf_counter()
        self.made = 0
        self.warm_s = 0.0  # processor time of the imports and the first steps

    def begin(self, step: int) -> None:
        """Between two steps, make one giant allocation if the options request it."""
        if self.options.jump_in == "step":
            self._jump(step)

    def fetch(self, step: int) -> None:
        """In the data of a step, make the giant allocation if the options request it there."""
        if self.options.jump_in == "data":
            self._jump(step)

    def _jump(self, step: int) -> None:
        if self.options.jump_mb and step == self.options.jump_at:
            with open(self.options.out + ".jump", "w") as file:
                file.write(repr(time.time()))
            self.kept.append(np.ones(int(self.options.jump_mb * 1e6), np.uint8))

    def step(self, step: int, loss: float) -> None:
        options = self.options
        self.file.write(f"{step},{loss.hex()},{loss:.4f},{time.time():.3f}\n")
        self.made += 1
        if self.made == 2 and options.term_after_s is not None:
            threading.Timer(options.term_after_s, os.kill, (os.getpid(), signal.SIGTERM)).start()
        if self.made == WARM_STEPS:
            self.warm_s = time.process_time()
        if step == options.until:
            with open(options.out + ".spent", "w") as file:
                file.write(repr(time.process_time() - self.warm_s))
            os._exit(0)
        rest = options.step_s - (time.perf_counter() - self.last)
        if rest > 0:
            time.sleep(rest)
        # A slow save must not make the leak jump: each step leaks the same amount.
        passed = min(time.perf_counter() - self.last, 5 * options.step_s)
        self.last = time.perf_counter()
        if options.leak_mb_s and options.leak_from <= self.made:
            self.kept.append(np.ones(int(options.leak_mb_s * 1e6 * passed), np.uint8))


def warm_up(megabytes: float) -> list[np.ndarray]:
    """Grow fast to a plateau and stay there, as caches and data sets do."""
    held = []
    for _ in range(int(megabytes // 10)):
        held.append(np.ones(10_000_000, np.uint8))
        time.sleep(0.05)
    return held


def data(steps: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    features = rng.normal(size=(BATCH * steps, 32)).astype("float32")
    return features, rng.integers(0, 5, len(features)).astype("int32")


def model_of(state_mb: float):
    """Return a network whose weights and Adam slots take about this size."""
    import keras

    # Adam holds three floats per weight; two square layers hold nearly all of them.
    width = max(32, int((state_mb * 1e6 / 4 / 3 / 2) ** 0.5))
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((32,)),
            layers.Dense(width, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(width, activation="relu"),
            layers.BatchNormalization(),
            layers.Dense(width, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(5),
        ]
    )


def write_final(out: str, variables: list) -> None:
    """Write one digest of all trained values."""
    digest = hashlib.sha256()
    for variable in variables:
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    with open(out + ".final", "w") as file:
        file.write(digest.hexdigest())
