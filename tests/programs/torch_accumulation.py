"""Gradients accumulated over four batches, a learning rate that changes with each step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)
x = torch.randn(160, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Dropout(0.1), nn.Linear(24, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
accumulation_steps, num_epochs = 4, 6
total = num_epochs * len(loader) // accumulation_steps
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=total)
global_step = 0
for epoch in range(num_epochs):
    for step, (inputs, labels) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), labels) / accumulation_steps
        loss.backward()
        if (step + 1) % accumulation_steps == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            global_step += 1
            if global_step % 10 == 0:
                print(f"epoch {epoch} step {global_step} loss {loss.item():.4f}")
torch.save(model.state_dict(), "accumulated.pt")
