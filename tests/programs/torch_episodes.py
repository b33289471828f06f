"""Deep Q learning in episodes: after each one a few steps, once the memory is large enough."""

import random

import torch
from torch import nn

random.seed(4)
torch.manual_seed(4)


class Memory:
    def __init__(self):
        self.items = []

    def put(self, item):
        self.items.append(item)

    def size(self):
        return len(self.items)

    def sample(self, n):
        states, rewards = zip(*random.sample(self.items, n), strict=True)
        return torch.tensor(states), torch.tensor(rewards)


def train(q, memory, optimizer):
    for _i in range(4):
        states, rewards = memory.sample(8)
        loss = nn.functional.smooth_l1_loss(q(states).squeeze(1), rewards)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    q = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-2)
    memory = Memory()
    for n_epi in range(29):
        epsilon = max(0.01, 0.08 - 0.01 * n_epi / 20)
        for _t in range(6):
            state = [random.random() for _ in range(3)]
            memory.put((state, sum(state) * (random.random() > epsilon)))
        if memory.size() > 40:
            train(q, memory, optimizer)
    torch.save(q.state_dict(), "episodes.pt")


main()
