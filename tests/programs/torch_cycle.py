"""A loop over steps that takes batches from an endless iterator over a loader."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(13)
x = torch.randn(96, 5)
loader = DataLoader(TensorDataset(x, x.prod(1, keepdim=True)), batch_size=8, shuffle=True)


def cycle(dl):
    while True:
        yield from dl


model = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 1))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
batches = cycle(loader)
for step in range(60):
    features, target = next(batches)
    loss = nn.functional.huber_loss(model(features), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
torch.save(model.state_dict(), "cycle.pt")
