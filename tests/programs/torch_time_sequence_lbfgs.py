"""Sine waves learned with LBFGS: one step evaluates a closure many times."""

import torch
from torch import nn, optim

torch.manual_seed(6)
time = torch.arange(0, 24).float()
waves = torch.sin((time + torch.randint(-20, 20, (8, 1))) / 4).double()
inputs, targets = waves[:, :-1], waves[:, 1:]


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 6, batch_first=True)
        self.linear = nn.Linear(6, 1)

    def forward(self, values):
        return self.linear(self.lstm(values.unsqueeze(-1))[0]).squeeze(-1)


seq = Sequence().double()
criterion = nn.MSELoss()
optimizer = optim.LBFGS(seq.parameters(), lr=0.4, max_iter=4)
for i in range(30):

    def closure():
        optimizer.zero_grad()
        loss = criterion(seq(inputs), targets)
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    print(f"STEP {i} loss {loss.item():.6f}")
torch.save(seq.state_dict(), "sequence.pt")
