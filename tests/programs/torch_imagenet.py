"""A residual classifier: meters, a start epoch, a warm-up, a validation and the best accuracy so far."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n=1):
        self.sum, self.count = self.sum + value * n, self.count + n

    def log_every(self, loader, print_freq):
        for i, batch in enumerate(loader):
            yield batch
            if i % print_freq == 0:
                print(f"[{i}/{len(loader)}] loss {self.sum / max(self.count, 1):.4f}")


def train(train_loader, model, criterion, optimizer, epoch):
    losses = AverageMeter()
    model.train()
    for i, (images, target) in enumerate(losses.log_every(train_loader, 5)):
        if epoch == 0:  # warm-up
            optimizer.param_groups[0]["lr"] = 0.1 * (i + 1) / len(train_loader)
        loss = criterion(model(images), target)
        losses.update(loss.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(2)
start_epoch, epochs, best_acc1 = 0, 4, 0.0
block = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
model = nn.Sequential(block, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 5))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
data = TensorDataset(torch.randn(120, 3, 8, 8), torch.randint(5, (120,)))
train_loader = DataLoader(data, batch_size=12, shuffle=True)
val_loader = DataLoader(data, batch_size=40)
for epoch in range(start_epoch, epochs):
    train(train_loader, model, criterion, optimizer, epoch)
    model.eval()
    with torch.no_grad():
        acc1 = sum(float((model(x).argmax(1) == y).sum()) for x, y in val_loader) / 120
    best_acc1 = max(acc1, best_acc1)
    scheduler.step()
torch.save(model.state_dict(), "checkpoint.pt")
