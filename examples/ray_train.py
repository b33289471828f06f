"""
Ray Train with rescues: workers that ran out of memory are started again by Ray and resume.

    pip install 'ray[train]' torch
    watchdog exec --limit 5G -- python examples/ray_train.py

Watchdog needs no code for Ray. Ray makes the process group, and each worker makes its Rescue, as
under torchrun. After each epoch the complete rescue is handed to Ray as its checkpoint. Between two
epochs, a rescue saves what is at stake: here one worker keeps 64 MiB of every batch in its first
life. At the limit both workers save the same step. Then a MemoryError ends that worker, Ray starts
the group again, and both resume from that step.
"""

from __future__ import annotations

import os
import sys
import tempfile

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from watchdog_app.agent.torch import Rescue

# On a common disk, if the workers run on several machines; of this training alone.
FOLDER = os.environ.get("RESCUES") or tempfile.mkdtemp(prefix="ray-rescues-")


def train(config: dict[str, str]) -> None:
    """Train three epochs; Ray calls this in each worker, and again after a failure."""
    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    model = ray.train.torch.prepare_model(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = torch.randn(512, 8, generator=torch.Generator().manual_seed(2))
    data = TensorDataset(rows, rows.sum(1, keepdim=True))
    loader = ray.train.torch.prepare_data_loader(DataLoader(data, batch_size=8))
    # Ray starts each worker with other arguments, so it looks like another program: "force".
    rescue = Rescue(config["folder"], resume="force", model=model, optimizer=optimizer)
    print(f"worker {rank} begins after step {rescue.step_number}", flush=True)
    hoard = []
    for epoch in rescue.epochs(3):
        loader.sampler.set_epoch(epoch)
        for features, targets in rescue.data(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(features), targets)
            loss.backward()
            optimizer.step()
            if rank == 1 and not rescue.resumed:
                hoard.append(torch.ones(16 << 20))  # the leak
            rescue.step(loss)
        path = rescue.save()  # every worker saves its part of one rescue
        checkpoint = Checkpoint.from_directory(path) if path and rank == 0 else None
        ray.train.report({"epoch": epoch, "loss": loss.item()}, checkpoint=checkpoint)


def main() -> None:
    """Run the training on two workers of this machine."""
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20)
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"folder": FOLDER},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=os.path.join(FOLDER, "ray"), failure_config=FailureConfig(max_failures=2)
        ),
    )
    result = trainer.fit()
    print(f"finished: {result.metrics}; checkpoint {result.checkpoint.path}")


if __name__ == "__main__":
    sys.exit(main())
