"""
Compare the memory that `watchdog estimate` predicts with the memory of real trainings.

    python bench/estimate.py [--only NAME] [--holdout]

Each model of bench/estimate_models.py trains for three steps with Adam in its own process (Keras:
train_on_batch). The measured peak is that process's maximum RSS (VmHWM). The estimate runs in
another process. "error" is the error of the peak minus the RSS after importing the framework; "of
all" is the error of the whole peak. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

import estimate_models as models

from watchdog_app.base.text.quantities import MIB

STEPS = 3


def status(name):
    """Return a field of /proc/self/status in bytes."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    raise LookupError(name)


def measure(name, batch, jit):
    """Train; return the RSS after the import and the maximum RSS, in bytes."""
    import numpy as np

    shape, words = models.INPUTS[name]
    if name.startswith("keras"):
        import tensorflow  # noqa: F401 - a part of the base

        base = status("VmRSS")
        model = getattr(models, name)()
        out = model.output_shape[1:]
        model.compile(optimizer="adam", loss=loss_of(out), jit_compile=jit)
        data = (
            np.random.randint(0, words, (batch, *shape)).astype("int32")
            if words
            else np.random.rand(batch, *shape).astype("float32")
        )
        target = (
            np.random.randint(0, out[0], (batch,))
            if len(out) == 1
            else np.random.rand(batch, *out).astype("float32")
        )
        for _ in range(STEPS):
            model.train_on_batch(data, target)
        return base, status("VmHWM")
    import torch

    base = status("VmRSS")
    model = getattr(models, name)()
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.randint(0, words, (batch, *shape)) if words else torch.rand(batch, *shape)
    for _ in range(STEPS):
        optimizer.zero_grad()
        output = model(data)
        if output.ndim == 2:
            target = torch.zeros(batch, dtype=torch.long)
            loss = torch.nn.functional.cross_entropy(output, target)
        else:
            loss = torch.nn.functional.mse_loss(output, torch.zeros_like(output))
        loss.backward()
        optimizer.step()
        del output, loss
    return base, status("VmHWM")


def loss_of(out):
    """Return the loss that a user of such a model would choose."""
    if len(out) == 1:
        return "sparse_categorical_crossentropy"
    return "binary_crossentropy" if out[-1] == 1 else "mse"


def expect(name, batch, jit):
    """Return the import's share, the estimated peak and the ends of its interval, in bytes."""
    from contextlib import nullcontext

    from watchdog_app.estimate import estimate

    shape, _ = models.INPUTS[name]
    loss, scope = None, nullcontext()
    if name.startswith("keras"):
        from watchdog_app.estimate.keras_trace import hollow_variables

        scope = hollow_variables()
    with scope:
        model = getattr(models, name)()
    if name.startswith("keras"):
        loss = loss_of(model.output_shape[1:])
    told = estimate(
        model,
        batch,
        input_shape=shape,
        optimizer="adam",
        loss=loss,
        jit_compile=jit,
        limit_bytes=2**34,
    )
    if name.startswith("keras"):
        from watchdog_app.estimate.keras_subject import TENSORFLOW_BYTES as base
    else:
        from watchdog_app.estimate.torch_step import TORCH_BYTES as base
    return base, told.peak_bytes, told.low_bytes, told.high_bytes


def ask(what, name, batch, jit):
    """Run `measure` or `expect` in a child process."""
    words = [sys.executable, __file__, what, name, str(batch), str(int(jit))]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    """Print the table."""
    if len(sys.argv) == 5 and sys.argv[1] in ("measure", "foretell"):
        name, batch, jit = sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1"
        print(json.dumps((measure if sys.argv[1] == "measure" else expect)(name, batch, jit)))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--holdout", action="store_true")
    options = parser.parse_args()
    print("| model | batch | estimate, MiB | measured | error | of all | in the interval |")
    print("|---|---|---|---|---|---|---|")
    beyond, whole, inside = [], [], 0
    for name, batch, jit in models.HOLDOUT if options.holdout else models.TUNED:
        if options.only not in name:
            continue
        base, peak = ask("measure", name, batch, jit)
        assumed, told, low, high = ask("foretell", name, batch, jit)
        error = (told - assumed) / (peak - base) - 1
        beyond.append(abs(error))
        whole.append(abs(told / peak - 1))
        inside += low <= peak <= high
        shown = name + (", XLA" if jit else "")
        print(
            f"| {shown} | {batch} | {told / MIB:.0f} | {peak / MIB:.0f} | {error:+.0%} | "
            f"{told / peak - 1:+.0%} | {'yes' if low <= peak <= high else 'no'} |",
            flush=True,
        )
    print(
        f"\n{len(beyond)} trainings: median error {statistics.median(beyond):.1%}, "
        f"worst {max(beyond):.0%}; of the whole peak {statistics.median(whole):.1%} and "
        f"{max(whole):.0%}; {inside} in the interval."
    )


if __name__ == "__main__":
    main()
