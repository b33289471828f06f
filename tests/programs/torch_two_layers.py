"""Two layers written with tensors alone, on all the data at once, with momentum."""

import torch

torch.manual_seed(18)
x, y = torch.randn(64, 20), torch.randn(64, 5)
w1 = (0.1 * torch.randn(20, 16)).requires_grad_()
w2 = (0.1 * torch.randn(16, 5)).requires_grad_()
v1, v2 = torch.zeros(20, 16), torch.zeros(16, 5)
learning_rate = 1e-3
for t in range(90):
    y_pred = x.mm(w1).clamp(min=0).mm(w2)
    loss = (y_pred - y).pow(2).sum()
    if t % 30 == 29:
        print(t, loss.item())
    loss.backward()
    with torch.no_grad():
        v1.mul_(0.9).add_(w1.grad)
        v2.mul_(0.9).add_(w2.grad)
        w1 -= learning_rate * v1
        w2 -= learning_rate * v2
        w1.grad = None
        w2.grad = None
torch.save({"w1": w1.detach(), "w2": w2.detach()}, "layers.pt")
