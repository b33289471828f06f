"""
PyTorch's tensors in a rescue: by name, each piece of memory once, and as parts of other values.

A contiguous tensor on the CPU is written from its own memory. A tensor on a device, or with
scattered elements, is copied when its turn comes, and the copy is freed before the next one.
Nothing is pickled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from watchdog_app.agent.state import values
from watchdog_app.agent.state.randomness import has_mps
from watchdog_app.rescue.checkpoint import format
from watchdog_app.rescue.checkpoint.format import Row, TensorEntry

_MOST_ITEMS, _MOST_BYTES = 4096, 64 << 20  # of a container
_PLAIN_DISPATCH = torch.Tensor.__torch_dispatch__


def obstacle(tensor: torch.Tensor) -> str | None:
    """Why the elements of a tensor cannot be written as bytes; None if they can."""
    if torch.nn.parameter.is_lazy(tensor):
        return "has no shape yet: run one batch through the model before Rescue(...)"
    if tensor.layout != torch.strided or tensor.is_nested:
        return "is sparse or nested, which a rescue cannot hold"
    if tensor.is_quantized:
        return "is quantized, which a rescue cannot hold"
    if tensor.device.type == "meta":
        return "has no memory (device meta)"
    if type(tensor).__torch_dispatch__ is not _PLAIN_DISPATCH:
        return f"is a {type(tensor).__name__}, whose parts a rescue does not know"
    return None


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether each process holds a part of a tensor (a DTensor, as FSDP2 makes them)."""
    return hasattr(tensor, "to_local")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this process holds, in the same memory; usually all of it."""
    return tensor.detach().to_local() if is_sharded(tensor) else tensor


def shard_like(tensor: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A tensor that is spread as `tensor`, of which this process holds `part`."""
    if not is_sharded(tensor):
        return part
    spread: Any = tensor
    return type(spread).from_local(
        part, spread.device_mesh, spread.placements, shape=tensor.shape, stride=tensor.stride()
    )


def type_name(tensor: torch.Tensor) -> str:
    """ "float32" for torch.float32."""
    return str(tensor.dtype).removeprefix("torch.")


def row(name: str, tensor: torch.Tensor) -> Row:
    """The row of a tensor in a rescue, or of the part that this process holds."""
    return name, type_name(tensor), tuple(local(tensor).shape)


def memory_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A key that is equal for two tensors with the same elements of the same memory."""
    tensor = local(tensor)
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
    """A tensor for the rescue's file; its memory is read when its bytes are needed."""
    nbytes = tensor.numel() * tensor.element_size()
    return format.tensor_entry(row(name, tensor), nbytes, lambda: _raw_bytes(tensor))


def from_bytes(type_: str, shape: Any, raw: Any) -> torch.Tensor:
    """A new CPU tensor with the elements that `entry` wrote."""
    dtype = getattr(torch, type_)
    # torch.tensor copies, unlike from_numpy: the file is mapped read-only.
    data = torch.tensor(np.frombuffer(raw, np.uint8))
    return data.view(dtype).reshape(tuple(shape))


def join_gradient(pieces: Any, read: Callable[[str], torch.Tensor], device: Any) -> torch.Tensor:
    """
    The gradient that `Tensors.add_gradient` recorded: one tensor, or the parts of a sparse one.
    """
    if isinstance(pieces, str):
        return read(pieces).to(device)
    indices, values = (read(pieces[each]).to(device) for each in ("indices", "values"))
    # Not coalesced: the order in which duplicate entries are added decides the last bits.
    return torch.sparse_coo_tensor(
        indices,
        values,
        tuple(pieces["shape"]),
        check_invariants=True,
        is_coalesced=pieces["coalesced"],
    )


def synchronize_devices() -> None:
    """Wait for all work on the devices: a copy would wait only for one stream."""
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_initialized():
            for index in range(module.device_count()):
                if kind != "cuda" or module.memory_reserved(index) > 0:
                    module.synchronize(index)
    if has_mps(torch):
        torch.mps.synchronize()


def copy_into(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """Set the elements of `tensor` in place, from a tensor of the same shape."""
    with torch.no_grad():
        local(tensor.detach()).copy_(source)


def _raw_bytes(tensor: torch.Tensor) -> memoryview:
    # detach() keeps this out of the autograd graph. Do not use `no_grad`: if a signal handler of
    # the program raised while leaving it, the training would continue without gradients.
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.device.type != "cpu":
        plain = plain.cpu()
    flat = plain.contiguous().reshape(-1)
    # NumPy has no bfloat16, so view the bytes. The array keeps the tensor alive.
    view: memoryview = flat.view(torch.uint8).numpy().data
    return view


class Tensors:
    """The tensors of one rescue: by name, and each piece of memory once."""

    def __init__(self) -> None:
        self.entries: list[TensorEntry] = []
        self.rows: list[Row] = []
        self._names: set[str] = set()
        self._known: dict[tuple[Any, ...], str] = {}
        # keeps the tensors alive, so that no other tensor gets their address
        self._tensors: list[Any] = []

    def any_trained(self) -> bool:
        """Whether one of the tensors is a weight, or was computed from one."""
        return any(tensor.requires_grad for tensor in self._tensors)

    def add(self, name: str, tensor: torch.Tensor) -> str:
        """
        Add a tensor; return its name in the rescue.

        Raises:
            TypeError: its bytes cannot be written.
        """
        tensor = local(tensor)
        why = obstacle(tensor)
        if why is not None:
            raise TypeError(f"{name} {why}")
        where = memory_key(tensor)
        if tensor.numel() and where in self._known:
            return self._known[where]
        while name in self._names:
            name += "+"
        self._names.add(name)
        self._known[where] = name
        self._tensors.append(tensor)
        self.entries.append(entry(name, tensor))
        self.rows.append(row(name, tensor))
        return name

    def add_gradient(self, name: str, gradient: torch.Tensor) -> Any:
        """
        Add a gradient, also of an embedding with `sparse=True`; return it for `join_gradient`.

        Raises:
            TypeError: its bytes cannot be written.
        """
        if gradient.layout is not torch.sparse_coo:
            return self.add(name, gradient)
        return {
            "indices": self.add(f"{name}/indices", gradient._indices()),
            "values": self.add(f"{name}/values", gradient._values()),
            "shape": list(gradient.shape),
            "coalesced": gradient.is_coalesced(),
        }


def encode(value: Any, name: str, tensors: Tensors) -> Any:
    """
    The value in JSON's types, see `values.encode`.

    Args:
        value: may contain tensors and arrays.
        name: name of the value, for the names of its tensors.
        tensors: receives its tensors and arrays.

    Raises:
        TypeError: the value contains something else; the message says where.
    """

    def leaf(item: Any, place: str) -> dict[str, Any] | None:
        if isinstance(item, torch.Tensor):
            grows = ["requires_grad"] if item.requires_grad and item.is_leaf else []
            held = tensors.add(place, item)
            return {values.TENSOR: [held, str(item.device), *grows]}
        if isinstance(item, np.ndarray) and item.dtype.kind != "O":
            return _encode_array(item, place, tensors)
        if isinstance(item, torch.dtype | torch.device):
            return {values.TORCH: [type(item).__name__, str(item).removeprefix("torch.")]}
        return {values.SIZE: list(item)} if isinstance(item, torch.Size) else None

    return values.encode(value, name, leaf)


def is_held(value: Any) -> bool:
    """Whether a rescue can hold a value with its tensors, and none of these is trained."""
    if isinstance(value, Sized) and not hasattr(value, "shape") and len(value) > _MOST_ITEMS:
        return False
    tensors = Tensors()
    with suppress(TypeError):
        encode(value, "", tensors)
        nbytes = sum(each.nbytes for each in tensors.entries)
        return nbytes <= _MOST_BYTES and not tensors.any_trained()
    return False


def decode(value: Any, read: Callable[[str], torch.Tensor]) -> Any:
    """
    The value that was given to `encode`; tensors are on their original device.

    Args:
        value: the result of `encode`, after JSON.
        read: returns a new tensor for a name.
    """

    def unleaf(tag: str, content: Any) -> Any:
        if tag == values.TENSOR:
            return _to_device(read(content[0]), content[1]).requires_grad_(len(content) > 2)
        if tag == values.ARRAY:
            return read(content[0]).numpy().view(np.dtype(content[1])).reshape(content[2])
        if tag == values.SIZE:
            return torch.Size(content)
        return torch.device(content[1]) if content[0] == "device" else getattr(torch, content[1])

    return values.decode(value, unleaf)


def tensor_name(value: Any) -> str:
    """The name in the rescue of a tensor that `encode` returned."""
    name: str = value[values.TENSOR][0]
    return name


def tensor_names(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Path and name in the rescue of each tensor in the result of `encode`."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from tensor_names(item, f"{path}/{index}")
    elif isinstance(value, dict):
        if len(value) == 1 and values.TENSOR in value:
            yield path, value[values.TENSOR][0]
            return
        for key, item in value.items():
            yield from tensor_names(item, f"{path}/{key}")


def settings(holder: Mapping[str, Any]) -> dict[str, Any]:
    """The plain numbers and words at the top of a dict; tuples of them as lists."""

    def is_plain(item: Any) -> bool:
        return type(item) in values.PLAIN or (type(item) is float and math.isfinite(item))

    return {
        str(key): list(item) if type(item) is tuple else item
        for key, item in holder.items()
        if is_plain(item) or (type(item) in (tuple, list) and all(map(is_plain, item)))
    }


def _encode_array(value: Any, name: str, tensors: Tensors) -> dict[str, Any]:
    if value.dtype.kind not in "biufc" or value.dtype.itemsize > 16:
        raise TypeError(f"{name} is an array of {value.dtype}, which a rescue cannot hold")
    native = value.dtype.newbyteorder("=")
    flat = np.ascontiguousarray(value, native).reshape(-1).view(np.uint8)
    flat = flat if flat.flags.writeable else flat.copy()
    stored_name = tensors.add(name, torch.from_numpy(flat))
    return {values.ARRAY: [stored_name, native.str, list(value.shape)]}


def _to_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    if device == "cpu" or tensor.is_meta:
        return tensor
    try:
        return tensor.to(device)
    except (RuntimeError, AssertionError):  # no such device here: the caller moves the tensor
        return tensor
