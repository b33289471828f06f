"""
PyTorch loops that really run out of memory: `torch_exhausted.py FOLDER CASE...`, JSON on stdout.

Before one batch the address space is limited to the current use plus a reserve.
"""

import gc
import io
import json
import os
import random
import resource
import sys

os.environ["WATCHDOG_AGENT_STRICT"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch

from watchdog_app.agent.torch import Rescue

torch.set_num_threads(1)
MIB = 2**20
ROWS, BATCH = 190, 32  # six batches, the last one smaller
x = torch.randn(ROWS, 64, generator=torch.Generator().manual_seed(1))
y = torch.randn(ROWS, 1, generator=torch.Generator().manual_seed(2))


class Wide(torch.nn.Module):
    """The only large module: 40 MiB for a whole batch. It counts its calls in two ways."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, values):
        self.calls += 1
        self.seen = self.seen + 1
        return values.repeat_interleave(20480, dim=1).relu().mean(dim=1, keepdim=True) * values


def narrow(room_mib):
    gc.collect()
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room_mib * MIB, resource.RLIM_INFINITY))


def wide():
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Training:
    def __init__(self, *, noisy):
        torch.manual_seed(5)
        random.seed(5)
        between = [torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3)] if noisy else []
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 16), *between, Wide(), torch.nn.Linear(16, 1)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 60)
        dataset = torch.utils.data.TensorDataset(x, y)
        self.loader = torch.utils.data.DataLoader(dataset, BATCH, shuffle=True)
        self.losses = []

    def state(self):
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
        }

    def loss(self, rows, targets):
        return torch.nn.functional.mse_loss(self.model(rows), targets)

    def run(self, rescue, *, epochs=2, narrow_at=None, helper=True, room_mib=36):
        step = 0
        for _ in rescue.epochs(epochs):
            for batch in rescue.data(self.loader):
                if step == narrow_at:
                    narrow(room_mib)
                self.optimizer.zero_grad()
                if helper:
                    loss = rescue.backward(batch, self.loss)
                else:
                    loss = self.loss(*batch)
                    loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                self.losses.append(float(loss.detach()).hex())
                rescue.step(loss)
                step += 1


def train(folder, *, noisy=False, epochs=2, narrow_at=None, helper=True, **options):
    training = Training(noisy=noisy)
    said, sys.stderr = sys.stderr, io.StringIO()
    found = {"error": None, "notes": []}
    try:
        with Rescue(folder, **training.state(), **options) as rescue:
            training.run(rescue, epochs=epochs, narrow_at=narrow_at, helper=helper)
    except Exception as error:
        found["error"] = type(error).__name__
        found["notes"] = list(getattr(error, "__notes__", []))
    finally:
        wide()
        found["said"], sys.stderr = sys.stderr.getvalue(), said
    wide_part = next(each for each in training.model if isinstance(each, Wide))
    calls = [wide_part.calls, float(wide_part.seen)]
    return {**found, "losses": training.losses, "calls": calls}


def where(name):
    return os.path.join(sys.argv[1], name)


def saved():
    """The loop stops at the eighth batch, the second of its second epoch, and resumes."""
    folder = where("saved")
    return {
        "stopped": train(folder, noisy=True, narrow_at=7, helper=False),
        "resumed": train(folder, noisy=True, helper=False, resume="newest"),
        "reference": train(where("whole"), noisy=True, helper=False),
    }


def shrunk(*, noisy, epochs):
    folder = where(f"shrunk-{noisy}")
    return {
        "parts": train(folder, noisy=noisy, epochs=epochs, narrow_at=0, on_oom="shrink"),
        "reference": train(where(f"whole-{noisy}"), noisy=noisy, epochs=epochs),
    }


def remembered():
    """A resume of a training in parts uses parts of the same size."""
    folder = where("remembered")
    sizes = []
    for narrow_at in (0, None):
        training = Training(noisy=False)
        rescue = Rescue(
            folder, on_oom="shrink", resume="newest" if sizes else True, **training.state()
        )
        sizes.append(rescue.micro.size)
        if narrow_at is not None:
            narrow(36)
            rescue.backward((x[:BATCH], y[:BATCH]), training.loss)
            wide()
            rescue.step()
            sizes.append(rescue.micro.size)
            rescue.save()
    return {"sizes": sizes}


def placed(fails_at):
    """
    A scheduler steps and random numbers are drawn between epochs; the batch number `fails_at` does
    not fit.

    Returns what each completed step received, in two runs and in one.
    """

    def steps(folder, *, narrow_at=None, resume=True):
        training = Training(noisy=True)
        training.scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 1, 0.99)
        had, count = [], 0
        said, sys.stderr = sys.stderr, io.StringIO()
        try:
            with Rescue(folder, resume=resume, **training.state()) as rescue:
                for epoch in rescue.epochs(6):
                    rows = BATCH if epoch == 0 else 2 * BATCH
                    loader = torch.utils.data.DataLoader(training.loader.dataset, rows, True)
                    for batch in rescue.data(loader):
                        if count == narrow_at:
                            narrow(20)
                        training.optimizer.zero_grad()
                        loss = training.loss(*batch)
                        loss.backward()
                        training.optimizer.step()
                        rate = training.scheduler.get_last_lr()[0]
                        had.append([epoch, float(batch[1].sum()).hex(), rate, float(loss).hex()])
                        rescue.step()
                        count += 1
                    training.scheduler.step()
                    random.random()
                    torch.rand(1)
        except RuntimeError:
            pass
        finally:
            wide()
            text, sys.stderr = sys.stderr.getvalue(), said
        return {"had": had, "said": text}

    folder = where(f"placed-{fails_at}")
    return {
        "stopped": steps(folder, narrow_at=fails_at),
        "resumed": steps(folder, resume="newest"),
        "reference": steps(where(f"placed-whole-{fails_at}")),
    }


def between():
    """
    A pass that the program reads in the middle of an epoch, before the rescue and after it.

    The resume continues at the first step after the first pass; returns the values of the passes
    and the losses.
    """

    def losses(folder, *, stop_at=None, resume=True):
        training = Training(noisy=True)
        checked = torch.utils.data.DataLoader(training.loader.dataset, 95)
        had = []
        rescue = Rescue(folder, resume=resume, **training.state())
        for _ in rescue.epochs(2):
            for batch in rescue.data(training.loader):
                training.optimizer.zero_grad()
                loss = training.loss(*batch)
                loss.backward()
                training.optimizer.step()
                had.append(float(loss).hex())
                rescue.step()
                if rescue.step_number == stop_at:
                    rescue.save()
                    return had
                if rescue.step_number % 2 == 0:
                    with torch.no_grad():
                        had.append(len([training.loss(*each) for each in rescue.data(checked)]))
        return had

    said, sys.stderr = sys.stderr, io.StringIO()
    try:
        return {
            "stopped": losses(where("between"), stop_at=3),
            "resumed": losses(where("between"), resume="newest"),
            "reference": losses(where("between-whole")),
        }
    finally:
        sys.stderr = said


def torn():
    """A memory error raised inside the optimizer's step."""
    training = Training(noisy=False)
    folder = where("torn")
    said, sys.stderr = sys.stderr, io.StringIO()

    class Greedy(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            if len(training.losses) == 3:
                torch.empty(2**50)

    training.optimizer = Greedy(training.model.parameters(), lr=1e-2)
    training.scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 5)
    try:
        with Rescue(folder, **training.state()) as rescue:
            training.run(rescue)
    except RuntimeError as error:
        notes = list(getattr(error, "__notes__", []))
    finally:
        text, sys.stderr = sys.stderr.getvalue(), said
    kept = [name for name in os.listdir(folder) if name.startswith("rescue-")]
    return {"notes": notes, "said": text, "rescues": kept}


def uncaught():
    """The program does not catch the error, which ends it."""
    training = Training(noisy=True)
    rescue = Rescue(where("uncaught"), **training.state())
    training.run(rescue, narrow_at=4, helper=False)


CASES = {
    "saved": saved,
    "shrunk": lambda: shrunk(noisy=False, epochs=9),
    "shrunk_noisy": lambda: shrunk(noisy=True, epochs=4),
    "remembered": remembered,
    "placed_first": lambda: placed(6),
    "placed_later": lambda: placed(15),
    "between": between,
    "torn": torn,
    "uncaught": uncaught,
}

if __name__ == "__main__":
    for case in sys.argv[2:]:
        print(json.dumps({case: CASES[case]()}), flush=True)
