"""
PyTorch trainings that can be killed in the middle and run again.

    python torch_cases.py FOLDER CASE...

Each case runs three times, each in its own process: `reference` runs to the end; `interrupted`
saves a rescue at one step and is killed by SIGKILL a few steps later; `resumed` then runs in the
same folder. Each writes its losses of every step with every bit, and the final values.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import traceback
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # takes a second, which the first optimizer of each fork would need
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from watchdog_app.agent.torch import Rescue

EPOCHS, ROWS, BATCH = 3, 40, 4  # ten batches per epoch
SAVE_AT, KILL_AT = 16, 19  # in the middle of the second epoch


class Augmented(Dataset):
    """Adds noise from every kind of generator, global and local."""

    def __init__(self) -> None:
        self.features = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
        self.rng = np.random.default_rng(7)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = self.features[index]
        noise = torch.randn(6) + random.random() + float(np.random.rand()) + self.rng.random()
        return row + 0.01 * noise, row.sum().reshape(1)


class Stream(IterableDataset):
    """An endless source that its own generator shuffles."""

    def __init__(self) -> None:
        self.rng = random.Random(5)

    def __iter__(self):
        order = list(range(ROWS))
        self.rng.shuffle(order)
        rows = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
        for index in order:
            yield rows[index] * self.rng.random(), rows[index].sum().reshape(1)


class Ahead(DataLoader):
    """Draws one batch ahead, as the loaders of accelerate do."""

    def __iter__(self):
        batches = super().__iter__()
        held = next(batches)
        for batch in batches:
            yield held
            held = batch
        yield held


class Placed:
    """A loader that reports its position, as torchdata's StatefulDataLoader does."""

    def __init__(self) -> None:
        self.place, self.order = 0, torch.arange(10)
        self.rows = torch.randn(10, BATCH, 6, generator=torch.Generator().manual_seed(1))

    def __iter__(self):
        if self.place == 0:
            self.order = torch.randperm(10)
        while self.place < 10:
            row = self.rows[self.order[self.place]]
            self.place += 1
            yield row, row.sum(1, keepdim=True)
        self.place = 0

    def state_dict(self) -> dict[str, object]:
        return {"place": self.place, "order": self.order}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.place, self.order = state["place"], state["order"]


def plain_data() -> TensorDataset:
    features = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(features, features.sum(1, keepdim=True))


def dropout_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1)
    )


def loader_of(case: str):
    if case == "stateful":
        return Placed()
    if case == "workers":
        return DataLoader(Augmented(), BATCH, shuffle=True, num_workers=2)
    if case == "persistent":
        return DataLoader(plain_data(), BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    if case == "augmented":
        return DataLoader(Augmented(), BATCH, shuffle=True)
    if case == "ahead":
        return Ahead(Augmented(), BATCH, shuffle=True)
    if case == "stream":
        return DataLoader(Stream(), BATCH)
    generator = torch.Generator().manual_seed(11)
    return DataLoader(plain_data(), BATCH, shuffle=True, generator=generator)


# the process runs the first role; as an argument it would make another training
ROLES: list[str] = []


def main(case: str, folder: Path) -> None:
    role = ROLES[0]
    torch.manual_seed(3)
    random.seed(4)
    np.random.seed(5)
    torch.set_num_threads(1)
    model = dropout_model()
    loader = loader_of(case)
    state: dict[str, object] = {"history": []}
    if case == "bfloat16":
        model = model.to(torch.bfloat16)
    if case in ("sgd", "accumulated", "bfloat16"):
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            model.parameters(), lr=0.05, momentum=0.9, nesterov=True
        )
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=EPOCHS * 10)
        state["scheduler"] = scheduler
    other = DataLoader(plain_data(), BATCH, shuffle=True)  # evaluated in every epoch
    if case == "scaled":
        state["scaler"] = scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)
    if case == "averaged":
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        state["average"] = average
    history = state["history"]
    # The reference must not load the interrupted run's state.
    rescue = Rescue(
        folder / f"{case}-{role == 'reference'}", model=model, optimizer=optimizer, **state
    )
    log = (folder / f"{case}.{role}.txt").open("a")
    for epoch in rescue.epochs(EPOCHS):
        model.train()
        print("epoch", epoch, float(torch.rand(())), file=log, flush=True)
        for batch in rescue.data(loader):
            features, targets = (part.to(model[0].weight.dtype) for part in batch)
            loss = nn.functional.mse_loss(model(features).float(), targets.float())
            if case == "scaled":
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            else:
                loss.backward()
            if case == "scaled":
                pass
            elif case != "accumulated" or rescue.step_number % 4 == 1:  # not at the save
                optimizer.step()
                optimizer.zero_grad()
            if "scheduler" in state:
                scheduler.step()
            if case == "averaged":
                average.update_parameters(model)
            line = f"step {rescue.step_number + 1} {loss.item().hex()} {random.random()}"
            print(line, np.random.rand(), optimizer.param_groups[0]["lr"], file=log, flush=True)
            rescue.step(loss=loss)
            if role == "interrupted" and rescue.step_number == SAVE_AT:
                assert rescue.save() is not None
            if role == "interrupted" and rescue.step_number == KILL_AT:
                os.kill(os.getpid(), signal.SIGKILL)
        if case == "two_loaders":
            model.eval()
            with torch.no_grad():
                for features, _ in rescue.data(other):
                    print("evaluated", model(features).sum().item().hex(), file=log, flush=True)
        history.append(epoch)
    digest = hashlib.sha256()
    for tensor in [*model.state_dict().values(), *list(state.get("average", model).parameters())]:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    print("end", history, digest.hexdigest(), torch.get_rng_state().sum().item(), file=log)
    log.close()


def run(case: str, folder: Path) -> None:
    """Run a case in a child process that has already imported everything."""
    pid = os.fork()
    if pid == 0:
        try:
            main(case, folder)
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    role = ROLES[0]
    expected = -signal.SIGKILL if role == "interrupted" else 0
    assert os.waitstatus_to_exitcode(status) == expected, (case, role, status)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        ROLES = ["reference", "interrupted", "resumed"]
        while ROLES:
            run(name, Path(sys.argv[1]))
            del ROLES[0]
