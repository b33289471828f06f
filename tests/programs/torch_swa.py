"""Stochastic weight averaging of a small network, with a learning rate that falls on a plateau."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
y = (x.sum(1, keepdim=True) > 0).float()
data = TensorDataset(x, y)
loader = DataLoader(data, batch_size=16, sampler=RandomSampler(data), num_workers=0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
swa_model = AveragedModel(model)
swa_scheduler = SWALR(optimizer, swa_lr=0.05)
swa_start = 4
criterion = nn.BCEWithLogitsLoss()
for epoch in range(8):
    model.train()
    running = 0.0
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        running += loss.item()
    if epoch >= swa_start:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        plateau.step(running / len(loader))
    print(f"epoch {epoch}: {running / len(loader):.4f}")
update_bn(loader, swa_model)
torch.save(swa_model.state_dict(), "swa.pt")
