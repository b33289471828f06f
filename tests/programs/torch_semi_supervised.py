"""A training on two loaders of different lengths, each read by `next` and begun again alone."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __init__(self, count, augment):
        self.data, self.targets = torch.randn(count, 16), torch.randint(3, (count,))
        self.augment = augment

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.augment(self.data[index]), self.targets[index]


def weak(x):
    return x.flip(0) if random.random() < 0.5 else x


class TwoViews:
    def __call__(self, x):
        return weak(x), x + torch.from_numpy(np.random.normal(0, 0.1, x.shape)).float()


def main():
    torch.manual_seed(22), random.seed(22), np.random.seed(22)
    labeled_trainloader = DataLoader(Signals(24, weak), batch_size=4, shuffle=True)
    unlabeled_trainloader = DataLoader(Signals(56, TwoViews()), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
    labeled_iter = iter(labeled_trainloader)
    unlabeled_iter = iter(unlabeled_trainloader)
    losses = []
    for epoch in range(5):
        total = 0.0
        for batch_idx in range(13):
            try:
                inputs_x, targets_x = next(labeled_iter)
            except StopIteration:
                labeled_iter = iter(labeled_trainloader)
                inputs_x, targets_x = next(labeled_iter)
            try:
                (inputs_w, inputs_s), _ = next(unlabeled_iter)
            except StopIteration:
                unlabeled_iter = iter(unlabeled_trainloader)
                (inputs_w, inputs_s), _ = next(unlabeled_iter)
            guess = model(inputs_w).softmax(1).detach()
            loss = F.cross_entropy(model(inputs_x), targets_x) + F.cross_entropy(
                model(inputs_s), guess
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / 13)
    torch.save({**model.state_dict(), "losses": torch.tensor(losses)}, "model.pt")


if __name__ == "__main__":
    main()
