"""A student is trained by one function, with a teacher, and a second network by another one."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(31)
x = torch.randn(96, 6)
train_loader = DataLoader(TensorDataset(x, x.abs().argmax(1) % 3), batch_size=8, shuffle=True)


def train(model, train_loader, epochs, learning_rate):
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for _epoch in range(epochs):
        for inputs, labels in train_loader:
            optimizer.zero_grad()
            criterion(model(inputs), labels).backward()
            optimizer.step()


def train_knowledge_distillation(teacher, student, train_loader, epochs, learning_rate):
    ce_loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(student.parameters(), lr=learning_rate)
    teacher.eval()
    for _epoch in range(epochs):
        for inputs, labels in train_loader:
            optimizer.zero_grad()
            with torch.no_grad():
                soft_targets = nn.functional.softmax(teacher(inputs) / 2, dim=-1)
            student_logits = student(inputs)
            soft_prob = nn.functional.log_softmax(student_logits / 2, dim=-1)
            soft_loss = torch.sum(soft_targets * (soft_targets.log() - soft_prob)) / len(inputs)
            loss = 0.25 * soft_loss + 0.75 * ce_loss(student_logits, labels)
            loss.backward()
            optimizer.step()


nn_deep = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
nn_light = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
train_knowledge_distillation(nn_deep, nn_light, train_loader, epochs=5, learning_rate=1e-2)
nn_scratch = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
train(nn_scratch, train_loader, epochs=1, learning_rate=1e-2)
torch.save(nn_light.state_dict(), "light.pt")
torch.save(nn_scratch.state_dict(), "scratch.pt")
