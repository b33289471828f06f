"""
A training in PyTorch for a batch job; it may keep memory that it does not need.

    python train.py LOSSES [KEPT_MIB] [SECONDS]

LOSSES is a file that gets one line for each step. The training keeps KEPT_MIB of every step and
waits for SECONDS in it. With a Rescue it resumes by itself when the job starts again.
"""

import hashlib
import sys
import time

import torch

from watchdog_app.agent.torch import Rescue

STEPS = 400

torch.manual_seed(3)
losses, kept_mib, wait_s = sys.argv[1], int(sys.argv[2:3][0]), float(sys.argv[3:4][0])
features = torch.randn(1600, 16)
targets = features[:, :4].sum(dim=1, keepdim=True)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(features, targets), batch_size=32, shuffle=True
)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
rescue = Rescue("rescues", model=model, optimizer=optimizer)
kept = []

for _ in rescue.epochs(STEPS * 32 // len(features)):
    for inputs, wanted in rescue.data(loader):
        kept.append(b"x" * (kept_mib << 20))
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        with open(losses, "a") as file:
            file.write(f"{rescue.step_number + 1} {loss.item().hex()}\n")
        rescue.step(loss=loss)
        time.sleep(wait_s)

weights = b"".join(each.numpy().tobytes() for each in model.state_dict().values())
with open(losses, "a") as file:
    file.write(f"weights {hashlib.sha256(weights).hexdigest()}\n")
