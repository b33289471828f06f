"""A PyTorch module, to be estimated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from watchdog_app.agent.telemetry import slots
from watchdog_app.agent.telemetry.parts import Parts, parts_of_torch, tensor_bytes
from watchdog_app.estimate import inputs as one_example
from watchdog_app.estimate import process, torch_trace
from watchdog_app.estimate.process import Weight
from watchdog_app.estimate.step import EstimateError, TraceError
from watchdog_app.estimate.subject import Subject, Traced

_OPTIMIZERS = {
    each.lower(): each
    for each in (
        "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "Adafactor",
        "RMSprop", "Rprop", "ASGD", "LBFGS", "Muon", "SparseAdam",
    )
}  # fmt: skip
_ASSUMED = "the module decides by values what it does: one way was followed."
_MOMENTUM = {"momentum": {"momentum": 0.9}}


def subject(  # noqa: PLR0917
    module: Any, shape: Any, inputs: Any, optimizer: Any, loss: Any, precision: str | None,
    gpu: bool, base: int | None,
) -> Subject:  # fmt: skip
    """
    A module with how it is traced; arguments as of `estimating.estimate`.

    Raises:
        EstimateError: it does not tell what one example is, or the optimizer is not known.
    """
    specs = one_example.of_example(inputs) if inputs is not None else None
    specs = specs or one_example.of_torch(module, shape)
    notes: list[str] = []
    parts = _parts(module, optimizer)
    if optimizer is None:
        notes.append("no optimizer was named: its state is not counted.")
    trained = [each for each in module.parameters() if each.requires_grad]
    share = (parts.optimizer_bytes or 0) / max(1, parts.trained_bytes)
    weights = [
        Weight(
            tensor_bytes(each),
            False,
            int(tensor_bytes(each) * share) if getattr(each, "requires_grad", False) else 0,
        )
        for each in (*module.parameters(), *module.buffers())
    ]
    largest = max(map(tensor_bytes, trained), default=0) if optimizer is not None else 0

    def trace(batch: int) -> Traced:
        try:
            step = torch_trace.step_memory(
                module, specs, batch, loss=loss, precision=precision, train=bool(trained)
            )
        except TraceError as error:
            raise EstimateError(
                f"The module cannot be traced for {_words(specs)}: {error}. "
                "Is that what one example is? --input names its shape without the batch, "
                "--input 128:int64 whole numbers."
            ) from error
        if step.assumed and _ASSUMED not in notes:
            notes.append(_ASSUMED)
        static = sum(each.bytes + each.slots_bytes for each in weights)
        if gpu:
            held = process.on_gpu(static + step.data_bytes + step.peak_bytes)
        else:
            held = process.torch_cpu(weights, step.events, step.data_bytes, largest)
        return Traced(batch, held, step.kept_bytes, step.data_bytes)

    def framework_bytes() -> int:
        if gpu:
            return process.GPU_CONTEXT_BYTES
        return (process.TORCH_BYTES if base is None else base) + process.TORCH_FIRST_BYTES

    depth = sum(not any(True for _ in each.children()) for each in module.modules())
    return Subject("torch", parts, trace, framework_bytes, depth, notes)


def optimizer_class(name: str) -> tuple[str, dict[str, Any]]:
    """
    The class in torch.optim that a name means, and its settings; "momentum" is SGD with one.

    Raises:
        EstimateError: there is none.
    """
    lower = name.lower()
    kind = "SGD" if lower in _MOMENTUM else _OPTIMIZERS.get(lower)
    if kind is None:
        known = ", ".join(sorted((*_OPTIMIZERS, *_MOMENTUM)))
        raise EstimateError(f"There is no optimizer {name!r} here; known are {known}.")
    return kind, dict(_MOMENTUM.get(lower, {}))


def _parts(module: Any, optimizer: Any) -> Parts:
    if not isinstance(optimizer, str):
        return parts_of_torch(module, () if optimizer is None else optimizer)
    kind, settings = optimizer_class(optimizer)
    counted = parts_of_torch(module)
    named = type(kind, (), {})()
    total = sum(
        slots.torch(named, settings, tuple(each.shape), each.element_size()) or 0
        for each in module.parameters()
        if each.requires_grad
    )
    return replace(counted, optimizer_bytes=total, optimizer=kind)


def _words(specs: Any) -> str:
    return " and ".join(f"{each.shape} of {each.dtype}" for each in specs)
