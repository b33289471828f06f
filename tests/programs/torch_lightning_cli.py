"""A Lightning program by its command line interface, with a data module."""

import lightning as L
import torch
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self, lr: float = 0.05):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


class Rows(L.LightningDataModule):
    def setup(self, stage):
        rows = torch.randn(96, 5, generator=torch.Generator().manual_seed(1))
        self.train_set = TensorDataset(rows, rows.abs().argmax(1) % 3)

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=8, shuffle=True)


quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
defaults = {"max_epochs": 5, "accelerator": "cpu", "enable_checkpointing": False, **quiet}
options = {"seed_everything_default": 21, "save_config_callback": None, "args": []}
cli = LightningCLI(Classifier, Rows, run=False, trainer_defaults=defaults, **options)
cli.trainer.fit(cli.model, datamodule=cli.datamodule)
torch.save(cli.model.state_dict(), "cli.pt")
