"""A language model trained by the Trainer of Hugging Face."""

import torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.ids = torch.randint(20, (96, 6), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index].roll(-1)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(20, 12), nn.Dropout(0.1), nn.Linear(12, 20))

    def forward(self, input_ids, labels):
        logits = self.layers(input_ids)
        return {"loss": nn.functional.cross_entropy(logits.view(-1, 20), labels.view(-1))}


set_seed(22)
model = Model()
args = TrainingArguments(
    "out", per_device_train_batch_size=8, num_train_epochs=4, save_strategy="no", report_to=[],
    use_cpu=True, disable_tqdm=True, logging_strategy="no",
)  # fmt: skip
trainer = Trainer(model=model, args=args, train_dataset=Rows())
trainer.train()
torch.save(model.state_dict(), "trainer.pt")
