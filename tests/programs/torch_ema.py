"""An exponential moving average of the weights beside the trained ones, and a progress bar."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

torch.manual_seed(12)
images = torch.rand(120, 16)
train_dl = DataLoader(TensorDataset(images), batch_size=12, shuffle=True)
net = nn.Sequential(nn.Linear(17, 32), nn.SiLU(), nn.Linear(32, 16))
ema_net = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.95))
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
losses = []
for _epoch in range(6):
    for (x0,) in tqdm(train_dl):
        t = torch.rand(len(x0), 1)
        noise = torch.randn_like(x0)
        pred = net(torch.cat([x0 * (1 - t) + noise * t, t], 1))
        loss = nn.functional.mse_loss(pred, noise)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema_net.update_parameters(net)
        losses.append(loss.item())
torch.save(ema_net.module.state_dict(), "ema.pt")
