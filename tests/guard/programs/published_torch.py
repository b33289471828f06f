"""A PyTorch loop that waits at given places: FOLDER STEPS [place=step ...]."""

from __future__ import annotations

import sys
import time

import torch
from stages import Stages, checksum

from watchdog_app.agent.torch import Rescue

torch.manual_seed(1)
torch.set_num_threads(1)
folder, steps = sys.argv[1], int(sys.argv[2])
stages = Stages(word for word in sys.argv[3:] if "=" in word)
logged = "log" in sys.argv

model = torch.nn.Sequential(
    torch.nn.Linear(32, 256),
    torch.nn.BatchNorm1d(256),
    torch.nn.ReLU(),
    torch.nn.Dropout(0.1),
    torch.nn.Linear(256, 32),
)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=100_000)
history = {"loss": []}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        stages.stand("data", rescue.step_number)
        if logged:  # gives the test time to stop it
            time.sleep(0.0003)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(32, generator=generator), torch.randn(32, generator=generator)


loader = torch.utils.data.DataLoader(Data(), batch_size=16, shuffle=True)
rescue = Rescue(folder, model=model, optimizer=optimizer, scheduler=scheduler, history=history)
model[4].register_forward_pre_hook(lambda *_: stages.stand("forward", rescue.step_number))
optimizer.register_step_post_hook(lambda *_: stages.stand("optimizer", rescue.step_number))
for _epoch in rescue.epochs(1000):
    for features, targets in rescue.data(loader):
        optimizer.zero_grad()
        loss = ((model(features) - targets) ** 2).mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        history["loss"].append(float(loss.detach()))
        if logged:
            print("step", rescue.step_number + 1, checksum(rescue._state.capture().entries))
            sys.stdout.flush()
        stages.save_too(rescue, rescue.step_number + 1)
        rescue.step(loss)
        stages.stand("boundary", rescue.step_number)
        stages.stand("gil", rescue.step_number)
        if rescue.step_number == steps:
            values = [*model.state_dict().values(), torch.get_rng_state()]
            digest = [float(each.double().sum()) for each in values]
            print("end", repr(digest), repr(history["loss"][-3:]), flush=True)
            sys.exit()
