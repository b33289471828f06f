"""
Programs for `guard_situations.py`: a PyTorch loop that uses memory other than large arrays.

    python bench/guard_programs.py WAY OUT RESCUES

loader-keeps   keeps the batches that its loader's workers pass in shared memory
worker-leaks   a worker's dataset keeps the samples that it made
worker-jumps   one worker allocates 2 GB at once
shm-written    writes a file in /dev/shm that is never freed
shm-mapped     the same, as a mapping whose pages are written
cache          writes and reads a large file all the time; the kernel reclaims its page cache
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

import numpy as np
import torch

from watchdog_app.agent.torch import Rescue

_STEPS = 1200
_MB = 1 << 20


class Samples(torch.utils.data.Dataset):
    """Random samples; a worker's copy of this object leaks or jumps."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.kept: list[torch.Tensor] = []

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.way == "worker-leaks" and index > 80:
            self.kept.append(torch.ones(250_000))
        if self.way == "worker-jumps" and index == 400:
            self.kept.append(torch.ones(500_000_000))
        return torch.randn(32 * 1024)


class Files:
    """The loop's file operations."""

    def __init__(self, way: str, out: str) -> None:
        self.way = way
        self.at = 0
        where = os.path.dirname(out) if way == "cache" else "/dev/shm"
        self.file = tempfile.TemporaryFile(dir=where)  # noqa: SIM115 - to the end
        if way == "shm-mapped":
            self.file.truncate(3 << 30)
            self.mapped = np.memmap(self.file, np.uint8, "r+", shape=(3 << 30,))

    def step(self) -> None:
        if self.way == "shm-mapped":
            self.mapped[self.at : self.at + 4 * _MB] = 1
        elif self.way in ("shm-written", "cache"):
            os.write(self.file.fileno(), b"x" * 8 * _MB)
        self.at += 4 * _MB
        if self.way == "cache" and self.at > 300 * _MB:
            self.at = os.lseek(self.file.fileno(), 0, os.SEEK_SET)
            while os.read(self.file.fileno(), _MB):
                pass
            os.lseek(self.file.fileno(), 0, os.SEEK_SET)


def main() -> None:
    way, out, rescues = sys.argv[1:]
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters())
    workers = 2 if "-" in way and not way.startswith("shm") else 0
    loader = torch.utils.data.DataLoader(Samples(way), 8, num_workers=workers)
    rescue = Rescue(rescues, model=model, optimizer=optimizer)
    files, kept = Files(way, out), []
    with open(out, "a", buffering=1) as diary:
        for _epoch in rescue.epochs(10):
            for batch in rescue.data(loader):
                optimizer.zero_grad()
                model(batch.reshape(-1, 32)).square().mean().backward()
                optimizer.step()
                diary.write(f"{rescue.step_number + 1}\n")
                if way == "loader-keeps":
                    kept.append(batch)
                files.step()
                time.sleep(0.02)
                rescue.step()
                if rescue.step_number >= (200 if way == "cache" else _STEPS):
                    return


if __name__ == "__main__":
    main()
