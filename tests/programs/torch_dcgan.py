"""A generative adversarial network: two networks and two optimizers in one loop."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader

torch.manual_seed(4)
nz = 6
netG = nn.Sequential(nn.Linear(nz, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10), nn.Tanh())
netD = nn.Sequential(nn.Linear(10, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())
criterion = nn.BCELoss()
fixed_noise = torch.randn(8, nz)
optimizerD = optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
dataloader = DataLoader(torch.rand(96, 10) * 2 - 1, batch_size=12, shuffle=True)
for epoch in range(6):
    for i, data in enumerate(dataloader, 0):
        netD.zero_grad()
        label = torch.ones(data.size(0), 1)
        errD_real = criterion(netD(data), label)
        errD_real.backward()
        fake = netG(torch.randn(data.size(0), nz))
        label.fill_(0)
        errD_fake = criterion(netD(fake.detach()), label)
        errD_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        label.fill_(1)
        errG = criterion(netD(fake), label)
        errG.backward()
        optimizerG.step()
        if i % 4 == 0:
            print(f"[{epoch}][{i}] D {errD_real + errD_fake:.4f} G {errG:.4f}")
torch.save({"G": netG.state_dict(), "D": netD.state_dict()}, "dcgan.pt")
