"""
PyTorch trainings without a Rescue: saved automatically, killed, and resumed with printed lines.

    watchdog exec -- python torch_found_cases.py FOLDER CASE...

Each case runs three times, each in its own process. `reference` runs to the end. `interrupted` gets
a rescue request in one iteration and is killed by SIGKILL a few iterations later. Neither of these
uses a Rescue. `resumed` is the same program with the lines that watchdog prints. Each run records
every iteration with every bit.
"""

from __future__ import annotations

import builtins
import copy
import glob
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # takes a second, which the first optimizer of each fork would need
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from watchdog_app.agent.found.torch_signals import trainings
from watchdog_app.agent.runtime.link import CheckpointRequest
from watchdog_app.agent.torch import Rescue
from watchdog_app.rescue.checkpoint.reader import LoadedRescue

EPOCHS, ROWS, BATCH = 3, 40, 4  # ten batches per epoch
ASK_AT, KILL_AT = 16, 21


class Journal:
    """Records each iteration; requests a rescue and dies at the given iterations."""

    def __init__(self, path: Path, role: str) -> None:
        self.file = path.open("w")
        self.interrupts = role == "interrupted"
        self.count = 0

    def begin(self) -> None:
        if self.interrupts and self.count < 12:
            time.sleep(0.06)  # the agent does not watch a training that ends at once
        if self.interrupts and self.count == ASK_AT:
            (training,) = trainings.active()
            training.session.link.pending_request = CheckpointRequest(1, "a test", time.monotonic())
        if self.interrupts and self.count == KILL_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def note(self, *values: float | torch.Tensor, draws: bool = True) -> None:
        drawn = (random.random(), float(np.random.rand()), float(torch.rand(()))) if draws else ()
        print(
            *(value.hex() for value in (*map(number, values), *drawn)), file=self.file, flush=True
        )


def number(value: float | torch.Tensor) -> float:
    return value.item() if isinstance(value, torch.Tensor) else value


class Augmented(Dataset):
    def __init__(self) -> None:
        self.rows = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
        self.rng = np.random.default_rng(7)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = self.rows[index] + 0.01 * (torch.randn(6) + float(self.rng.random()))
        return row, row.sum().reshape(1)


def plain() -> TensorDataset:
    rows = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(rows, rows.sum(1, keepdim=True))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1)
    )


def validate(model: nn.Module, data: DataLoader) -> float:
    model.eval()
    with torch.no_grad():
        total = sum(float(model(rows).sum()) for rows, _ in data)
    model.train()
    return total


def convolution(journal: Journal, folder: str | None) -> None:
    """A CNN with batch norm and dropout, AdamW with OneCycleLR, a validation in each epoch."""
    images = torch.randn(ROWS, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(images, images.mean((2, 3))), BATCH, shuffle=True)
    other = DataLoader(plain(), BATCH, shuffle=True)
    judge = network()
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(),
        nn.Linear(64, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=EPOCHS * 10)
    rescue = folder and Rescue(folder, model=model, optimizer=optimizer, scheduler=scheduler)
    for _epoch in rescue.epochs(EPOCHS) if rescue else range(EPOCHS):
        for features, targets in rescue.data(loader) if rescue else loader:
            journal.begin()
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(features), targets)
            loss.backward()
            optimizer.step()
            scheduler.step()
            journal.note(loss, scheduler.get_last_lr()[0])
            if rescue:
                rescue.step()
        validate(judge, other)


class Trainer:
    """Holds the trained objects and an average, and runs steps in methods."""

    def __init__(self) -> None:
        self.net = network()
        self.optim = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        self.average = copy.deepcopy(self.net)
        self.decay = torch.optim.lr_scheduler.StepLR(self.optim, 1, 0.5)

    def batch(self, features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.net(features), targets)
        loss.backward()
        self.optim.step()
        self.optim.zero_grad()
        with torch.no_grad():
            for mean, now in zip(self.average.parameters(), self.net.parameters(), strict=True):
                mean.lerp_(now, 0.1)
        return loss

    def epoch(self, loader: DataLoader, journal: Journal, rescue: Rescue | None) -> None:
        for features, targets in rescue.data(loader) if rescue else loader:
            journal.begin()
            loss = self.batch(features, targets)
            journal.note(loss, next(self.average.parameters()).sum())
            if rescue:
                rescue.step()


def workers(journal: Journal, folder: str | None) -> None:
    """Two workers, data with its own random numbers, a trainer object with an average."""
    trainer = Trainer()
    loader = DataLoader(Augmented(), BATCH, shuffle=True, num_workers=2)
    rescue = folder and Rescue(
        folder, net=trainer.net, average=trainer.average, optim=trainer.optim, decay=trainer.decay
    )
    for _epoch in rescue.epochs(EPOCHS) if rescue else range(EPOCHS):
        trainer.epoch(loader, journal, rescue)
        trainer.decay.step()


def accumulated(journal: Journal, folder: str | None) -> None:
    """The optimizer steps for every second batch."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(plain(), BATCH, shuffle=True)
    rescue = folder and Rescue(folder, model=model, optimizer=optimizer)
    for _epoch in rescue.epochs(EPOCHS) if rescue else range(EPOCHS):
        for index, batch in enumerate(rescue.data(loader) if rescue else loader):
            journal.begin()
            loss = nn.functional.mse_loss(model(batch[0]), batch[1])
            loss.backward()
            if index % 2:
                optimizer.step()
                optimizer.zero_grad()
                if rescue:
                    rescue.step()
            journal.note(loss)


def no_loader(journal: Journal, folder: str | None) -> None:
    """The loop draws batches itself, from a generator with a name."""
    draws = torch.Generator().manual_seed(9)
    rows, targets = plain().tensors
    weight = torch.zeros(6, 1, requires_grad=True)
    model = network()
    optimizer = torch.optim.Adam([*model.parameters(), weight], lr=0.01)
    step = 0
    if folder:
        rescue = Rescue(folder, model=model, weight=weight, optimizer=optimizer, draws=draws)
        step = rescue.step_number
    while step < EPOCHS * 10:
        journal.begin()
        chosen = torch.randint(ROWS, (BATCH,), generator=draws)
        loss = nn.functional.mse_loss(model(rows[chosen]) + rows[chosen] @ weight, targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        journal.note(loss)
        step += 1
        if folder:
            rescue.step()


def whole_batch(journal: Journal, folder: str | None) -> None:
    """All rows in each step; only the dropout draws random numbers."""
    rows, targets = plain().tensors
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step = 0
    if folder:
        rescue = Rescue(folder, model=model, optimizer=optimizer)
        step = rescue.step_number
    while step < EPOCHS * 10:
        journal.begin()
        loss = nn.functional.mse_loss(model(rows), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        journal.note(loss, draws=False)
        step += 1
        if folder:
            rescue.step()


def adversarial(journal: Journal, folder: str | None) -> None:
    """Two networks, each with an optimizer, that step one after the other."""
    generator, critic = nn.Linear(3, 6), network()
    of_generator = torch.optim.Adam(generator.parameters(), lr=0.01)
    of_critic = torch.optim.Adam(critic.parameters(), lr=0.02)
    loader = DataLoader(plain(), BATCH, shuffle=True)
    rescue = folder and Rescue(
        folder,
        generator=generator,
        critic=critic,
        of_generator=of_generator,
        of_critic=of_critic,
    )
    for _epoch in rescue.epochs(EPOCHS) if rescue else range(EPOCHS):
        for real, _ in rescue.data(loader) if rescue else loader:
            journal.begin()
            of_critic.zero_grad()
            false = generator(torch.randn(BATCH, 3))
            judged = critic(false.detach()).mean() - critic(real).mean()
            judged.backward()
            of_critic.step()
            of_generator.zero_grad()
            fooled = -critic(generator(torch.randn(BATCH, 3))).mean()
            fooled.backward()
            of_generator.step()
            journal.note(judged, fooled)
            if rescue:
                rescue.step()


def listed(journal: Journal, folder: str | None) -> None:
    """Optimizers and schedulers in lists; a loop steps each list."""
    body, head = network(), nn.Linear(1, 1)
    optims = [torch.optim.Adam(each.parameters(), lr=0.01) for each in (body, head)]
    decays = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in optims]
    loader = DataLoader(plain(), BATCH, shuffle=True)
    rescue = folder and Rescue(
        folder,
        body=body,
        head=head,
        optims_0=optims[0],
        optims_1=optims[1],
        decays_0=decays[0],
        decays_1=decays[1],
    )
    for _epoch in rescue.epochs(EPOCHS) if rescue else range(EPOCHS):
        for features, targets in rescue.data(loader) if rescue else loader:
            journal.begin()
            loss = nn.functional.mse_loss(head(body(features)), targets)
            loss.backward()
            for optimizer in optims:
                optimizer.step()
                optimizer.zero_grad()
            for decay in decays:
                decay.step()
            journal.note(loss, decays[1].get_last_lr()[0])
            if rescue:
                rescue.step()


class Batches:
    """Returns itself as its iterator, and shuffles its rows at the end of a pass."""

    def __init__(self) -> None:
        self.rows, self.at = list(range(ROWS)), 0

    def __len__(self) -> int:
        return ROWS // BATCH

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> list[torch.Tensor]:
        if self.at == ROWS:
            self.at = 0
            np.random.shuffle(self.rows)
            raise StopIteration
        self.at += BATCH
        return [each[self.rows[self.at - BATCH : self.at]] for each in plain().tensors]


def own_iterator(journal: Journal, folder: str | None) -> None:
    """A class of the program gives the batches, and `break` hides the steps of an epoch."""
    model, batches = network(), Batches()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rescue = folder and Rescue(folder, model=model, optimizer=optimizer)
    range = rescue.epochs if rescue else builtins.range
    enumerate = rescue.enumerate if rescue else builtins.enumerate
    for _epoch in range(EPOCHS):
        for index, (features, targets) in enumerate(batches):
            journal.begin()
            loss = nn.functional.mse_loss(model(features), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            journal.note(loss, draws=False)
            if rescue:
                rescue.step()
            if index > ROWS:
                break


def main(case: str, role: str, folder: Path) -> None:
    torch.manual_seed(3)
    random.seed(4)
    np.random.seed(5)
    torch.set_num_threads(1)
    sys.argv[1:] = [case]  # other arguments mean another training: each case has its own folder
    saved = None
    if role == "resumed":
        os.environ["WATCHDOG_AGENT_RESUME"] = "no"
        for path in glob.glob(f"{Path(__file__).parent}/rescues/*/rescue-*"):
            with LoadedRescue(path) as rescue:
                found = {**rescue.meta["found"], "lost": rescue.meta["not_restored"]}
                found["step"] = rescue.step
            if found["where"].endswith(where(case)):
                saved = found["directory"]
                (folder / f"{case}.names.json").write_text(json.dumps(found))
        assert saved is not None, case
    globals()[case](Journal(folder / f"{case}.{role}.txt", role), saved)


def where(case: str) -> str:
    return ", epoch" if case == "workers" else f", {case}"


def run(case: str, role: str, folder: Path) -> None:
    """Run a case in a child process that has already imported everything."""
    pid = os.fork()
    if pid == 0:
        try:
            main(case, role, folder)
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    expected = -signal.SIGKILL if role == "interrupted" else 0
    assert os.waitstatus_to_exitcode(status) == expected, (case, role, status)


if __name__ == "__main__":
    target, *cases = sys.argv[1:]
    for name in cases:
        for each in ("reference", "interrupted", "resumed"):
            run(name, each, Path(target))
