"""A policy gradient over episodes that are counted without an end."""

from itertools import count

import torch
from torch import nn, optim
from torch.distributions import Categorical

torch.manual_seed(7)
policy = nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 2))
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
running_reward = 10.0


def play():
    state, log_probs, rewards = torch.randn(3), [], []
    for _ in range(8):
        chosen = Categorical(logits=policy(state))
        action = chosen.sample()
        log_probs.append(chosen.log_prob(action))
        rewards.append(1.0 if (state.sum() > 0) == bool(action) else 0.0)
        state = torch.randn(3)
    return log_probs, rewards


for i_episode in count(1):
    log_probs, rewards = play()
    running_reward = 0.05 * sum(rewards) + 0.95 * running_reward
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    loss = torch.stack([-p * r for p, r in zip(log_probs, returns - returns.mean(), strict=True)])
    optimizer.zero_grad()
    loss.sum().backward()
    optimizer.step()
    if i_episode % 10 == 0:
        print(f"episode {i_episode} average reward {running_reward:.2f}")
    if i_episode == 60:
        break
torch.save(policy.state_dict(), "policy.pt")
