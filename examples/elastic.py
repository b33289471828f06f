"""
A training in several processes whose restarts resume: elastic torchrun, with a kill for memory.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node 2 --max-restarts 2 examples/elastic.py

One rank saves when memory gets short, and the others with it at the same step. Here the program
does both itself: it saves after step 20, and after step 30 the last rank ends as the kernel ends a
process without memory (SIGKILL). torchrun then ends the other ranks and starts all again. The new
ones resume from step 20. Without the variable they may find the addresses of the ended ones, and
gloo fails to connect (PyTorch 2.13).
"""

from __future__ import annotations

import os
import signal
import tempfile

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from watchdog_app.agent.torch import Rescue

# One folder for all ranks and restarts; on several machines it lies on a common disk.
FOLDER = os.environ.get("RESCUES") or f"{tempfile.gettempdir()}/elastic-{os.getuid()}"


def main() -> None:
    """Train three epochs, over all restarts."""
    distributed.init_process_group("gloo")
    rank, restarts = distributed.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = torch.randn(256, 8, generator=torch.Generator().manual_seed(2))
    data = TensorDataset(rows, rows.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)

    rescue = Rescue(FOLDER, model=model, optimizer=optimizer)
    if rank == 0:
        print(f"start {restarts}: {rescue.step_number} steps are done", flush=True)
    for epoch in rescue.epochs(3):
        sampler.set_epoch(epoch)
        for features, targets in rescue.data(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(features), targets)
            loss.backward()
            optimizer.step()
            rescue.step(loss)
            if rescue.step_number == 20 and not rescue.resumed:
                rescue.save()
            if (
                rescue.step_number == 30
                and not restarts
                and rank == distributed.get_world_size() - 1
            ):
                os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        print(f"finished after {rescue.step_number} steps, loss {loss.item():.6f}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
