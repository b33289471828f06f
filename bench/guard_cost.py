"""
Measure what a training pays for publishing its state, so that it can be saved from outside.

    python bench/guard_cost.py [torch|keras] [--asked] [--small] [--stretches 40]

Stretches of steps with a segment and without alternate in one process. The CPU time of each stretch
(all threads) is compared with its neighbour, so other load affects both alike. `--asked`: a table
after every batch, as near a limit; without it only as often as costs nothing. `--small`: Keras,
with a few variables and steps of some milliseconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from functools import partial

from watchdog_app.rescue.segment.exchange import SOCKET, Registry

_STEPS = 25  # steps of a stretch


class Turns:
    """Alternates steps with and without publishing."""

    def __init__(self, stretches: int) -> None:
        self.left = stretches
        # CPU seconds per step: without, with
        self.spent: tuple[list[float], list[float]] = ([], [])
        self.each: list[float] = []  # CPU seconds of this thread for each table
        self._count = 0
        self._began = 0.0
        self._publisher = None

    @property
    def fresh(self) -> bool:
        """True: no step was counted yet."""
        return self._publisher is None

    def step(self, session) -> bool:
        """Count a step; return False after the last stretch."""
        if self._publisher is None:
            self._publisher = session.publisher
            publish = self._publisher._publish

            def timed(step):
                began = time.thread_time()
                publish(step)
                self.each.append(time.thread_time() - began)

            self._publisher._publish = timed
        self._count += 1
        if self._count % _STEPS:
            return True
        now = time.process_time()
        if self._count > 3 * _STEPS:  # the first stretches are the warm-up
            self.spent[session.publisher is not None].append((now - self._began) / _STEPS)
            self.left -= 1
        session.publisher = None if session.publisher is not None else self._publisher
        self._began = time.process_time()
        return self.left > 0

    def summary(self, tensors: int) -> str:
        without, with_ = self.spent
        ratios = [b / a for a, b in zip(without, with_, strict=False)]
        spread = statistics.quantiles(ratios, n=4)
        table = statistics.median(self.each) * 1e3 if self.each else 0.0
        return (
            f"{tensors} tensors, step {statistics.median(without) * 1e3:.2f} ms of CPU; "
            f"a table {table:.3f} ms, {len(self.each)} of them; "
            f"with publishing {(statistics.median(ratios) - 1) * 100:+.2f} % "
            f"(quartiles {(spread[0] - 1) * 100:+.2f} to {(spread[2] - 1) * 100:+.2f} %)"
        )


def with_torch(folder: str, turns: Turns, registry: Registry, *, asked: bool) -> str:
    """Train a perceptron of 10 layers with batch norm, dropout and AdamW."""
    import torch

    from watchdog_app.agent.torch import Rescue

    torch.set_num_threads(1)
    layers = []
    for _ in range(10):
        layers += [
            torch.nn.Linear(384, 384),
            torch.nn.BatchNorm1d(384),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.1),
        ]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    rescue = Rescue(folder, model=model, optimizer=optimizer, resume=False)
    features = torch.randn(192, 384)
    session = rescue._session
    ask(registry, asked)
    while True:
        optimizer.zero_grad()
        (model(features) - features).square().mean().backward()
        optimizer.step()
        rescue.step()
        if not turns.step(session):
            return turns.summary(len(session._capture().entries))


def with_keras(
    folder: str, turns: Turns, registry: Registry, *, asked: bool, small: bool = False
) -> str:
    """Train the same in Keras on TensorFlow; or a small model without batch norm."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import keras
    import numpy as np

    from watchdog_app.agent.keras import Rescue

    layers = [keras.Input((384,))]
    for _ in range(2 if small else 10):
        layers.append(keras.layers.Dense(384, activation="relu"))
        if not small:
            layers += [keras.layers.BatchNormalization(), keras.layers.Dropout(0.1)]
    if small:
        layers += [keras.layers.Dropout(0.1), keras.layers.Dense(384)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse")
    rescue = Rescue(folder, resume=False)
    found = []

    class Turn(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            session = rescue._session
            if batch == 1 and turns.fresh:
                ask(registry, asked)
            if batch > 1 and not turns.step(session):
                found.append(turns.summary(len(session._capture().entries)))
                self.model.stop_training = True

    batch = 32 if small else 192
    data = np.random.default_rng(1).random((batch * 64, 384), dtype="f4")
    model.fit(data, data, batch_size=batch, epochs=1000, verbose=0, callbacks=[rescue, Turn()])
    return found[0]


def ask(registry: Registry, on: bool) -> None:
    """Ask this process for a table after every batch, or no longer, as a guard does."""
    registry.receive()
    registry.offers[os.getpid()].segment.ask_every_batch(on)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("framework", nargs="?", choices=("torch", "keras"), default="torch")
    parser.add_argument("--asked", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--stretches", type=int, default=40)
    options = parser.parse_args()
    run = {"torch": with_torch, "keras": partial(with_keras, small=options.small)}
    registry = Registry(1)
    with tempfile.TemporaryDirectory() as guard, tempfile.TemporaryDirectory() as folder:
        registry.listen(os.path.join(guard, SOCKET))
        os.environ["WATCHDOG_GUARD"] = guard
        print(options.framework, "asked" if options.asked else "at rest", end=": ", flush=True)
        turns = Turns(options.stretches)
        print(run[options.framework](folder, turns, registry, asked=options.asked))


if __name__ == "__main__":
    main()
