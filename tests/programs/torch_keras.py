"""A loop of its own on Keras's PyTorch backend, with optimizers and metrics of Keras."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch
from torch.utils.data import DataLoader, TensorDataset

keras.utils.set_random_seed(7)
x = torch.randn(160, 6)
y = torch.nn.functional.one_hot((x.sum(1) > 0).long(), 2).float()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = keras.Sequential(
    [
        keras.layers.Input((6,)),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(2),
    ]
)
optimizer = keras.optimizers.Adam(0.01)
loss_fn = keras.losses.CategoricalCrossentropy(from_logits=True)
metric = keras.metrics.CategoricalAccuracy()
seen = keras.metrics.Sum()

for epoch in range(5):
    for inputs, targets in loader:
        logits = model(inputs, training=True)
        loss = loss_fn(targets, logits)
        model.zero_grad()
        loss.backward()
        gradients = [each.value.grad for each in model.trainable_weights]
        with torch.no_grad():
            optimizer.apply(gradients, model.trainable_weights)
        metric.update_state(targets, logits)
        seen.update_state(logits.detach())
    print(f"epoch {epoch} accuracy {float(metric.result()):.4f}")
    metric.reset_state()
held = [*model.variables, *optimizer.variables, *metric.variables, *seen.variables]
torch.save({each.path: each.value.detach() for each in held}, "keras.pt")
