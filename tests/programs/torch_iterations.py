"""Training by iterations: a fixed batch for samples, and a generator that steps every other time."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(35)
start_iters, num_iters, n_critic = 0, 60, 2
generator = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
loader = DataLoader(TensorDataset(torch.randn(72, 8)), batch_size=8, shuffle=True)
g_optimizer = torch.optim.Adam(generator.parameters(), 1e-3)
d_optimizer = torch.optim.Adam(critic.parameters(), 1e-3)
data_iter = iter(loader)
(x_fixed,) = next(data_iter)
noise = torch.randn(len(x_fixed), 4)
g_lr = 1e-3

for i in range(start_iters, num_iters):
    try:
        (real,) = next(data_iter)
    except StopIteration:
        data_iter = iter(loader)
        (real,) = next(data_iter)
    fake = generator(torch.randn(len(real), 4))
    d_loss = critic(fake.detach()).mean() - critic(real[torch.randperm(len(real))]).mean()
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()
    if (i + 1) % n_critic == 0:
        g_loss = -critic(generator(torch.randn(len(real), 4))).mean()
        g_optimizer.zero_grad()
        g_loss.backward()
        g_optimizer.step()
    if (i + 1) % 10 == 0:
        print(f"Iteration [{i + 1}/{num_iters}] {d_loss.item():.4f} {generator(noise).mean():.4f}")
    if (i + 1) % 4 == 0:
        g_lr -= 1e-5
        for group in g_optimizer.param_groups:
            group["lr"] = g_lr
torch.save({"g": generator.state_dict(), "d": critic.state_dict()}, "iterations.pt")
