"""
Measure what the agent costs a healthy Keras fit, in steps with the agent and without.

    python bench/agent.py [--blocks 60] [--steps-ms 1 5 50] [--agent named] [--work compute]

`named`: a fit with `Rescue` among its callbacks. `found`: a fit that the agent finds.
`compute`: one thread computes the model for the whole step. `wait`: a small model, and the step
sleeps the rest of its time, as a program waits for a GPU; this reduces the influence of noise.
Without the agent means without its callbacks and without its watch over the step, in the same fit;
the agent's timers are shifted by that time. See `agent_paired.py`. The second table is the added
time at the start of a fit, in alternating fits of the same model. The benchmark starts no daemon;
the agent uses a running one (`WATCHDOG_RUNTIME_DIR`).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
import numpy as np
import tensorflow as tf
from agent_paired import ON, Meter, OwnCode, OwnThreads, Stretches

from watchdog_app.agent import hook
from watchdog_app.agent.adapters.keras.rescue import FitRescue, LastCallback
from watchdog_app.agent.keras import Rescue

WARM_STEPS, SETTLE = 60, 2
STRETCH_S, LEAST_STEPS = 0.4, 10
METERED = 10  # minimum number of stretches in which the agent's own code is timed


class Switch(keras.callbacks.Callback):
    """Switches the agent off and on during a fit, and times the stretches between."""

    def __init__(self, stretches: Stretches, length: int, pause_s: float, own: OwnThreads) -> None:
        super().__init__()
        self.stretches, self.length, self.pause_s, self.own = stretches, length, pause_s, own
        self.kind, self.place, self.connected = ON, -WARM_STEPS, False
        self.meter: Meter | None = None
        self.metered: list[OwnCode] = []

    def on_train_begin(self, logs: Any = None) -> None:
        # The list that calls this callback; the agent's callbacks are before or after it in the
        # list.
        self.list = sys._getframe(1).f_locals["self"]
        self.all = self.list.callbacks
        self.rest = [one for one in self.all if not isinstance(one, FitRescue | LastCallback)]
        self.rescue = next(one for one in self.all if isinstance(one, FitRescue))
        self.own.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.pause_s:
            time.sleep(self.pause_s)
        self.place += 1
        if self.meter is not None:
            self._meter_goes_on(self.meter)
            return
        if self.stretches.blocks:
            if self.place == 0:
                self.stretches.begins()
            elif self.place > 0:
                self.stretches.stepped()
        if self.place == (self.length if self.stretches.blocks else 0):
            self._next()

    def _next(self) -> None:
        if self.stretches.blocks:
            self.stretches.ends(self.kind)
        if not self.stretches.left:
            self._switch(on=True)
            self._meter_begins()
            return
        self.kind, self.place = self.stretches.next(), -SETTLE
        self._switch(on=self.kind == ON)

    def _meter_begins(self) -> None:
        """Continue the fit with the agent, and time all of the agent's functions."""
        self.meter, self.place = Meter(), 0
        watch, session = self.rescue._oom, self.rescue._session
        theirs = [one for one in self.all if isinstance(one, FitRescue | LastCallback)]
        for one in theirs:
            for name in ("on_train_batch_begin", "on_train_batch_end"):
                setattr(one, name, self.meter.metered(getattr(one, name)))
        for thing, name in (
            (watch, "_record_before_step"),
            (watch._record, "release"),
            (session, "process_boundary"),
        ):
            setattr(thing, name, self.meter.metered(getattr(thing, name), seldom=True))
        self.meter_began_s = time.perf_counter()

    def _meter_goes_on(self, meter: Meter) -> None:
        if self.place % self.length == 0:
            began_s, self.meter_began_s = self.meter_began_s, time.perf_counter()
            wall_s = self.meter_began_s - began_s
            self.metered.append(OwnCode(self.length, wall_s, *meter.take()))
        if len(self.metered) == max(METERED, len(self.stretches.blocks)):
            self.connected, self.share = self.rescue._session.link.connected, self.own.share()
            self.model.stop_training = True

    def _switch(self, *, on: bool) -> None:
        was_on = self.list.callbacks is self.all
        watch = self.rescue._oom
        self.list.callbacks = self.all if on else self.rest
        self.model.train_function = watch._wrapped if on else watch._original
        if was_on and not on:
            self.off_s = time.monotonic()
        elif on and not was_on:
            self._later(time.monotonic() - self.off_s)

    def _later(self, seconds: float) -> None:
        """Shift the agent's timers by the time without the agent, so that no extra work is due."""
        session = self.rescue._session
        session.reset_step_timer()
        session._next_report += seconds
        session._allocators._next_s += seconds
        for name in ("_next_s", "_next_count_s", "_next_parts_s"):
            vars(session.breakdown)[name] += seconds
        self.rescue._oom._pace._next_s += seconds


class Clock(keras.callbacks.Callback):
    """Records when the steps of a fit end."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = [(time.perf_counter(), time.process_time())]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ends.append((time.perf_counter(), time.process_time()))


def model_of(step_s: float) -> tuple[keras.Model, np.ndarray]:
    """Return a network whose training step takes about `step_s` on this machine, and one batch."""
    width, rows = 256, 16
    while True:
        keras.utils.clear_session()
        layers = [keras.layers.Dense(width, activation="relu") for _ in range(3)]
        model = keras.Sequential([keras.Input((width,)), *layers, keras.layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=False)
        x = np.ones((rows, width), "float32")
        clock = Clock()
        model.fit(dataset(x, 40), shuffle=False, verbose=0, callbacks=[clock])
        taken = sorted(np.diff([cpu for _, cpu in clock.ends])[5:])[10]
        if taken >= 0.85 * step_s or rows >= 2**16:
            return model, x
        rows = int(rows * min(3.0, max(1.2, step_s / taken)))


def dataset(x: np.ndarray, steps: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors((x, x[:, :1])).cache().repeat(steps)


def compare(agent: str, work: str, step_ms: float, blocks: int, folder: str) -> None:
    waits = work == "wait"
    model, x = model_of(0.0 if waits else step_ms / 1000)
    pause_s = max(0.0, step_ms / 1000 - 0.0015) if waits else 0.0
    length = max(LEAST_STEPS, int(1000 * STRETCH_S / step_ms))
    own, stretches = OwnThreads(), Stretches(blocks)
    switch = Switch(stretches, length, pause_s, own)
    callbacks: list[Any] = [Rescue(folder, resume=False)] if agent == "named" else []
    if agent == "found":
        hook.switch_on()
    steps = WARM_STEPS + 10 + (blocks + METERED) * 4 * (length + SETTLE)
    with contextlib.redirect_stderr(io.StringIO()):
        model.fit(dataset(x, steps), shuffle=False, verbose=0, callbacks=[*callbacks, switch])
    hook.switch_off()
    stretches.report(f"{agent}, {work}, {step_ms:g} ms", switch.metered, step_ms / 1000)
    daemon = "a daemon listens" if switch.connected else "no daemon"
    print(f"  its own thread    {100 * switch.share:.3f} % of a core ({daemon})", flush=True)


def start(turns: int, folder: str) -> None:
    """Measure the work done once per fit: until step 2, steps 3-12 and steps 13-52."""
    model, x = model_of(0.002)
    arms = ["without", "without, again", "with"]
    taken: dict[str, list[tuple[float, ...]]] = {arm: [] for arm in arms}
    for turn in range(turns + 1):
        for arm in arms[turn % 3 :] + arms[: turn % 3]:
            clock = Clock()
            rescues: list[Any] = [Rescue(folder, resume=False)] if arm == "with" else []
            model.fit(dataset(x, 60), shuffle=False, verbose=0, callbacks=[*rescues, clock])
            ends = clock.ends
            if turn:
                pairs = [(ends[0], ends[2]), (ends[2], ends[12]), (ends[12], ends[52])]
                taken[arm].append(
                    tuple(1e3 * (b[part] - a[part]) for part in (1, 0) for a, b in pairs)
                )
    plain = [statistics.median(column) for column in zip(*taken["without"], strict=True)]
    print(f"the start of a fit, {turns} turns: ms more than without, processor (wall)")
    for arm in arms[1:]:
        more = [
            statistics.median(column) - base
            for column, base in zip(zip(*taken[arm], strict=True), plain, strict=True)
        ]
        cells = [f"{more[at]:+.1f} ({more[at + 3]:+.1f})" for at in range(3)]
        print(f"  {arm:15} until step 2 {cells[0]}, steps 3-12 {cells[1]}, steps 13-52 {cells[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--steps-ms", type=float, nargs="+", default=[1, 5, 50])
    parser.add_argument(
        "--agent", nargs="+", choices=["named", "found"], default=["named", "found"]
    )
    parser.add_argument(
        "--work", nargs="+", choices=["compute", "wait"], default=["compute", "wait"]
    )
    parser.add_argument("--turns", type=int, default=20, help="of the start; 0: leave it out")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    with tempfile.TemporaryDirectory(prefix="watchdog-bench-") as folder:
        os.chdir(folder)
        rescues = os.path.join(folder, "rescues")
        for work in options.work:
            for agent in options.agent:
                for step_ms in options.steps_ms:
                    if work == "compute" or step_ms >= 5:
                        compare(agent, work, step_ms, options.blocks, rescues)
        if options.turns:
            start(options.turns, rescues)
        os.chdir("/")


if __name__ == "__main__":
    main()
