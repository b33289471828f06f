"""Some real steps in a process of their own, to stand beside the estimate."""

from __future__ import annotations

from typing import Any

from watchdog_app.estimate import inputs as inputs_module
from watchdog_app.estimate.step import EstimateError, InputSpec

_STEPS = 3  # the optimizer makes its state in the first


def measure_steps(model: Any, plan: dict[str, Any]) -> dict[str, Any]:
    """
    Train on one batch of zeros, some times.

    Args:
        model: built with its weights.
        plan: that of `child`.

    Returns:
        "peak_bytes": the most that this process has held.
    """
    shape = [(tuple(shape), dtype) for shape, dtype in plan["inputs"]] or None
    batch = int(plan["batch"] or 32)
    if hasattr(model, "train_on_batch"):
        _train_keras(model, inputs_module.specs_from_keras(model, shape), batch, plan)
    else:
        _train_torch(model, inputs_module.specs_from_torch(model, shape), batch, plan)
    return {"peak_bytes": peak_bytes(), "steps": _STEPS}


def peak_bytes() -> int:
    """The most that this process has held; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    import sys

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _train_keras(model: Any, specs: list[InputSpec], batch: int, plan: dict[str, Any]) -> None:
    import numpy as np

    outputs = model.output_shape
    if not isinstance(outputs, tuple):
        raise EstimateError("--measure runs models with one output.")
    classes = len(outputs) == 2 and (outputs[1] or 0) > 1
    if plan["optimizer"] is not None or getattr(model, "optimizer", None) is None:
        import keras

        name = plan["optimizer"] or "adam"
        chosen = keras.optimizers.SGD(momentum=0.9) if name == "momentum" else name
        loss = plan["loss"] or ("sparse_categorical_crossentropy" if classes else "mse")
        model.compile(optimizer=chosen, loss=loss, jit_compile=bool(plan["jit"]))
        sparse = "sparse" in loss
    else:
        sparse = "sparse" in str(getattr(model.loss, "__name__", model.loss))
    data = [np.zeros((batch, *each.shape), each.dtype) for each in specs]
    target = np.zeros((batch,) if sparse and classes else (batch, *outputs[1:]), "float32")
    for _ in range(_STEPS):
        model.train_on_batch(data[0] if len(data) == 1 else data, target)


def _train_torch(module: Any, specs: list[InputSpec], batch: int, plan: dict[str, Any]) -> None:
    import torch

    from watchdog_app.estimate.torch_step import loss_of, optimizer_class

    kind, settings = optimizer_class(plan["optimizer"] or "adam")
    optimizer = getattr(torch.optim, kind)(module.parameters(), lr=1e-3, **settings)
    data = [torch.zeros((batch, *each.shape), dtype=getattr(torch, each.dtype)) for each in specs]
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss = loss_of(module(*data), None, any(not each.is_floating_point() for each in data))
        loss.backward()
        optimizer.step()
        del loss
