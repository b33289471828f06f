"""
A PyTorch module, estimated from one step that is traced on tensors without contents.

A copy of the module has tensors with shapes but no bytes (`FakeTensorMode`). One forward and
backward pass runs on the copy. The trace sees every operation and its results, and follows each
storage until Python and autograd have released it. So its peak is the peak of a real step. The
user's module is neither run nor changed, and no random number is drawn.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from watchdog_app.agent.telemetry.parts import (
    Parts,
    parts_of_torch,
    tensor_bytes,
    torch_optimizer_bytes,
)
from watchdog_app.base.text.quantities import MIB
from watchdog_app.estimate.inputs import specs_from_torch
from watchdog_app.estimate.record import (
    GPU_CONTEXT_BYTES,
    EstimateError,
    InputSpec,
    Subject,
    Traced,
    TraceError,
)

# Measured on Linux x86-64 with PyTorch 2.13 (docs/measurements.md): resident after the import, and
# what the first step adds in any case (an optimizer imports the compiler).
TORCH_BYTES = 222 * MIB
TORCH_FIRST_BYTES = 85 * MIB
# Memory of the process beyond the tensors in use. glibc keeps freed blocks below 32 MiB, and other
# blocks often do not fit into these gaps. The gaps take as much as a step, up to a limit.
_HEAP_SHARE = 1.02
_GAPS_BYTES = 180 * MIB
_MARGIN_BYTES = 100 * MIB  # gaps of similar programs differ by as much

_OPTIMIZERS = {
    name.lower(): name
    for name, each in vars(torch.optim).items()
    if isinstance(each, type) and issubclass(each, torch.optim.Optimizer) and name != "Optimizer"
}
_ASSUMED = "the module decides by values what it does: one way was followed."
_MOMENTUM = {"momentum": {"momentum": 0.9}}


def subject(  # noqa: PLR0917
    module: Any, shape: Any, optimizer: Any, loss: Any, precision: str | None, gpu: bool,
    base: int | None,
) -> Subject:  # fmt: skip
    """
    Wrap a module with the way to trace it; arguments as for `estimating.estimate`.

    Raises:
        EstimateError: it does not define the shape of one example, or the optimizer is unknown.
    """
    specs = specs_from_torch(module, shape)
    notes: list[str] = []
    parts = _parts(module, optimizer, notes)
    trained = [each for each in module.parameters() if each.requires_grad]
    static = sum(map(tensor_bytes, (*module.parameters(), *module.buffers())))
    static += parts.optimizer_bytes or 0
    # The update of the largest weight needs two temporary tensors of its size.
    update = 2 * max(map(tensor_bytes, trained), default=0) if optimizer is not None else 0

    def trace(batch: int) -> Traced:
        try:
            step = step_memory(
                module, specs, batch, loss=loss, precision=precision, train=bool(trained)
            )
        except TraceError as error:
            raise EstimateError(
                f"The module cannot be traced for {_format_specs(specs)}: {error}. "
                "Is that what one example is? --input names its shape without the batch, "
                "--input 128:int64 whole numbers."
            ) from error
        if step.assumed and _ASSUMED not in notes:
            notes.append(_ASSUMED)
        step_bytes = max(step.peak_bytes, step.gradients_bytes + update)
        live = static + step.data_bytes + step_bytes
        if gpu:
            return Traced.on_gpu(batch, live, step.kept_bytes, step.data_bytes)
        resident = int(_HEAP_SHARE * live + min(_GAPS_BYTES, step_bytes))
        return Traced(batch, live, resident, step.kept_bytes, step.data_bytes)

    def framework_bytes() -> int:
        if gpu:
            return GPU_CONTEXT_BYTES
        return (TORCH_BYTES if base is None else base) + TORCH_FIRST_BYTES

    depth = sum(not any(True for _ in each.children()) for each in module.modules())
    made = Subject("torch", parts, trace, framework_bytes, depth, notes)
    return made if gpu else replace(made, margin_bytes=_MARGIN_BYTES)


def _optimizer_class(name: str) -> tuple[str, dict[str, Any]]:
    """
    Return the class name in torch.optim and its settings; "momentum" is SGD with momentum 0.9.

    Raises:
        EstimateError: the optimizer is unknown.
    """
    lower = name.lower()
    kind = "SGD" if lower in _MOMENTUM else _OPTIMIZERS.get(lower)
    if kind is None:
        known = ", ".join(sorted((*_OPTIMIZERS, *_MOMENTUM)))
        raise EstimateError(f"There is no optimizer {name!r} here; known are {known}.")
    return kind, dict(_MOMENTUM.get(lower, {}))


def _parts(module: Any, optimizer: Any, notes: list[str]) -> Parts:
    if optimizer is None:
        notes.append("no optimizer was named: its state is not counted.")
        return parts_of_torch(module)
    kind = _optimizer_class(optimizer)[0] if isinstance(optimizer, str) else None
    counted = parts_of_torch(module, () if kind else optimizer)
    total = None
    try:
        total = _state_bytes(module, optimizer)
    except Exception as error:  # an optimizer that needs a closure, or other weights
        notes.append(f"the state of {kind or counted.optimizer} is not counted: {error}.")
    return replace(counted, optimizer_bytes=total, optimizer=kind or counted.optimizer)


def _state_bytes(module: Any, optimizer: Any) -> int:
    """
    Bytes that an optimizer keeps after a step, from a step of a copy without contents.

    Raises:
        Exception: the optimizer cannot make this step.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with FakeCopyMode(mode):
        fake = copy.deepcopy(module if isinstance(optimizer, str) else optimizer)
    with mode, _StorageTracker(iter(())):
        if isinstance(optimizer, str):
            kind, settings = _optimizer_class(optimizer)
            trained = [each for each in fake.parameters() if each.requires_grad]
            fake = getattr(torch.optim, kind)(trained, **settings)
        weights = [each for group in fake.param_groups for each in group["params"]]
        for each in weights:
            each.grad = torch.zeros_like(each) if each.requires_grad else None
        try:
            fake.step()
        except Exception:  # NAdam divides by a value that the copy does not have
            if any(each not in fake.state for each in weights if each.requires_grad):
                raise
        return torch_optimizer_bytes(fake)


def _format_specs(specs: Any) -> str:
    return " and ".join(f"{each.shape} of {each.dtype}" for each in specs)


# The trace of one step.

_EQUAL = "aten::equal"
_VALUES = frozenset({_EQUAL, "aten::_local_scalar_dense"})
_LSTM = "aten::mkldnn_rnn_layer"
# Multiples of the output of all time steps. The forward pass keeps four gates, cell and hidden
# state; the backward pass needs temporary memory.
_LSTM_KEEPS = 6
_LSTM_TAKES = 5
_LIKELY_ROWS = 2  # an output with at least this many columns counts as class scores


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Bytes of one traced step, without weights and optimizer state."""

    peak_bytes: int  # gradients and activations together, at the peak
    kept_bytes: int  # kept at the start of the backward pass
    gradients_bytes: int  # of all weights, if they exist at the same time
    data_bytes: int  # the batch itself
    assumed: bool  # it branches on values, and only one branch was traced


class _StorageTracker(TorchDispatchMode):  # type: ignore[misc]
    """Counts the storages that operations create, until each is released."""

    def __init__(self, known: Iterator[Any]) -> None:
        super().__init__()
        self.live_bytes = 0  # created by the step and not yet released
        self.peak_bytes = 0
        self.assumed = False
        self._seen: dict[int, Any] = {}
        for each in known:
            self._seen[each.untyped_storage()._cdata] = each.untyped_storage()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in _VALUES:
            # The module branches on a value, such as "is this mask causal?". Trace the branch for
            # true.
            self.assumed = True
            first = args[0]
            if func._schema.name == _EQUAL or first.dtype == torch.bool:
                return True
            return 1.0 if first.is_floating_point() else 1
        result = func(*args, **(kwargs or {}))
        made = [each for each in tree_flatten(result)[0] if isinstance(each, torch.Tensor)]
        if func._schema.name == _LSTM:  # fake tensors give its workspace no size
            self._track(made[-1], int(_LSTM_KEEPS * _nbytes(made[0])))
        for each in made:
            self._track(each)
        self.peak_bytes = max(
            self.peak_bytes, self.live_bytes + int(_scratch_bytes(func, args, made))
        )
        return result

    def _track(self, tensor: Any, size: int | None = None) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return
        size = int(storage.nbytes()) if size is None else size
        self._seen[key] = None
        self.live_bytes += size
        weakref.finalize(storage, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._seen.pop(key, None)
        self.live_bytes -= size


def step_memory(
    module: Any,
    inputs: Sequence[InputSpec],
    batch: int,
    *,
    loss: Callable[..., Any] | None = None,
    precision: str | None = None,
    train: bool = True,
) -> StepMemory:
    """
    Trace one training step of `module`; return its memory beyond weights and optimizer.

    Args:
        module: on any device; it is copied without its contents.
        inputs: of one example each.
        batch: examples in the step.
        loss: of (output, target), or of the output alone; None: cross entropy or mean square.
        precision: "bfloat16" or "float16" for autocast; None: unchanged.
        train: False: only the forward pass, without gradients.

    Raises:
        TraceError: it cannot be traced, because it depends on values or does not fit its inputs.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with FakeCopyMode(mode):
            fake = copy.deepcopy(module)
        _remove_hooks(fake)
        with mode:
            return _trace_step(fake, inputs, batch, loss, precision, train)
    except Exception as error:
        raise TraceError(f"{type(error).__name__}: {error}".split("\n", 1)[0]) from error


def _trace_step(  # noqa: PLR0917
    fake: Any,
    inputs: Sequence[InputSpec],
    batch: int,
    loss: Callable[..., Any] | None,
    precision: str | None,
    train: bool,
) -> StepMemory:
    fake.train(train)
    for each in fake.parameters():
        each.grad = None
    device = next((each.device for each in fake.parameters()), torch.device("cpu"))
    made = [_make_example(spec, batch, device) for spec in inputs]
    data_bytes = sum(each.untyped_storage().nbytes() for each in made)
    half = getattr(torch, precision) if precision else None
    casting = torch.autocast(device.type, dtype=half) if half else nullcontext()
    known = [*fake.parameters(), *fake.buffers(), *made]
    with _StorageTracker(iter(known)) as tracker, torch.set_grad_enabled(train):
        with casting:
            output = fake(*made)
            tokens = any(not each.is_floating_point() for each in made)
            value = loss_of(output, loss, tokens) if train else None
        kept = tracker.live_bytes
        if value is not None and value.requires_grad:
            value.backward()
    gradients = sum(
        each.grad.untyped_storage().nbytes() for each in fake.parameters() if each.grad is not None
    )
    return StepMemory(tracker.peak_bytes, kept, gradients, data_bytes, tracker.assumed)


def _remove_hooks(fake: Any) -> None:
    """Remove the program's own hooks, which would get and keep tensors without contents."""
    for each in fake.modules():
        for hooks in (each._forward_hooks, each._forward_pre_hooks, each._backward_hooks):
            for key, hook in list(hooks.items()):
                owner = getattr(hook, "__module__", None) or type(hook).__module__
                # weight normalization is a hook of torch, and computes
                if not owner.startswith("torch."):
                    del hooks[key]


def _make_example(spec: InputSpec, batch: int, device: Any) -> Any:
    shape = (batch, *spec.shape)
    kind = getattr(torch, spec.dtype)
    made = torch.empty(shape, dtype=kind, device=device)
    return made if made.is_floating_point() else torch.zeros_like(made)


def loss_of(output: Any, loss: Callable[..., Any] | None, tokens: bool = False) -> Any:
    """
    Return a loss of a module's output: the given one, the output's own, or one that suits.

    Args:
        output: of the module.
        loss: the given one.
        tokens: the inputs are integers, so a sequence of scores is one of classes.
    """
    own = getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    outputs = [
        each
        for each in tree_flatten(_plain_output(output))[0]
        if isinstance(each, torch.Tensor) and each.is_floating_point()
    ]
    if loss is not None and len(outputs) == 1:
        return _given_loss(loss, outputs[0])
    if len(outputs) == 1:
        first = outputs[0].flatten(0, -2) if tokens and outputs[0].dim() > 2 else outputs[0]
        if first.dim() == 2 and first.shape[1] >= _LIKELY_ROWS:
            target = torch.zeros(first.shape[0], dtype=torch.long, device=first.device)
            return torch.nn.functional.cross_entropy(first, target)
        return torch.nn.functional.mse_loss(first, torch.zeros_like(first))
    return sum(each.float().mean() for each in outputs)


def _given_loss(loss: Callable[..., Any], output: Any) -> Any:
    """Call a loss with the target that it accepts: class labels, or a tensor like the output."""
    labels_shape = (output.shape[0], *output.shape[2:])
    labels = torch.zeros(labels_shape, dtype=torch.long, device=output.device)
    for target in (labels, torch.zeros_like(output)):
        try:
            return loss(output, target)
        except (RuntimeError, ValueError, TypeError, IndexError):
            continue
    return loss(output)


def _plain_output(output: Any) -> Any:
    """Convert dictionaries of other packages (transformers' outputs) to plain ones."""
    items = getattr(output, "items", None)
    return dict(items()) if callable(items) and not isinstance(output, torch.Tensor) else output


# Temporary memory of CPU kernels, beyond their results.


def _scratch_bytes(func: Any, args: Any, made: Sequence[Any]) -> int:
    name = func._schema.name
    rule = _SCRATCH.get(name)
    if rule is None:
        return 0
    given = [each for each in tree_flatten(args)[0] if isinstance(each, torch.Tensor)]
    if not given or given[0].device.type != "cpu":
        return 0
    return int(rule(given, made))


def _nbytes(tensor: Any) -> int:
    return int(prod(tensor.shape) * tensor.element_size())


def _convolution(given: Sequence[Any], made: Sequence[Any]) -> int:
    """Return the bytes of copies in oneDNN's own layout, of inputs and outputs."""
    return sum(map(_nbytes, given[:2])) + sum(map(_nbytes, made))


def _lstm_backward(given: Sequence[Any], _made: Sequence[Any]) -> float:
    """Return the bytes of the gradients of gates and states of all time steps."""
    return _LSTM_TAKES * _nbytes(given[7]) if len(given) > 7 else 0


_SCRATCH: dict[str, Callable[[Sequence[Any], Sequence[Any]], float]] = {
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution,
    "aten::mkldnn_rnn_layer_backward": _lstm_backward,
}
