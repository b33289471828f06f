"""A language model over own batches: parameters updated by hand, a rate that is divided."""

import torch
from torch import nn

torch.manual_seed(5)
bptt, clip, lr = 8, 0.25, 2.0
train_data, val_data = torch.randint(20, (200, 4)), torch.randint(20, (40, 4))
encoder, rnn, decoder = nn.Embedding(20, 12), nn.LSTM(12, 12), nn.Linear(12, 20)
model = nn.ModuleList([encoder, rnn, decoder])
criterion = nn.CrossEntropyLoss()


def get_batch(source, i):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].reshape(-1)


def evaluate(source):
    with torch.no_grad():
        data, targets = get_batch(source, 0)
        return criterion(decoder(rnn(encoder(data))[0]).view(-1, 20), targets).item()


def train():
    hidden = (torch.zeros(1, 4, 12), torch.zeros(1, 4, 12))
    for _batch, i in enumerate(range(0, train_data.size(0) - 1, bptt)):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        output, hidden = rnn(encoder(data), tuple(each.detach() for each in hidden))
        loss = criterion(decoder(output).view(-1, 20), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)


best_val_loss = None
for _epoch in range(1, 4 + 1):
    train()
    val_loss = evaluate(val_data)
    if not best_val_loss or val_loss < best_val_loss:
        best_val_loss = val_loss
    else:
        lr /= 4.0
torch.save(model.state_dict(), "model.pt")
