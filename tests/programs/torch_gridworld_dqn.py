"""Deep Q-learning in an own grid world, with a target network and a replay buffer."""

import random
from collections import deque

import numpy as np
import torch
from torch import nn


class Grid:
    def __init__(self, n=4):
        self.n = n

    def reset(self):
        self.at = [0, 0]
        return self._state()

    def step(self, action):
        axis, move = divmod(action, 2)
        self.at[axis] = min(self.n - 1, max(0, self.at[axis] + (1 if move else -1)))
        done = self.at == [self.n - 1, self.n - 1]
        return self._state(), 1.0 if done else -0.05, done

    def _state(self):
        state = np.zeros(self.n * self.n, dtype=np.float32)
        state[self.at[0] * self.n + self.at[1]] = 1
        return state


random.seed(0)
torch.manual_seed(0)
env, buffer = Grid(), deque(maxlen=500)
q, target = (nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)) for _ in range(2))
target.load_state_dict(q.state_dict())
optimizer = torch.optim.Adam(q.parameters(), lr=1e-2)
epsilon, total_steps = 1.0, 0
for episode in range(14):
    state, done, length = env.reset(), False, 0
    while not done and length < 12:
        if random.random() < epsilon:
            action = random.randrange(4)
        else:
            action = int(q(torch.from_numpy(state)).argmax())
        next_state, reward, done = env.step(action)
        buffer.append((state, action, reward, next_state, done))
        state, length, total_steps = next_state, length + 1, total_steps + 1
        if len(buffer) >= 16:
            s, a, r, n, d = zip(*random.sample(buffer, 16))
            s, n = torch.tensor(np.array(s)), torch.tensor(np.array(n))
            with torch.no_grad():
                aim = torch.tensor(r) + 0.95 * target(n).max(1).values * (
                    1 - torch.tensor(d).float()
                )
            value = q(s).gather(1, torch.tensor(a)[:, None])[:, 0]
            loss = nn.functional.smooth_l1_loss(value, aim)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if total_steps % 20 == 0:
                target.load_state_dict(q.state_dict())
    epsilon = max(0.1, epsilon * 0.95)
torch.save(q.state_dict(), "q.pt")
