"""
Measure what the agent costs a healthy PyTorch loop, in steps with the agent and without.

    python bench/agent_torch.py [--blocks 60] [--steps-ms 1 5] [--agent found named] [--guard near]

`found`: a loop that names no Rescue. `named`: a loop that reads through `rescue.data()` and calls
`rescue.step()`. A stretch is one pass over a DataLoader, including its start, in one thread.
Without the agent means that its hook is removed from PyTorch's optimizers and loaders, or that the
loop does not call the Rescue; the agent's timers are shifted by that time. See `agent_paired.py`.
The benchmark starts no daemon; the agent uses a running one (`WATCHDOG_RUNTIME_DIR`). `--guard`: a
watcher has the segment, as under `watchdog exec`. `near`: it asks for a snapshot after each step,
because memory grows to the limit. A steady program is not asked (`far`), however full it is.
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
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from agent_paired import ON, Meter, OwnCode, OwnThreads, Stretches
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader, TensorDataset

from watchdog_app.agent import hook
from watchdog_app.agent.found import folders, torch_signals
from watchdog_app.agent.runtime.session import Session
from watchdog_app.agent.torch import Rescue
from watchdog_app.rescue.segment.exchange import SOCKET, Registry
from watchdog_app.rescue.segment.segment import ENVIRONMENT

WARM_S = 1.0  # the agent watches a loop after half a second
STRETCH_S, LEAST_STEPS = 0.4, 10
METERED = 10  # minimum number of stretches in which the agent's own code is timed
WIDTH = 128


class Training:
    """A training with a plain PyTorch loop."""

    def __init__(self, rows: int, length: int) -> None:
        layers = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        data = torch.ones(1, WIDTH).expand(rows * length, WIDTH)
        self.loader = DataLoader(TensorDataset(data), rows)

    def train_on(self, batch: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss


class Found:
    """Adds the agent's hook to PyTorch and removes it again."""

    def __init__(self) -> None:
        hook.switch_on()
        ((self._kind, _, self._before, self._ours),) = torch_signals._loaders._methods
        self._off_s = now()
        self._on = True

    @property
    def session(self) -> Session:
        return torch_signals.trainings.current().session

    def switch(self, *, on: bool) -> None:
        if on == self._on:
            return
        self._on = on
        if on:
            torch_signals._step_hooks[:] = [
                register_optimizer_step_pre_hook(torch_signals._begins),
                register_optimizer_step_post_hook(torch_signals._stepped),
            ]
            self._kind.__iter__ = self._ours
            later(self.session, now() - self._off_s)
        else:
            for each in torch_signals._step_hooks:
                each.remove()
            self._kind.__iter__ = self._before
            self._off_s = now()

    def metered(self, meter: Meter) -> None:
        """Time all of our functions that PyTorch calls."""
        torch_signals._stepped = meter.metered(torch_signals._stepped)
        trainings = torch_signals.trainings
        trainings.about_to_draw = meter.metered(trainings.about_to_draw)
        begin = meter.metered(torch_signals._begin_pass, seldom=True)  # called once a pass
        torch_signals._begin_pass = begin
        self.session._publish_save_report = meter.metered(
            self.session._publish_save_report, seldom=True
        )
        self.switch(on=False)
        self.switch(on=True)

    def end(self) -> None:
        hook.switch_off()


class Named:
    """Switches a loop between calling the Rescue and not calling it."""

    def __init__(self, training: Training, folder: str) -> None:
        held = {"model": training.model, "optimizer": training.optimizer}
        self.rescue = Rescue(folder, resume=False, **held)
        self.session: Session = self.rescue._session
        self.data: Callable[[Iterable[Any]], Iterable[Any]] = self.rescue.data
        self.step: Callable[[Any], None] = self.rescue.step
        self._off_s: torch.Tensor | None = None

    def switch(self, *, on: bool) -> None:
        if on and self._off_s is not None:
            passed_s, self._off_s = now() - self._off_s, None
            later(self.session, passed_s)
            seconds = float(passed_s[0])
            watch = self.rescue._oom
            watch._pace._next_s += seconds
            watch._pace_of_passes._next_s += seconds
            self.rescue._next_loss_mono_s += seconds
        elif not on and self._off_s is None:
            self._off_s = now()

    def metered(self, meter: Meter) -> None:
        """Time all of our functions that the loop calls, except drawing batches through `data`."""
        self.step = meter.metered(self.step)
        for thing, name in (
            (self.session, "process_boundary"),
            (self.rescue._oom._record, "capture"),
        ):
            setattr(thing, name, meter.metered(getattr(thing, name), seldom=True))

    def end(self) -> None:
        self.rescue.finish()


class Watcher:
    """Listens as a guard does, and says how near the limit is."""

    def __init__(self, folder: str, place: str) -> None:
        self._place = place
        os.environ[ENVIRONMENT] = folder
        self._registry = Registry(4)
        self._registry.listen(os.path.join(folder, SOCKET))

    def ask(self) -> None:
        for each in self._registry.receive():
            each.segment.ask_every_batch(self._place == "near", waits=False)


def now() -> torch.Tensor:
    """Seconds by the clock, and of processor time."""
    return torch.tensor([time.monotonic(), time.process_time()], dtype=torch.float64)


def later(session: Session, passed_s: torch.Tensor) -> None:
    """Shift the agent's timers by the time without the agent, so that no extra work is due."""
    seconds, cpu_s = passed_s.tolist()
    session.reset_step_timer()
    session._next_report += seconds
    session._allocators._next_s += seconds
    if session.publisher is not None:
        publisher = session.publisher
        publisher._next_whole_s += seconds
        for pace in (publisher._usual, publisher._near, publisher._waits):
            pace.next_s += seconds
            pace.next_cpu_s += cpu_s
    for name in ("_next_s", "_next_count_s", "_next_parts_s"):
        vars(session.breakdown)[name] += seconds


def compare(
    agent: str, step_ms: float, rows: int, blocks: int, folder: str, *, guard: str | None
) -> None:
    watcher = Watcher(folder, guard) if guard else None
    length = max(LEAST_STEPS, int(1000 * STRETCH_S / step_ms))
    own, stretches = OwnThreads(), Stretches(blocks)
    training = Training(rows, length)
    switch: Found | Named = Found() if agent == "found" else Named(training, folder)
    metered: list[OwnCode] = []
    meter: Meter | None = None
    hollow: list[float] = []  # cost of the timing per step, from passes that call nothing
    began = time.perf_counter()
    timing = False
    while len(metered) < max(METERED, blocks):
        kind = ON
        if not timing:
            timing = time.perf_counter() - began > WARM_S
            own.begin()
        elif stretches.left:
            kind = stretches.next()
        elif meter is None:
            meter = Meter()
            switch.metered(meter)
        counted = timing and bool(stretches.blocks) and meter is None
        of_clock = meter is not None and len(hollow) <= len(metered)
        switch.switch(on=kind == ON and not of_clock)
        loader: Iterable[Any] = training.loader
        step: Callable[[Any], None] | None = None
        handle: Any = None
        if of_clock and isinstance(switch, Named):
            step = meter.nothing
        elif of_clock:
            handle = register_optimizer_step_post_hook(meter.nothing)
        elif isinstance(switch, Named) and kind == ON:
            loader, step = switch.data(training.loader), switch.step
            switch.rescue._passes.new_epoch()
        pass_began = time.perf_counter()
        if watcher is not None:
            watcher.ask()
        if counted:
            stretches.begins()
        for (batch,) in loader:
            loss = training.train_on(batch)
            if step is not None:
                step(loss)
            if counted:
                stretches.stepped()
        if counted:
            stretches.ends(kind)
        if handle is not None:
            handle.remove()
        if meter is not None:
            code = OwnCode(length, time.perf_counter() - pass_began, *meter.take())
            if of_clock:
                hollow.append(code.each_step_s / length)
            else:
                metered.append(code)
    connected, share = switch.session.link.connected, own.share()
    switch.end()
    clock_s = statistics.fmean(hollow)
    metered = [replace(each, each_step_s=each.each_step_s - clock_s * length) for each in metered]
    stretches.report(f"{agent}, {step_ms:g} ms", metered, step_ms / 1000)
    print(f"  without           {1e6 * clock_s:.1f} us a step that the clock took there")
    daemon = "a daemon listens" if connected else "no daemon"
    print(f"  its own thread    {100 * share:.3f} % of a core ({daemon})", flush=True)


def rows_for(step_s: float) -> int:
    """Return the batch size for which a step takes about `step_s` on this machine."""
    rows = 8
    while True:
        training = Training(rows, 20)
        times = []
        for (batch,) in training.loader:
            began = time.process_time()
            training.train_on(batch)
            times.append(time.process_time() - began)
        taken = sorted(times)[5]
        if taken >= 0.85 * step_s or rows > 2**16:
            return rows
        rows = int(rows * min(3.0, max(1.2, step_s / taken)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--steps-ms", type=float, nargs="+", default=[1, 5, 50])
    both = ["found", "named"]
    parser.add_argument("--agent", nargs="+", choices=both, default=both)
    parser.add_argument("--guard", choices=["far", "near"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="watchdog-bench-") as folder:
        os.chdir(folder)
        folders.resume_in(os.path.join(folder, "rescues"))  # not next to this file
        sys.argv[1:] = []
        rows = {step_ms: rows_for(step_ms / 1000) for step_ms in options.steps_ms}
        for agent in options.agent:
            for step_ms in options.steps_ms:
                own = f"{folder}/{agent}-{step_ms:g}"
                os.mkdir(own)
                with contextlib.redirect_stderr(io.StringIO()):
                    batch = rows[step_ms]
                    compare(agent, step_ms, batch, options.blocks, own, guard=options.guard)
        os.chdir("/")


if __name__ == "__main__":
    main()
