"""
A small PyTorch training that saves a rescue, or resumes from a series of folders.

Usage:
    MODE=save FOLDER=... RESULTS=...  trains, saves after seven steps and is killed
    MODE=offer FOLDER=... RESULTS=... resumes from each folder below FOLDER; a line of JSON for each

Its options are environment variables, because an argument would make it another training. WHAT
changes what it computes.
"""

import hashlib
import io
import json
import os
import signal
from contextlib import redirect_stderr

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from watchdog_app.agent.torch import Rescue
from watchdog_app.base.errors import RescueError

EPOCHS, ROWS, BATCH, SAVE_AT = 3, 20, 4, 7
WHAT = os.environ.get("WHAT", "")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width = 8 if WHAT == "wider" else 5
        self.first, self.second = nn.Linear(3, width), nn.Linear(width, 1)
        self.between = nn.Tanh() if WHAT == "activation" else nn.ReLU()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.second(self.between(self.first(rows)))


def train(rescue_dir: str) -> dict[str, object]:
    """One training; returns where it began and a digest of all that it left."""
    torch.manual_seed(3)
    model = Net()
    kind = torch.optim.Adam if WHAT == "optimizer" else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=0.01)
    rows = torch.randn(2 * ROWS if WHAT == "data" else ROWS, 3)
    loader = DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), BATCH, shuffle=True)
    loss_of = nn.L1Loss() if WHAT == "loss" else nn.MSELoss()
    rescue = Rescue(rescue_dir, model=model, optimizer=optimizer)
    began = rescue.step_number
    for _ in rescue.epochs(EPOCHS):
        for batch, expected in rescue.data(loader):
            optimizer.zero_grad()
            loss = loss_of(model(batch), expected)
            loss.backward()
            optimizer.step()
            rescue.step(loss)
            if os.environ["MODE"] == "save" and rescue.step_number == SAVE_AT:
                assert rescue.save() is not None
                os.kill(os.getpid(), signal.SIGKILL)
    values = [*model.parameters(), torch.get_rng_state()]
    values += [each for one in optimizer.state.values() for each in one.values()]
    digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in values))
    settings = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    digest.update(repr((settings, rescue.step_number)).encode())
    return {"began": began, "left": digest.hexdigest()}


def offer(rescue_dir: str) -> dict[str, object]:
    said = io.StringIO()
    with redirect_stderr(said):
        try:
            result = train(rescue_dir)
        except RescueError as error:
            result = {"refused": str(error)}
        except BaseException as error:
            result = {"ended": repr(error)}
    found = [each for each in os.listdir(rescue_dir) if each.startswith("rescue-")]
    result |= {"rescue": min(found, default=""), "said": said.getvalue().splitlines()}
    return {"name": os.path.basename(rescue_dir), **result}


def main() -> None:
    folder = os.environ["FOLDER"]
    saving = os.environ["MODE"] == "save"
    waiting = [folder]
    if not saving:
        waiting = sorted((os.path.join(folder, each) for each in os.listdir(folder)), reverse=True)
    with open(os.environ["RESULTS"], "w") as results:
        while waiting:  # a `for` loop's variable would make each one a different training
            path = waiting.pop()
            print(json.dumps(offer(path)), file=results)
            results.flush()


if __name__ == "__main__":
    main()
