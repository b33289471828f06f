"""Small PyTorch trainings without a Rescue, for tests of the automatic detection."""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from watchdog_app.agent.found.torch_signals import trainings
from watchdog_app.agent.found.training import FoundTraining
from watchdog_app.agent.runtime.link import CheckpointRequest
from watchdog_app.agent.state import randomness


def loader() -> DataLoader:
    rows = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), 4, shuffle=True)


def ask(training: FoundTraining) -> None:
    assert training.session is not None
    training.session.link.pending_request = CheckpointRequest(1, "a test", time.monotonic())


def train(
    steps: int, at: Callable[[int], Any] = lambda _: None, model: nn.Module | None = None
) -> weakref.ref[Any]:
    """
    Train for this many steps, long enough for the agent to watch; return the model as a weak
    reference.
    """
    model = nn.Linear(3, 1) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.optimizer = optimizer  # keep the optimizer alive as long as the model
    batches = loader()
    count = 0
    while count < steps:
        for features, targets in batches:
            at(count)
            if count == 2:
                time.sleep(0.55)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(features), targets).backward()
            optimizer.step()
            count += 1
    return weakref.ref(model)


def train_with_bank(at: Callable[[int], Any]) -> None:
    """Train for two epochs, with tensors of an object that calls change in place."""
    model, batches = nn.Linear(3, 1), loader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    bank = SimpleNamespace(queue=torch.zeros(4), rows=torch.ones(4), mean={"w": torch.zeros(2)})
    for epoch in range(2):
        for count, (features, targets) in enumerate(batches, 6 * epoch):
            at(count)
            if count == 2:
                time.sleep(0.55)
            nn.functional.mse_loss(model(features), targets).backward()
            optimizer.step()
            torch.add(bank.queue, 1, out=bank.queue)
            for each in bank.mean.values():
                each.lerp_(bank.rows[:2], 0.5)


def train_with_target(at: Callable[[int], Any]) -> None:
    """Train with a copy of the model that is renewed once, and with one that never is."""
    model, target, teacher = nn.Linear(3, 1), nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for count, (features, _) in enumerate([*loader(), *loader()]):
        at(count)
        if count == 2:
            time.sleep(0.55)
        wanted = (target(features) + teacher(features)).detach()
        nn.functional.mse_loss(model(features), wanted).backward()
        optimizer.step()
        if count == 10:
            target.load_state_dict(model.state_dict())


class KeptIterator:
    """Reads a loader by an iterator that it keeps, and makes again."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self.iterator = iter(batches)

    def batch(self) -> Any:
        """The next batch, of this pass or the next one."""
        try:
            return next(self.iterator)
        except StopIteration:
            self.iterator = iter(self.batches)
            return next(self.iterator)


def train_with_kept_iterator(at: Callable[[int], Any]) -> None:
    """Train for two passes, with batches from an object that keeps the loader's iterator."""
    model, data = nn.Linear(3, 1), KeptIterator(loader())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for count in range(12):
        at(count)
        if count == 2:
            time.sleep(0.55)
        features, targets = data.batch()
        nn.functional.mse_loss(model(features), targets).backward()
        optimizer.step()


def train_with_evaluation(per_step: int = 1) -> None:
    """Train for three epochs, `per_step` batches a step; the last evaluation finds no memory."""
    model, batches, held_out, least = nn.Linear(3, 1), loader(), loader(), 9
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        seen = 0
        for count, (features, targets) in enumerate(batches, 6 * epoch):
            if count == 2:
                time.sleep(0.55)
            nn.functional.mse_loss(model(features), targets).backward()
            if seen % per_step == 0:
                optimizer.step()
            seen += 1
        try:
            for _ in held_out:
                torch.rand(2 if epoch < 2 else 1 << 50)
        except RuntimeError as error:
            only().out_of_memory(error)
        least = min(least, seen + epoch)


class Stateful(nn.Linear):
    """A layer that keeps a tuple of tensors between batches, as many recurrent models do."""

    hidden: tuple[torch.Tensor, ...] = ()

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.register_buffer("scale", torch.ones(1))
        self.means, self.recent, self.shared = [torch.zeros(1)], deque[float](maxlen=4), list[Any]()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.means[0] = self.means[0] + 1
        self.recent.append(float(self.means[0]))
        self.shared = [self.scale]
        self.hidden = tuple(each.detach() + 1 for each in self.hidden or (torch.zeros(2),))
        return super().forward(rows)


def train_until_a_batch_fails() -> None:
    """Near a limit, memory runs out between the forward pass of a batch and its step."""
    model, batches = Stateful(), loader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for count, (features, targets) in enumerate(batches, 6 * epoch):
            if count == 2:
                time.sleep(0.55)
            if count == 4:
                ask(only())
            if count == 5 and (session := only().session) is not None:
                session.publisher = MagicMock(asked=True, save_request=0)
            loss = nn.functional.mse_loss(model(features), targets)
            if count == 9:
                only().out_of_memory(MemoryError())
                return
            loss.backward()
            optimizer.step()


# The loop makes another optimizer for the same weights in its third epoch.
NEW_OPTIMIZER = """
import time
import torch

def train(loader, at):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(4):
        if epoch == 2:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        for count, (features, targets) in enumerate(loader, 6 * epoch):
            if count == 2:
                time.sleep(0.55)
            at(count)
            torch.nn.functional.mse_loss(model(features), targets).backward()
            optimizer.step()
"""


# The same in a method that the loop calls.
NEW_OPTIMIZER_OF_METHOD = """
import time
import torch

class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(3, 1)
        self.make(0.01)

    def make(self, rate):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)

    def train(self, loader, at):
        for epoch in range(4):
            if epoch == 2:
                self.make(0.001)
            for count, (features, targets) in enumerate(loader, 6 * epoch):
                if count == 2:
                    time.sleep(0.55)
                at(count)
                torch.nn.functional.mse_loss(self.model(features), targets).backward()
                self.optimizer.step()

def train(loader, at):
    Trainer().train(loader, at)
"""

# A loop over trainings collects a value of each, and a training has a name that it never sets.
REPEATED = """
import time
import torch

def train(loader, at, ranked=False):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for count, (features, targets) in enumerate(loader, 6 * epoch):
            if count == 2:
                time.sleep(0.55)
            at(count)
            if ranked and epoch == 0:
                rank = count
            torch.nn.functional.mse_loss(model(features), targets).backward()
            optimizer.step()
            if ranked:
                model(features + rank)
    return model.bias.item()

def repeat(loader, at):
    scores = []
    for number in range(2):
        scores.append(train(loader, at))
    return max(scores)
"""


def train_with_accumulation() -> None:
    """Train with a step in every second iteration; the one after an iteration without fails."""
    model, batches, seen = nn.Linear(3, 1), loader(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for count, (features, targets) in enumerate(batches, 6 * epoch):
            if count == 2:
                time.sleep(0.55)
            try:
                torch.rand(2 if count != 9 else 1 << 50)
            except RuntimeError as error:
                only().out_of_memory(error)
            nn.functional.mse_loss(model(features), targets).backward()
            if count % 2:
                optimizer.step()
            seen += 1


def train_until_a_draw_fails() -> Any:
    """Memory runs out at the first draw of the third epoch; return the random states before it."""
    model, batches = nn.Linear(3, 1), loader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        iterator = iter(batches)
        if epoch == 2:
            before = randomness.capture()
            only().out_of_memory(MemoryError())
            return before
        for count, (features, targets) in enumerate(iterator, 6 * epoch):
            if count == 2:
                time.sleep(0.55)
            nn.functional.mse_loss(model(features), targets).backward()
            optimizer.step()
    return None


best = 0


def keep_best(epoch: int) -> None:
    global best
    best = max(best, epoch)


class Recorder:
    """Keeps something of each epoch."""

    def __init__(self) -> None:
        self.rows, self.last, self.seen = list[int](), 0, list[int]()

    def epoch_ends(self, epoch: int) -> None:
        self.rows.append(epoch)
        self.last = epoch

    def see(self, epoch: int) -> None:
        self.seen.append(epoch)


def train_with_callbacks(at: Callable[[int], Any]) -> None:
    """Train for three epochs, with an object that the text of the loop does not call."""
    model, batches, callbacks, hooks = nn.Linear(3, 1), loader(), [Recorder()], {"end": [keep_best]}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        for count, (features, targets) in enumerate(batches, 6 * epoch):
            at(count)
            if count == 2:
                time.sleep(0.55)
            nn.functional.mse_loss(model(features), targets).backward()
            optimizer.step()
        for each in callbacks:
            getattr(each, "epoch_ends")(epoch)  # noqa: B009
        for hook in hooks["end"]:
            hook(epoch)


def train_with_rollout(at: Callable[[int], Any]) -> None:
    """Train with rows that the model itself has made before, without gradients."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rollout, recent = SimpleNamespace(rows=torch.ones(4, 3)), deque[float](maxlen=4)
    for count in range(12):
        at(count)
        if count == 2:
            time.sleep(0.55)
        with torch.no_grad():
            recent.append(float(model(rollout.rows).sum()))
        rollout.rows[1:].copy_(rollout.rows[:-1] + recent[-1])
        model(rollout.rows).square().mean().backward()
        optimizer.step()
        rollout.rows[0].copy_(rollout.rows[-1])


class Environment:
    """Draws the state of each episode from a generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)

    def reset(self) -> torch.Tensor:
        return torch.from_numpy(self.rng.random((1, 3), dtype="float32"))

    def close(self) -> None:
        """Draw nothing."""


def train_in_environment(
    at: Callable[[int], Any], environment: Environment, after: Callable[[], Any]
) -> None:
    """Train for twelve episodes, each with one step and a call after it."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for count in range(12):
        at(count)
        if count == 2:
            time.sleep(0.55)
        state = environment.reset()
        optimizer.zero_grad()
        model(state).sum().backward()
        optimizer.step()
        after()
    at(12)


def only() -> FoundTraining:
    (training,) = trainings.active()
    return training


def rescues(folder: Path) -> list[Path]:
    walk = os.walk(folder / "rescues")  # a folder that is removed meanwhile is not an error
    return sorted(
        Path(where, name)
        for where, names, _ in walk
        for name in names
        if name.startswith("rescue-")
    )


class OwnIterator:
    """Data that is its own iterator, as in many repositories of detectors."""

    def __init__(self) -> None:
        self.position = 0
        self.rows = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))

    def __iter__(self) -> OwnIterator:
        return self

    def __next__(self) -> torch.Tensor:
        self.position += 4
        if self.position > len(self.rows):
            self.position = 0
            raise StopIteration
        return self.rows[self.position - 4 : self.position]


def train_on_own_iterator() -> None:
    model, batches, count = nn.Linear(3, 1), OwnIterator(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        for rows in batches:
            if count == 2:
                time.sleep(0.55)
            if count == 9:
                ask(only())
            model(rows).sum().backward()
            optimizer.step()
            count += 1


def train_in_a_function() -> None:
    """Near a limit, memory runs out behind the optimizer's step, in the function that steps."""
    weights, average = nn.Parameter(torch.zeros(3)), torch.zeros(3)
    optimizer = torch.optim.SGD([weights], lr=0.01)

    def step(rows: torch.Tensor, count: int) -> None:
        (rows @ weights).sum().backward()
        optimizer.step()
        if count == 9:
            raise MemoryError
        with torch.no_grad():
            average.mul_(0.9).add_(weights)

    for count in range(12):
        if count == 2:
            time.sleep(0.55)
        if count == 4:
            session = only().session
            assert session is not None
            session.publisher = MagicMock(asked=True, save_request=0)
        rows = torch.rand(2, 3)
        try:
            step(rows, count)
        except MemoryError as error:
            only().out_of_memory(error)
            return
