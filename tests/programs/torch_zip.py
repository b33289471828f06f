"""Two image sets of different lengths, zipped in each epoch, each with its own augmentation."""

import itertools
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, count):
        self.images = torch.randn(count, 12)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        image = image.flip(0) if random.random() < 0.5 else image
        return image + 0.05 * torch.randn(12)


random.seed(8), torch.manual_seed(8)
photos = DataLoader(Images(52), batch_size=4, shuffle=True)
paintings = DataLoader(Images(66), batch_size=6, shuffle=True)
to_painting, to_photo = nn.Linear(12, 12), nn.Linear(12, 12)
judge = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer_G = torch.optim.Adam(
    itertools.chain(to_painting.parameters(), to_photo.parameters()), lr=2e-3
)
optimizer_D = torch.optim.Adam(judge.parameters(), lr=2e-3)
history = []
for epoch in range(5):
    for i, (photo, painting) in enumerate(zip(photos, paintings)):
        fake = to_painting(photo)
        loss_G = (judge(fake) - 1).square().mean() + (to_photo(fake) - photo).abs().mean()
        optimizer_G.zero_grad()
        loss_G.backward()
        optimizer_G.step()
        loss_D = (judge(painting) - 1).square().mean() + judge(fake.detach()).square().mean()
        optimizer_D.zero_grad()
        loss_D.backward()
        optimizer_D.step()
        if i % 5 == 0:
            history.append(loss_G.item() + i)
torch.save({**to_painting.state_dict(), "history": torch.tensor(history)}, "zip.pt")
