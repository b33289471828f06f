"""A regression on data that is drawn anew in each epoch, and validated after it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def draw(rows):
    x = torch.randn(rows, 4)
    return TensorDataset(x, x.sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1))


def main():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    held_out = DataLoader(draw(16), batch_size=8)
    for epoch in range(9):
        model.train()
        loader = DataLoader(draw(64), batch_size=8, shuffle=True)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            error = sum(nn.functional.mse_loss(model(x), y).item() for x, y in held_out)
        print(f"epoch {epoch}: {error:.3f}")
    torch.save(model.state_dict(), "fresh.pt")


main()
