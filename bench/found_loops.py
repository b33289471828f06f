"""
Measure what the agent costs a custom TensorFlow loop, in steps with the agent and without.

    python bench/found_loops.py [--blocks 20] [--steps-ms 1 5 50]

One process; stretches with the agent and without in random order, see `agent_paired.py`, with the
step in a tf.function and eager. Each stretch is a pass over a dataset with a newly traced step,
because the agent finds a loop when its step is traced.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

from agent_paired import ON, Stretches

from watchdog_app.agent import hook
from watchdog_app.agent.found import folders

hook.switch_on()
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

LENGTH, SETTLE = 60, 10  # steps of a stretch; steps before them, in which the agent finds the loop


def training(rows: int):
    """Return a model, its optimizer, a step, and a batch of `rows` rows."""
    layers = [keras.layers.Dense(128, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((128,)), *layers, keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam()

    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(batch) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return model, optimizer, step, tf.random.normal((rows, 128))


def stretch(trained, step, batch, stretches=None, kind=""):
    """Run one stretch; return the seconds of a fast step. The agent finds its local variables."""
    model, optimizer = trained  # noqa: RUF059 - the agent looks for these names
    times = []
    last = time.perf_counter()
    for place, each in enumerate(tf.data.Dataset.from_tensors(batch).repeat(LENGTH + SETTLE)):
        step(each)
        if stretches is not None:
            if place == SETTLE - 1:
                stretches.begins()
            elif place >= SETTLE:
                stretches.stepped()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if stretches is not None:
        stretches.ends(kind)
    return sorted(times)[len(times) // 5]


def compare(step_s: float, compiled: bool, blocks: int) -> None:
    """Print the comparison for loops with such steps."""
    rows = 64
    while True:
        model, optimizer, plain, batch = training(rows)
        taken = stretch((model, optimizer), tf.function(plain) if compiled else plain, batch)
        if taken >= 0.7 * step_s or rows >= 2**17:
            break
        rows = int(rows * min(4.0, max(1.3, step_s / max(taken, 1e-5))))
    stretches = Stretches(blocks)
    while stretches.left:
        kind = stretches.next()
        hook.switch_off()
        if kind == ON:
            hook.switch_on()
        step = tf.function(plain) if compiled else plain
        stretch((model, optimizer), step, batch, stretches, kind)
    hook.switch_on()
    stretches.report(f"{'tf.function' if compiled else 'eager'}, {1e3 * step_s:g} ms", [], step_s)


def main() -> None:
    """Print the comparison of each case."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--steps-ms", type=float, nargs="+", default=[1, 5, 50])
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        folders.resume_in(os.path.join(folder, "rescues"))  # not next to this file
        for compiled in (True, False):
            for step_ms in args.steps_ms:
                compare(step_ms / 1000, compiled, args.blocks)
        os.chdir("/")


if __name__ == "__main__":
    main()
