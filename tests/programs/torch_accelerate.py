"""A loop through `accelerate`, with random data; the gradients are accumulated."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Noisy(TensorDataset):
    def __getitem__(self, index):
        inputs, targets = super().__getitem__(index)
        return inputs + 0.1 * torch.randn(6), targets


torch.manual_seed(19)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
x = torch.randn(128, 6)
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train_dataloader = DataLoader(Noisy(x, x.mean(1, keepdim=True)), 8, shuffle=True)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
model, optimizer, train_dataloader, scheduler = accelerator.prepare(
    model, optimizer, train_dataloader, scheduler
)
for epoch in range(5):
    model.train()
    for batch in train_dataloader:
        inputs, targets = batch
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    accelerator.print(f"epoch {epoch} loss {loss.item():.4f}")
torch.save(accelerator.unwrap_model(model).state_dict(), "accelerated.pt")
