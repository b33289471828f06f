"""A trainer class that holds the model, the optimizer and the data."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, train_data, optimizer, save_path):
        self.model = model
        self.train_data = train_data
        self.optimizer = optimizer
        self.save_path = save_path
        self.epochs_run = 0

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(source), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def _run_epoch(self, epoch):
        for source, targets in self.train_data:
            loss = self._run_batch(source, targets)
        print(f"epoch {epoch} steps {len(self.train_data)} loss {loss:.4f}")

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self._run_epoch(epoch)
        torch.save(self.model.state_dict(), self.save_path)


def main():
    torch.manual_seed(18)
    data = TensorDataset(torch.rand(96, 10), torch.randint(4, (96,)))
    model = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    trainer = Trainer(model, DataLoader(data, batch_size=8, shuffle=True), optimizer, "trainer.pt")
    trainer.train(5)


if __name__ == "__main__":
    main()
