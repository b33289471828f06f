"""A bigram model: a fixed number of iterations, batches drawn at the top of each."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(10)
data = torch.randint(16, (300,))
block_size, batch_size, max_iters, eval_interval = 8, 8, 80, 20


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + block_size + 1] for i in ix])
    return x, y


@torch.no_grad()
def estimate_loss(model):
    model.eval()
    losses = [F.cross_entropy(model(x).view(-1, 16), y.view(-1)) for x, y in [get_batch()]]
    model.train()
    return sum(losses) / len(losses)


model = nn.Sequential(nn.Embedding(16, 24), nn.Dropout(0.1), nn.Linear(24, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for iter in range(max_iters):
    if iter % eval_interval == 0:
        print(f"step {iter}: loss {estimate_loss(model):.4f}")
    xb, yb = get_batch()
    loss = F.cross_entropy(model(xb).view(-1, 16), yb.view(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "bigram.pt")
