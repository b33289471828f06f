import torch
from torch import nn
from torch.utils.data import TensorDataset


def load_data():
    images, labels = torch.randn(96, 3, 8, 8), torch.randint(4, (96,))
    return TensorDataset(images[:64], labels[:64]), TensorDataset(images[64:], labels[64:])


def build_model():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(288, 4),
    )
