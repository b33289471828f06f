"""A regression whose parameters are tensors that the loop updates itself."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(15)
x = torch.randn(160, 4)
y = x @ torch.tensor([[2.0], [-1.0], [0.5], [3.0]]) + 0.1 * torch.randn(160, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True)
w = torch.randn(4, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
lr = 0.02
for epoch in range(5):
    for xb, yb in loader:
        loss = ((xb @ w + b - yb) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            w -= lr * w.grad
            b -= lr * b.grad
            w.grad.zero_()
            b.grad.zero_()
    print(f"epoch {epoch + 1} loss {loss.item():.5f}")
torch.save({"w": w.detach(), "b": b.detach()}, "regression.pt")
