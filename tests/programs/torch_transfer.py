"""Transfer learning: frozen features, phases of training and validation, the best weights."""

import copy

import torch
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(16)
sets = {x: TensorDataset(torch.randn(64, 8), torch.randint(2, (64,))) for x in ("train", "val")}
dataloaders = {x: DataLoader(sets[x], batch_size=8, shuffle=True) for x in ("train", "val")}


def train_model(model, criterion, optimizer, scheduler, num_epochs=5):
    best_model_wts, best_acc = copy.deepcopy(model.state_dict()), 0.0
    for epoch in range(num_epochs):
        for phase in ["train", "val"]:
            model.train(phase == "train")
            running_corrects = 0
            for inputs, labels in dataloaders[phase]:
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    loss = criterion(outputs, labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                running_corrects += (outputs.argmax(1) == labels).sum().item()
            if phase == "train":
                scheduler.step()
            elif running_corrects / 64 > best_acc:
                best_acc = running_corrects / 64
                best_model_wts = copy.deepcopy(model.state_dict())
    model.load_state_dict(best_model_wts)


base = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU()).requires_grad_(False)
model_ft = nn.Sequential(base, nn.Linear(16, 2))
optimizer_ft = optim.SGD(model_ft[1].parameters(), lr=0.01, momentum=0.9)
decay = lr_scheduler.StepLR(optimizer_ft, step_size=3, gamma=0.1)
train_model(model_ft, nn.CrossEntropyLoss(), optimizer_ft, decay)
torch.save(model_ft.state_dict(), "transfer.pt")
