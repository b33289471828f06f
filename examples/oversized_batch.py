"""
A batch that is larger than the memory: the step fails, and no work is lost.

    python examples/oversized_batch.py

The bug: after the first epoch the program raises the batch size to make the training faster.
"""

from __future__ import annotations

import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = ""


def train(on_oom: str) -> None:
    import torch

    from watchdog_app.agent.torch import Rescue

    torch.manual_seed(1)
    pictures = torch.randn(1024, 3, 64, 64)
    data = torch.utils.data.TensorDataset(pictures, pictures.mean((1, 2, 3)))
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def loss_of(images, targets):
        return torch.nn.functional.mse_loss(model(images).squeeze(1), targets)

    loss = float("nan")  # printed if the rescue was saved after the last step of an epoch
    with Rescue("rescues", on_oom=on_oom, model=model, optimizer=optimizer) as rescue:
        for epoch in rescue.epochs(3):
            batch_size = 32 if epoch == 0 else 1024
            loader = torch.utils.data.DataLoader(data, batch_size, shuffle=True)
            for batch in rescue.data(loader):
                optimizer.zero_grad()
                loss = rescue.backward(batch, loss_of)
                optimizer.step()
                rescue.step(loss=loss)
            print(f"epoch {epoch + 1}, batches of {batch_size}: loss {loss:.6f}", flush=True)
            if epoch == 0:
                print("READY", flush=True)  # the sandbox now limits the memory


if __name__ == "__main__":
    if "--train" in sys.argv:
        train("shrink" if "EXAMPLE_FIXED" in os.environ else "save")
    else:
        from situation import play

        sys.exit(
            play(
                __file__,
                framework="torch",
                room_mib=1000,
                soft=True,
                gone_wrong="Batches of 1024 pictures do not fit into what is left.",
                advice_followed='Rescue(..., on_oom="shrink"); the same command again.',
            )
        )
