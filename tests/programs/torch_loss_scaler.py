"""A module that holds its optimizer, and a scaler object whose call makes the step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, width), nn.GELU(), nn.Dropout(0.1))
        self.decoder = nn.Linear(width, 12)
        self.optim = torch.optim.AdamW(self.parameters(), lr=1e-2, betas=(0.9, 0.95))

    def forward(self, samples):
        return self.decoder(self.encoder(samples))


class NativeScaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=9)

    def __call__(self, loss, optimizer, parameters, clip_grad=1.0):
        self._scaler.scale(loss).backward()
        self._scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(parameters, clip_grad)
        self._scaler.step(optimizer)
        self._scaler.update()
        return norm


def train_one_epoch(net, loader, loss_scaler, epoch):
    net.train()
    for step, (samples,) in enumerate(loader):
        net.optim.zero_grad()
        loss = nn.functional.mse_loss(net(samples), samples)
        loss_scaler(loss, net.optim, parameters=net.parameters())
    print(f"epoch {epoch} steps {step + 1} loss {loss.item():.4f}")


def main():
    torch.manual_seed(21)
    loader = DataLoader(TensorDataset(torch.randn(96, 12)), batch_size=8, shuffle=True)
    model, scaler = Autoencoder(16), NativeScaler()
    for epoch in range(5):
        train_one_epoch(model, loader, scaler, epoch)
    scale = torch.tensor(scaler._scaler.get_scale())
    torch.save({**model.state_dict(), "scale": scale}, "loss_scaler.pt")


if __name__ == "__main__":
    main()
