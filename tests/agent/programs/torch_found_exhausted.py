"""A PyTorch loop that does not use watchdog and requests too much memory."""

import time

from watchdog_app.agent import hook

hook.switch_on()

import torch  # noqa: E402 - the hook waits for this import


def main():
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters())
    began = time.monotonic()
    while True:
        optimizer.zero_grad()
        rows = torch.rand(4, 8)
        if time.monotonic() - began > 1.5:
            torch.empty(2**50)
        model(rows).mean().backward()
        optimizer.step()
        time.sleep(0.02)


main()
