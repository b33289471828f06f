"""An encoder and a decoder, each with its own optimizer; forcing is drawn for each batch."""

import random

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

random.seed(17)
torch.manual_seed(17)


def train_epoch(dataloader, encoder, decoder, encoder_optimizer, decoder_optimizer, criterion):
    total_loss = 0
    for source, target in dataloader:
        encoder_optimizer.zero_grad()
        decoder_optimizer.zero_grad()
        outputs, hidden = encoder(nn.functional.one_hot(source, 12).float())
        forced = target if random.random() < 0.5 else source
        outputs, _ = decoder(nn.functional.one_hot(forced, 12).float(), hidden)
        loss = criterion(outputs.reshape(-1, 12), target.reshape(-1))
        loss.backward()
        encoder_optimizer.step()
        decoder_optimizer.step()
        total_loss += loss.item()
    return total_loss / len(dataloader)


def train(train_dataloader, encoder, decoder, n_epochs, learning_rate=0.01):
    encoder_optimizer = optim.Adam(encoder.parameters(), lr=learning_rate)
    decoder_optimizer = optim.Adam(decoder.parameters(), lr=learning_rate)
    optimizers = encoder_optimizer, decoder_optimizer
    for epoch in range(1, n_epochs + 1):
        loss = train_epoch(train_dataloader, encoder, decoder, *optimizers, nn.CrossEntropyLoss())
        print(f"({epoch} {epoch / n_epochs:.0%}) {loss:.4f}")


pairs = TensorDataset(torch.randint(12, (96, 5)), torch.randint(12, (96, 5)))
train_dataloader = DataLoader(pairs, batch_size=12, shuffle=True)
encoder, decoder = nn.GRU(12, 12, batch_first=True), nn.GRU(12, 12, batch_first=True)
train(train_dataloader, encoder, decoder, 6)
torch.save({"e": encoder.state_dict(), "d": decoder.state_dict()}, "seq2seq.pt")
