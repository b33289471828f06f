"""A trainer with early stopping, a best state, a step counter and an own rate."""

import copy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
x = torch.randn(96, 5)
train_loader = DataLoader(TensorDataset(x, x.prod(1, keepdim=True)), batch_size=8, shuffle=True)
vx = torch.randn(32, 5)


class EarlyStopping:
    def __init__(self, patience=3):
        self.patience, self.counter, self.best_score, self.early_stop = patience, 0, None, False

    def __call__(self, val_loss):
        score = -val_loss
        if self.best_score is None:
            self.best_score = score
        elif score < self.best_score:
            self.counter += 1
            if self.counter >= self.patience:
                self.early_stop = True
        else:
            self.best_score = score
            self.counter = 0


class Trainer:
    def __init__(self, model, lr):
        self.model, self.lr = model, lr
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.global_step = 0
        self.losses = []

    def adjust(self):
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr / (1 + 0.05 * self.global_step)

    def train_epoch(self):
        self.model.train()
        for xb, yb in train_loader:
            self.adjust()
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(xb), yb)
            loss.backward()
            self.optimizer.step()
            self.global_step += 1
            self.losses.append(loss.item())

    def fit(self, epochs):
        stopper = EarlyStopping()
        best = float("inf")
        best_state = None
        for epoch in range(epochs):
            self.train_epoch()
            self.model.eval()
            with torch.no_grad():
                val = nn.functional.mse_loss(self.model(vx), vx.prod(1, keepdim=True)).item()
            if val < best:
                best = val
                best_state = copy.deepcopy(self.model.state_dict())
            else:
                self.lr *= 0.5
            stopper(val)
            if stopper.early_stop:
                break
        if best_state is not None:
            self.model.load_state_dict(best_state)


trainer = Trainer(
    nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1)), 0.1
)
trainer.fit(6)
torch.save(trainer.model.state_dict() | {"l": torch.tensor(trainer.losses)}, "early_stopping.pt")
