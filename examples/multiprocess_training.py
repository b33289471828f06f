"""
A training whose data workers grow, each separately, until the memory is full.

    python examples/multiprocess_training.py

The bug: a dataset that caches every item that it has read. Each worker of the DataLoader is a
process with its own cache, so two workers hold everything twice.
"""

from __future__ import annotations

import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = ""


def train(workers: int) -> None:
    import time

    import torch

    from watchdog_app.agent.torch import Rescue

    class Pictures(torch.utils.data.Dataset):
        def __init__(self) -> None:
            self.cache = {}

        def __len__(self) -> int:
            return 4096

        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            generator = torch.Generator().manual_seed(index)
            picture = torch.randn(3, 64, 64, generator=generator)
            if workers:
                self.cache[index] = [picture, torch.clone(picture)]  # the bug: never freed
            return picture.mean((1, 2)), picture.std()

    torch.manual_seed(1)
    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(
        Pictures(), batch_size=32, shuffle=True, num_workers=workers,
        persistent_workers=bool(workers),
    )  # fmt: skip
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 256), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(256, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    rescue = Rescue("rescues", model=model, optimizer=optimizer)
    # printed if the rescue was saved after the last step of an epoch
    loss = torch.tensor(float("nan"))
    for epoch in rescue.epochs(2):
        for means, deviation in rescue.data(loader):
            loss = torch.nn.functional.mse_loss(model(means).squeeze(1), deviation)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rescue.step(loss=loss)
            if rescue.step_number == 5:
                print("READY", flush=True)  # the sandbox now limits the memory
            if workers:
                time.sleep(0.1)
        print(f"epoch {epoch + 1} of 2: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    if "--train" in sys.argv:
        train(0 if "EXAMPLE_FIXED" in os.environ else 2)
    else:
        from situation import play

        sys.exit(
            play(
                __file__,
                framework="torch",
                room_mib=350,
                gone_wrong="Two workers of a DataLoader keep every picture that they read.",
                advice_followed="No workers and no cache; the same command again.",
            )
        )
