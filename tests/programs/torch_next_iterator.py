"""A Trainer class that reads its loader by `next`, counts `self.iter_num` and calls back."""

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset


class Trainer:
    def __init__(self, model, train_dataset, max_iters):
        self.model, self.train_dataset, self.max_iters = model, train_dataset, max_iters
        self.optimizer = None
        self.iter_num = 0
        self.callback = None

    def run(self):
        model = self.model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        sampler = RandomSampler(self.train_dataset, replacement=True, num_samples=10000)
        train_loader = DataLoader(self.train_dataset, sampler=sampler, batch_size=8)
        model.train()
        self.iter_num = 0
        data_iter = iter(train_loader)
        while True:
            try:
                batch = next(data_iter)
            except StopIteration:
                data_iter = iter(train_loader)
                batch = next(data_iter)
            x, y = batch
            loss = nn.functional.cross_entropy(model(x), y)
            model.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.callback(self)
            self.iter_num += 1
            if self.iter_num >= self.max_iters:
                break


torch.manual_seed(33)
rows = torch.randn(96, 6)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
trainer = Trainer(model, TensorDataset(rows, rows.abs().argmax(1) % 3), max_iters=60)
trainer.callback = lambda trainer: trainer.iter_num % 20 or print("iter", trainer.iter_num)
trainer.run()
torch.save(model.state_dict(), "next.pt")
