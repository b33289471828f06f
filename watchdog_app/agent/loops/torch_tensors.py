"""
The bytes of PyTorch's tensors: looked at one tensor at a time, and made into tensors again.

On a CPU a tensor that lies in one piece is written from where it is. From a
device, and where its elements are strewn, one tensor is copied when it is its
turn and let go of before the next. Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from watchdog_app.agent.saving import element_types
from watchdog_app.agent.saving.element_types import Row
from watchdog_app.agent.saving.layout import TensorEntry

_PLAIN_DISPATCH = torch.Tensor.__torch_dispatch__


def obstacle(tensor: torch.Tensor) -> str | None:
    """Why the elements of a tensor cannot be written as bytes; None when they can."""
    if torch.nn.parameter.is_lazy(tensor):
        return "has no shape yet: run one batch through the model before Rescue(...)"
    if hasattr(tensor, "_local_tensor"):
        return (
            "is spread over several processes; a rescue holds one process's state. Use "
            "torch.distributed.checkpoint"
        )
    if tensor.layout != torch.strided or tensor.is_nested:
        return "is sparse or nested, which a rescue cannot hold"
    if tensor.is_quantized:
        return "is quantized, which a rescue cannot hold"
    if tensor.device.type == "meta":
        return "has no memory (device meta)"
    if type(tensor).__torch_dispatch__ is not _PLAIN_DISPATCH:
        return f"is a {type(tensor).__name__}, whose parts a rescue does not know"
    return None


def type_name(tensor: torch.Tensor) -> str:
    """ "float32" for torch.float32."""
    return str(tensor.dtype).removeprefix("torch.")


def row(name: str, tensor: torch.Tensor) -> Row:
    """What a rescue says of a tensor."""
    return name, type_name(tensor), tuple(tensor.shape)


def described(type_: str, shape: Any) -> str:
    """ "float32 (3, 4)"."""
    return f"{type_} ({', '.join(str(size) for size in shape)})"


def place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for two tensors that are the same elements of the same memory."""
    return (
        tensor.device,
        tensor.data_ptr(),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
        tensor.is_conj(),
        tensor.is_neg(),
    )


def entry(name: str, tensor: torch.Tensor) -> TensorEntry:
    """A tensor for the rescue's file; its memory is looked at when its bytes are wanted."""
    nbytes = tensor.numel() * tensor.element_size()
    return element_types.entry(row(name, tensor), nbytes, lambda: _bytes(tensor))


def from_bytes(type_: str, shape: Any, raw: Any) -> torch.Tensor:
    """A tensor of its own with the elements that `entry` wrote, on the CPU."""
    dtype = getattr(torch, type_)
    # torch.tensor copies, unlike from_numpy: the file is mapped for reading only.
    data = torch.tensor(np.frombuffer(raw, np.uint8))
    return data.view(dtype).reshape(tuple(shape))


def whole(pieces: Any, read: Callable[[str], torch.Tensor], device: Any) -> torch.Tensor:
    """The gradient that `Tensors.add_gradient` noted: one tensor, or the pieces of a sparse one."""
    if isinstance(pieces, str):
        return read(pieces).to(device)
    indices, values = (read(pieces[each]).to(device) for each in ("indices", "values"))
    # Not coalesced: which of its doubles are added up first decides the last bits.
    return torch.sparse_coo_tensor(
        indices,
        values,
        tuple(pieces["shape"]),
        check_invariants=True,
        is_coalesced=pieces["coalesced"],
    )


def settle_devices() -> None:
    """Wait for what the devices still compute: a copy would wait for one stream of them only."""
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_initialized():
            for index in range(module.device_count()):
                if kind != "cuda" or module.memory_reserved(index) > 0:
                    module.synchronize(index)
    mps = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        torch.mps.synchronize()


def copy_into(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """Set the elements of `tensor` in place, from a tensor of the same shape."""
    with torch.no_grad():
        tensor.detach().copy_(source)


def _bytes(tensor: torch.Tensor) -> memoryview:
    # Detached, nothing of this is recorded. Not under `no_grad`: a signal handler of the program
    # that raises while that is being left would leave the training without gradients.
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.device.type != "cpu":
        plain = plain.cpu()
    flat = plain.contiguous().reshape(-1)
    # NumPy has no bfloat16: its bytes need no name. The array keeps the tensor alive.
    view: memoryview = flat.view(torch.uint8).numpy().data
    return view
