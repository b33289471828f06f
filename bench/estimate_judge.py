"""
Compare the command `watchdog estimate` with trainings of bench/estimate_second.py.

    python bench/estimate_judge.py [--only NAME]

Each model trains in its own process (Keras: one `fit` over four batches; PyTorch: four steps of a
loop). The process's maximum RSS is compared with the peak that the command predicts. "error" is the
error of the peak minus the RSS after importing the framework; "of all" of the whole peak.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import nullcontext

import estimate_second as models
from estimate import status

from watchdog_app.base.text.quantities import MIB

STEPS = 4


def keras_training(name, batch, optimizer, settings):
    """Train with Keras; return the RSS after the import and the maximum RSS, in bytes."""
    import keras
    import numpy as np
    import tensorflow  # noqa: F401 - a part of the base

    base, rows = status("VmRSS"), batch * STEPS
    model = getattr(models, name)()
    out = model.output_shape[1:]
    classes = len(out) == 1
    model.compile(
        optimizer=keras.optimizers.SGD(momentum=0.9) if optimizer == "momentum" else optimizer,
        loss="sparse_categorical_crossentropy" if classes else "mse",
        jit_compile=settings.get("jit", False),
    )
    data = [
        np.random.randint(0, words, (rows, *shape)).astype("int32")
        if words
        else np.random.rand(rows, *shape).astype("float32")
        for shape, words in models.INPUTS[name]
    ]
    target = np.random.randint(0, out[0], rows) if classes else np.random.rand(rows, *out)
    target = target if classes else target.astype("float32")
    model.fit(data[0] if len(data) == 1 else data, target, batch_size=batch, verbose=0)
    return base, status("VmHWM")


def torch_training(name, batch, optimizer, settings):
    """Train with a PyTorch loop and cross entropy; return the same figures."""
    import torch

    base = status("VmRSS")
    model = getattr(models, name)()
    kind, options = {
        "adam": (torch.optim.Adam, {}),
        "adamw": (torch.optim.AdamW, {}),
        "sgd": (torch.optim.SGD, {"lr": 0.01}),
        "momentum": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    }[optimizer]
    update = kind(model.parameters(), **options)
    data = [
        torch.randint(0, words, (batch, *shape)) if words else torch.rand(batch, *shape)
        for shape, words in models.INPUTS[name]
    ]
    half = settings.get("precision")
    for _ in range(STEPS):
        update.zero_grad()
        with torch.autocast("cpu", dtype=getattr(torch, half)) if half else nullcontext():
            scores = model(*data)
            if scores.ndim == 3:
                scores = scores.flatten(0, 1)
            wanted = (scores.shape[0], *scores.shape[2:])
            target = torch.randint(0, scores.shape[1], wanted)
            loss = torch.nn.functional.cross_entropy(scores, target)
        loss.backward()
        update.step()
        del scores, loss
    return base, status("VmHWM")


def expected(name, batch, optimizer, settings):
    """Return the command's result, parsed from JSON."""
    keras = name.startswith("keras")
    words = [sys.executable, "-m", "watchdog_app", "estimate", f"{models.__file__}:{name}"]
    words += ["--batch", str(batch), "--optimizer", optimizer, "--limit", "16G", "--json"]
    words += ["--framework", "keras" if keras else "torch", "--python", sys.executable]
    for shape, kinds in () if keras else models.INPUTS[name]:
        words += ["--input", ",".join(map(str, shape)) + (":int64" if kinds else "")]
    words += ["--jit"] if settings.get("jit") else []
    words += ["--precision", settings["precision"]] if "precision" in settings else []
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=False).stdout)


def main():
    """Print the table."""
    if sys.argv[1:2] == ["train"]:
        case = (sys.argv[2], int(sys.argv[3]), sys.argv[4], json.loads(sys.argv[5]))
        print(json.dumps((keras_training if "keras" in case[0] else torch_training)(*case)))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    only = parser.parse_args().only
    print(
        "| model | batch | optimizer | estimate, MiB | measured | error | of all |\n" + "|---" * 7
    )
    beyond, inside = [], 0
    for name, batch, optimizer, settings in models.CASES:
        if only not in name:
            continue
        words = [sys.executable, __file__, "train", name, str(batch), optimizer]
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            [*words, json.dumps(settings)], env=env, capture_output=True, text=True, check=True
        )
        base, peak = json.loads(done.stdout.strip().splitlines()[-1])
        told = expected(name, batch, optimizer, settings)
        said = told["peak_bytes"]
        error = (said - base) / (peak - base) - 1
        beyond.append(abs(error))
        inside += told["low_bytes"] <= peak <= told["high_bytes"]
        extra = (
            ", XLA" if settings.get("jit") else "".join(f", {each}" for each in settings.values())
        )
        print(
            f"| {name}{extra} | {batch} | {optimizer} | {said / MIB:.0f} | {peak / MIB:.0f} | "
            f"{error:+.0%} | {said / peak - 1:+.0%} |",
            flush=True,
        )
    print(
        f"\n{len(beyond)} trainings: median error {statistics.median(beyond):.1%}, "
        f"worst {max(beyond):.0%}; {inside} in the interval."
    )


if __name__ == "__main__":
    main()
