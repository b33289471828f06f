"""
A PyTorch loop whose experiment tracker continues at the right step after a kill.

    python examples/tracked_loop.py tensorboard     # or mlflow, or wandb (offline)

Kill it after it has saved (`watchdog checkpoint tracked_loop.py` saves a rescue at any time), and
run it again. It logs each step once, although the killed run had logged more steps than it saved.
"""

import sys

import torch

from watchdog_app.agent.torch import Rescue

NAME = "tracked-loop"

torch.manual_seed(7)
x = torch.randn(640, 20)
y = x[:, :5].sum(dim=1, keepdim=True)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True
)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
tracked = {"run_id": None, "losses": []}  # saved and restored with the weights
rescue = Rescue("rescues/tracked_loop", model=model, optimizer=optimizer, tracked=tracked)


def tensorboard():
    """Readers drop what the killed run has logged from `purge_step` on."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("runs/" + NAME, purge_step=rescue.step_number)

    def log(step, loss):
        writer.add_scalar("loss", loss, step)
        writer.flush()  # a kill loses nothing that came before a rescue

    return log, writer.close


def mlflow():
    """MLflow forgets no step. The resumed run is a new one that begins with the saved steps."""
    import mlflow

    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    client, before = mlflow.MlflowClient(), tracked["run_id"]
    tags = {"resumed_from": before} if before else None
    run_id = tracked["run_id"] = mlflow.start_run(run_name=NAME, tags=tags).info.run_id
    if before:
        history = client.get_metric_history(before, "loss")
        saved = [each for each in history if each.step < rescue.step_number]
        for at in range(0, len(saved), 1000):  # the most that a request may hold
            client.log_batch(run_id, metrics=saved[at : at + 1000])
        client.set_terminated(before, "KILLED")
    return lambda step, loss: mlflow.log_metric("loss", loss, step), mlflow.end_run


def wandb():
    """W&B loses its last seconds in a kill. So the rescue holds the losses, to log them again."""
    import wandb

    run = wandb.init(project=NAME, id=tracked["run_id"], mode="offline")
    tracked["run_id"] = run.id
    for step, loss in enumerate(tracked["losses"]):
        run.log({"loss": loss}, step=step)

    def log(step, loss):
        tracked["losses"].append(loss)
        run.log({"loss": loss}, step=step)

    return log, run.finish


log, close = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}[sys.argv[1]]()
for epoch in rescue.epochs(3):
    for features, targets in rescue.data(loader):
        loss = torch.nn.functional.mse_loss(model(features), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(rescue.step_number, loss.item())
        rescue.step(loss=loss)
    print(f"epoch {epoch + 1}: {rescue.step_number} steps")
close()
