"""
Lightning and Hugging Face trainings: saved automatically, ended by a signal and resumed.

    watchdog exec -- python torch_libraries.py FOLDER lightning|transformers

The runs `reference`, `interrupted`, `edited`, `looped` and `resumed` have a process each and
differ in one line. The model of `edited` computes something else, so it must not resume. Neither
must `looped`, which has another optimizer or another `compute_loss`.
"""

from __future__ import annotations

import glob
import os
import signal
import sys
import time
import traceback
from collections import deque
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from watchdog_app.agent.found.torch_signals import trainings
from watchdog_app.agent.runtime.link import CheckpointRequest
from watchdog_app.base.errors import RescueMismatch

REFUSED = 7  # exit status
ASK_AT, KILL_AT = 26, 32  # forward passes
RESUMES = ("edited", "looped", "resumed")
DIFFERENCES = {
    "edited": ("'s factor is 2 in the program",),
    "looped": ("optimizer 1 is Adam in the program", "the code of compute_loss"),
}


class Memory:
    """Rows of earlier batches, of which each batch gets one."""

    def __init__(self) -> None:
        self.rows: deque[torch.Tensor] = deque(maxlen=8)
        self.generator = np.random.default_rng(5)

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        if self.rows:
            x = x + 0.1 * self.rows[self.generator.integers(len(self.rows))]
        self.rows.append(x.mean(0))
        return x


class Net(nn.Module):
    """Records the loss of each forward pass; requests a rescue and dies at the given passes."""

    def __init__(self, path: Path, role: str, end: signal.Signals = signal.SIGKILL) -> None:
        super().__init__()
        self._end = end
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), nn.Linear(16, 1))
        self.file, self.count = path.open("w"), 0
        self.memory = Memory()
        self._role = role
        self.factor = 2.0 if role == "edited" else 1.0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = ((self.layers(self.memory.mix(x)) - labels) ** 2).mean() * self.factor
        print(loss.item().hex(), file=self.file, flush=True)
        self.count += 1
        if self._role == "interrupted":
            if self.count < 20:
                time.sleep(0.05)  # the agent does not watch a training that ends at once
            if self.count == ASK_AT and self._end == signal.SIGKILL:
                (training,) = trainings.active()
                training.session.link.pending_request = CheckpointRequest(
                    1, "a test", time.monotonic()
                )
            if self.count == KILL_AT:
                os.kill(os.getpid(), self._end)
        if self._role == "resumed" and self.count == 10:  # it counts on, and not from 0
            (training,) = trainings.active()
            assert training.detector.iterations > ASK_AT // 2
        return {"loss": loss}


def rows() -> TensorDataset:
    features = torch.randn(80, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(features, features.sum(1, keepdim=True))


def saved() -> str:
    (folder,) = glob.glob(f"{Path(__file__).parent}/rescues/*")
    return folder


def lightning(path: Path, role: str) -> None:
    import lightning as L

    from watchdog_app.agent.lightning import resumed

    class Decay(L.Callback):
        def on_train_start(self, *_: object) -> None:
            self.seen = 0

        def on_train_batch_start(self, trainer: L.Trainer, *_: object) -> None:
            self.seen += 1
            trainer.optimizers[0].param_groups[0]["weight_decay"] = self.seen / 10

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(path, role, signal.SIGTERM)
            self.outputs: list[torch.Tensor] = []
            self.parts: dict[str, list[torch.Tensor]] = {"loss": []}
            self.weight = 1.0

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            loss = self.net(*batch)["loss"]
            self.outputs.append(loss.detach())
            self.parts["loss"].append(loss.detach())
            return loss * self.weight

        def on_train_epoch_end(self) -> None:
            means = [torch.stack(each).mean() for each in (self.outputs, self.parts["loss"])]
            self.weight += sum(means).item()
            self.outputs.clear()
            self.parts["loss"].clear()
            self.log("rising", float(self.current_epoch))

        def configure_optimizers(self) -> tuple[list[object], list[dict[str, object]]]:
            kind = torch.optim.Adam if role == "looped" else torch.optim.AdamW
            optimizer = kind(self.parameters(), 0.01)
            falling = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return [optimizer], [
                {"scheduler": falling, "interval": "step"},
                {"scheduler": plateau, "monitor": "rising"},
            ]

    loader = DataLoader(rows(), 4, shuffle=True)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Decay(), stop := L.pytorch.callbacks.EarlyStopping("rising", patience=9)],
    )
    if role in RESUMES:
        trainer.fit(Module(), **resumed(saved(), loader))
    else:
        trainer.fit(Module(), loader)
    assert role == "interrupted" or stop.wait_count == 2


def transformers(path: Path, role: str) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from watchdog_app.agent.transformers import checkpoint

    class Rows(Dataset):
        def __len__(self) -> int:
            return 80

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            features, targets = rows()[index]
            # accelerate draws a batch ahead, with the random numbers before the step.
            return {"x": features + torch.randn(6), "labels": targets}

    arguments = TrainingArguments(
        str(path.parent / "out"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=3,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=1000,
    )

    class Decay(TrainerCallback):
        def on_train_begin(self, *_: object, **__: object) -> None:
            self.seen = 0

        def on_step_begin(self, *_: object, optimizer: torch.optim.Optimizer, **__: object) -> None:
            self.seen += 1
            optimizer.param_groups[0]["weight_decay"] = self.seen / 10

    class Plain(Trainer):
        def compute_loss(self, model: nn.Module, inputs: dict[str, torch.Tensor], **_: object):
            return model(**inputs)["loss"]

    class Doubled(Trainer):
        def compute_loss(self, model: nn.Module, inputs: dict[str, torch.Tensor], **_: object):
            return model(**inputs)["loss"] * 2

    kind = Doubled if role == "looped" else Plain
    trainer = kind(Net(path, role), arguments, train_dataset=Rows(), callbacks=[Decay()])
    trainer.train(resume_from_checkpoint=checkpoint(saved()) if role in RESUMES else None)


def run(library: str, role: str, folder: Path) -> None:
    """Run a role in a child process that has already imported everything."""
    pid = os.fork()
    if pid == 0:
        try:
            torch.manual_seed(3)
            torch.set_num_threads(1)
            globals()[library](folder / f"{library}.{role}.txt", role)
            sys.stdout.flush()
            os._exit(0)
        except RescueMismatch as error:
            named = any(each in str(error) for each in DIFFERENCES.get(role, ()))
            named &= "To resume all the same: set WATCHDOG_AGENT_RESUME=force" in str(error)
            os._exit(REFUSED if named else 1)
        except SystemExit as error:  # Lightning ends so after SIGTERM
            os._exit(int(error.code or 0))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    killed = 0 if library == "lightning" else -signal.SIGKILL
    expected = {"interrupted": killed, **dict.fromkeys(DIFFERENCES, REFUSED)}.get(role, 0)
    assert os.waitstatus_to_exitcode(status) == expected, (library, role, status)


if __name__ == "__main__":
    target, which = sys.argv[1:]
    sys.argv[1:] = []
    __import__(which)
    for each in ("reference", "interrupted", *RESUMES):
        run(which, each, Path(target))
