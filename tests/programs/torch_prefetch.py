"""Batches fetched one ahead, as for copies to a device that overlap with the step."""

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(14)
loader = DataLoader(torch.randn(96, 6), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(5):
    fetcher = iter(loader)
    batch = next(fetcher, None)
    while batch is not None:
        output = model(batch)
        following = next(fetcher, None)
        loss = nn.functional.mse_loss(output, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch = following
    print(f"epoch {epoch} loss {loss.item():.4f}")
torch.save(model.state_dict(), "prefetch.pt")
