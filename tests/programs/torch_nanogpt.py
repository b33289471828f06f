"""A small transformer: `while True`, `iter_num`, micro steps, the next batch drawn ahead."""

import math

import torch
from torch import nn

torch.manual_seed(9)
data = torch.randint(16, (400,))
block_size, batch_size, grad_accum, learning_rate, max_iters = 8, 4, 2, 1e-2, 60


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.head = nn.Embedding(16, 16), nn.Linear(16, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)

    def forward(self, idx, targets):
        logits = self.head(self.block(self.wte(idx)))
        return nn.functional.cross_entropy(logits.view(-1, 16), targets)


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    rows = torch.stack([data[i : i + block_size + 1] for i in ix])
    return rows[:, :-1], rows[:, 1:].reshape(-1)


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
iter_num = 0
X, Y = get_batch()
while True:
    for param_group in optimizer.param_groups:
        param_group["lr"] = learning_rate * (1.0 + math.cos(math.pi * iter_num / max_iters)) / 2
    for _micro_step in range(grad_accum):
        loss = model(X, Y) / grad_accum
        X, Y = get_batch()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break
torch.save(model.state_dict(), "ckpt.pt")
