"""A Wasserstein GAN: the generator steps at every fifth batch, `batches_done` counts them all."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(34)
n_epochs, n_critic, clip_value, latent_dim = 8, 5, 0.05, 4
generator = nn.Sequential(nn.Linear(latent_dim, 16), nn.BatchNorm1d(16), nn.Linear(16, 8))
discriminator = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
dataloader = DataLoader(TensorDataset(torch.randn(80, 8)), batch_size=8, shuffle=True)
optimizer_G = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
optimizer_D = torch.optim.RMSprop(discriminator.parameters(), lr=1e-3)
batches_done = 0
for epoch in range(n_epochs):
    for i, (imgs,) in enumerate(dataloader):
        optimizer_D.zero_grad()
        z = torch.randn(imgs.shape[0], latent_dim)
        fake_imgs = generator(z).detach()
        loss_D = -torch.mean(discriminator(imgs)) + torch.mean(discriminator(fake_imgs))
        loss_D.backward()
        optimizer_D.step()
        for p in discriminator.parameters():
            p.data.clamp_(-clip_value, clip_value)
        if i % n_critic == 0:
            optimizer_G.zero_grad()
            loss_G = -torch.mean(discriminator(generator(z)))
            loss_G.backward()
            optimizer_G.step()
        if batches_done % 10 == 0:
            print(
                f"[Epoch {epoch}/{n_epochs}] [Batch {i}] [D loss: {loss_D.item():.4f}] "
                f"[G loss: {loss_G.item():.4f}]"
            )
        batches_done += 1
torch.save({"g": generator.state_dict(), "d": discriminator.state_dict()}, "wgan.pt")
