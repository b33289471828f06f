"""Deep Q learning: a replay buffer made by hand and a target network."""

import copy
import random
from collections import deque

import torch
from torch import nn

random.seed(8)
torch.manual_seed(8)
policy_net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
target_net = copy.deepcopy(policy_net)
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-3, amsgrad=True)
memory = deque(maxlen=200)
steps_done = 0


def select_action(state):
    global steps_done
    steps_done += 1
    explores = random.random() < max(0.05, 0.9 - steps_done / 100)
    return random.randrange(2) if explores else policy_net(state).argmax().item()


def optimize_model():
    batch = random.sample(list(memory), 16)
    states, actions, rewards, following = (torch.stack(each) for each in zip(*batch, strict=True))
    expected = rewards + 0.9 * target_net(following).max(1, keepdim=True).values.detach()
    optimizer.zero_grad()
    nn.functional.smooth_l1_loss(policy_net(states).gather(1, actions), expected).backward()
    optimizer.step()
    for mean, now in zip(target_net.parameters(), policy_net.parameters(), strict=True):
        mean.data.lerp_(now.data, 0.05)


for _i_episode in range(12):
    following = torch.randn(4)
    for _t in range(8):
        state, following = following, torch.randn(4)
        action = select_action(state)
        memory.append((state, torch.tensor([action]), following[:1], following))
        if len(memory) >= 16:
            optimize_model()
torch.save(policy_net.state_dict(), "dqn.pt")
