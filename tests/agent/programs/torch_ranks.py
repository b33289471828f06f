"""
One PyTorch training in several processes, which can be killed in the middle and run again.

    python torch_ranks.py FOLDER KIND COUNT ROLE...

KIND is `ddp` or `fsdp`. COUNT is the number of processes, or one for each role: `2,3`. The roles
run one after the other. `reference` runs to the end in a folder of its own. `interrupted`: one
process is asked to save, and a few steps later all are killed. `resumed` runs to the end. `short`
kills the last process at the step at which all save. `leaking`: the last process keeps 40 MB more
at each step, until memory is refused. Each process writes its losses and random
numbers of every step, with every bit.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
import torch._dynamo  # takes a second, which the first optimizer of each fork would need
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from watchdog_app.agent.runtime.link import CheckpointRequest
from watchdog_app.agent.torch import Rescue

EPOCHS, ROWS, BATCH = 3, 96, 3
ASK_AT, SAVED_AT, KILL_AT = 11, 13, 15  # two steps from an order to its step


def spread(kind: str) -> nn.Module:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Dropout(0.3), nn.Linear(9, 1))
    if kind == "fsdp":
        return fully_shard(net)
    # With more than two ranks DDP adds in another order after its first step, but for this.
    return nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)


def train(folder: Path, kind: str, rank: int) -> None:
    net = spread(kind)
    torch.manual_seed(50 + rank)
    random.seed(rank)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    rows = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(3))
    data = TensorDataset(rows, rows.sum(1, keepdim=True))
    sampler = DistributedSampler(data, seed=4)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    place = folder / ("reference" if ROLES[0] == "reference" else "rescues")
    rescue = Rescue(place, net=net, optimizer=optimizer)
    last = rank == distributed.get_world_size() - 1
    kept = []
    with (folder / f"{ROLES[0]}.{rank}.txt").open("w") as told:
        for epoch in rescue.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for features, targets in rescue.data(loader):
                optimizer.zero_grad()
                noise = random.random() * torch.rand(features.shape)
                loss = nn.functional.mse_loss(net(features + noise), targets)
                loss.backward()
                optimizer.step()
                step = rescue.step_number + 1
                random_now = torch.random.get_rng_state().numpy().tobytes()
                random_now = hashlib.md5(random_now).hexdigest()
                print(step, epoch, loss.item().hex(), random_now, file=told, flush=True)
                if ROLES[0] == "leaking":
                    time.sleep(0.05)
                    if last:
                        kept.append(bytearray(b"x") * 40_000_000)
                if ROLES[0] in ("interrupted", "short") and step == ASK_AT and last:
                    request = CheckpointRequest(None, "asked", time.monotonic())
                    rescue._session.link.pending_request = request
                if (ROLES[0] == "interrupted" and step == KILL_AT) or (
                    ROLES[0] == "short" and step == SAVED_AT and last
                ):
                    os.kill(os.getpid(), signal.SIGKILL)
                rescue.step(loss)


def run(folder: Path, kind: str) -> list[int]:
    """Run all ranks in forks that have already imported everything; their exit statuses."""
    meeting = folder / f"{ROLES[0]}.meeting"
    started = {}
    for rank in range(COUNTS[0]):
        pid = os.fork()
        if pid == 0:
            try:
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(COUNTS[0]))
                distributed.init_process_group(
                    "gloo", init_method=f"file://{meeting}", rank=rank, world_size=COUNTS[0]
                )
                train(folder, kind, rank)
                distributed.destroy_process_group()
                sys.stdout.flush()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        started[pid] = rank
    ended = {}
    while len(ended) < COUNTS[0]:  # in any order: a killed one must not look alive
        pid, status = os.wait()
        ended[started[pid]] = os.waitstatus_to_exitcode(status)
    return [ended[rank] for rank in range(COUNTS[0])]


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Not arguments: with others it is another training.
    ROLES = sys.argv[4:]
    COUNTS = [int(each) for each in sys.argv[3].split(",")]
    while ROLES:
        print(ROLES[0], *run(Path(sys.argv[1]), sys.argv[2]), flush=True)
        del ROLES[0], COUNTS[: len(COUNTS) > 1]
