"""
What a `state_dict` holds, as JSON and tensors, such that it comes back with the types it had.

No pickle: a rescue must be readable when a class has moved, and must not run
code when it is read. Numbers, words, and the usual containers go into JSON, with
floats that keep every bit; tensors and arrays are handed on by name, themselves
and not copies, each piece of memory once however many names it has.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from watchdog_app.agent.loops import torch_tensors
from watchdog_app.agent.saving.element_types import Row
from watchdog_app.agent.saving.layout import TensorEntry

_PLAIN = (bool, int, str, type(None))
_TENSOR, _ARRAY, _SCALAR = "__tensor__", "__array__", "__scalar__"
_FLOAT, _COMPLEX, _BYTES, _TORCH = "__float__", "__complex__", "__bytes__", "__torch__"
_TUPLE, _SIZE, _SET, _DEQUE = "__tuple__", "__size__", "__set__", "__deque__"
_PAIRS, _ORDERED, _COUNTER = "__pairs__", "__ordered__", "__counter__"
_TAGS = frozenset(
    {
        *(_TENSOR, _ARRAY, _SCALAR, _FLOAT, _COMPLEX, _BYTES, _TORCH),
        *(_TUPLE, _SIZE, _SET, _DEQUE, _PAIRS, _ORDERED, _COUNTER),
    }
)
_MAPPINGS: dict[Any, str] = {
    dict: _PAIRS,
    OrderedDict: _ORDERED,
    Counter: _COUNTER,
    defaultdict: _PAIRS,
}
_SPECIAL_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


class Tensors:
    """The tensors of one rescue: by name, and each piece of memory once."""

    def __init__(self) -> None:
        self.entries: list[TensorEntry] = []
        self.rows: list[Row] = []
        self._names: set[str] = set()
        self._known: dict[tuple[Any, ...], str] = {}
        self._held: list[Any] = []  # as long as they live, no other gets their address

    def any_trained(self) -> bool:
        """Whether one of them is a weight, or was computed from one."""
        return any(tensor.requires_grad for tensor in self._held)

    def add(self, name: str, tensor: torch.Tensor) -> str:
        """
        Note a tensor; the name that it has in the rescue.

        Raises:
            TypeError: its bytes cannot be written.
        """
        why = torch_tensors.obstacle(tensor)
        if why is not None:
            raise TypeError(f"{name} {why}")
        place = torch_tensors.place(tensor)
        if tensor.numel() and place in self._known:
            return self._known[place]
        while name in self._names:
            name += "+"
        self._names.add(name)
        self._known[place] = name
        self._held.append(tensor)
        self.entries.append(torch_tensors.entry(name, tensor))
        self.rows.append(torch_tensors.row(name, tensor))
        return name

    def add_gradient(self, name: str, gradient: torch.Tensor) -> Any:
        """
        Note a gradient, of an embedding with `sparse=True` too; for `torch_tensors.whole`.

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
    The value in JSON's types.

    Args:
        value: of numbers, strings, None, bytes, containers, arrays and tensors.
        name: of the value, for the names of its tensors.
        tensors: receives its tensors and arrays.

    Raises:
        TypeError: it holds something else; the message says where.
    """

    def inner(item: Any, place: Any) -> Any:
        return encode(item, f"{name}/{place}", tensors)

    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else {_FLOAT: repr(value)}
    if isinstance(value, torch.Tensor):
        return {_TENSOR: [tensors.add(name, value), str(value.device)]}
    if isinstance(value, (np.generic, np.ndarray)):
        return _of_numpy(value, name, tensors)
    if kind is complex:
        return {_COMPLEX: [encode(value.real, name, tensors), encode(value.imag, name, tensors)]}
    if kind in (bytes, bytearray):
        return {_BYTES: base64.b64encode(value).decode("ascii")}
    if kind in (torch.dtype, torch.device):
        return {_TORCH: [kind.__name__, str(value).removeprefix("torch.")]}
    if kind is list:
        return [inner(item, index) for index, item in enumerate(value)]
    if kind in (tuple, torch.Size):
        tag = _TUPLE if kind is tuple else _SIZE
        return {tag: [inner(item, index) for index, item in enumerate(value)]}
    if kind in (set, frozenset):
        items = [inner(item, index) for index, item in enumerate(value)]
        return {_SET: [kind is frozenset, items]}
    if kind is deque:
        items = [inner(item, index) for index, item in enumerate(value)]
        return {_DEQUE: [value.maxlen, items]}
    if kind in _MAPPINGS:
        named = all(type(key) is str for key in value) and not _TAGS & set(value)
        if named and _MAPPINGS[kind] == _PAIRS:
            return {key: inner(item, key) for key, item in value.items()}
        return {
            _MAPPINGS[kind]: [[inner(key, "key"), inner(item, key)] for key, item in value.items()]
        }
    raise TypeError(f"{name} is a {kind.__name__}, which a rescue cannot hold")


def decode(value: Any, read: Callable[[str], torch.Tensor]) -> Any:
    """
    The value that `encode` was given; tensors are on the device that they were on.

    Args:
        value: what `encode` returned, after JSON.
        read: name to a tensor of its own.
    """
    if isinstance(value, list):
        return [decode(item, read) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, held),) = value.items()
        if tag in _TAGS:
            return _tagged(tag, held, read)
    return {key: decode(item, read) for key, item in value.items()}


def tensor_name(value: Any) -> str:
    """Of what `encode` returned for a tensor: its name in the rescue."""
    name: str = value[_TENSOR][0]
    return name


def tensor_names(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Of what `encode` returned: place of each tensor within, and its name in the rescue."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from tensor_names(item, f"{path}/{index}")
    elif isinstance(value, dict):
        if len(value) == 1 and _TENSOR in value:
            yield path, value[_TENSOR][0]
            return
        for key, item in value.items():
            yield from tensor_names(item, f"{path}/{key}")


def settings(value: Mapping[str, Any]) -> dict[str, Any]:
    """The plain numbers and words at the top of a dict, as JSON."""
    tensors = Tensors()
    return {
        str(key): encode(item, str(key), tensors)
        for key, item in value.items()
        if type(item) in (*_PLAIN, float)
        or (type(item) in (tuple, list) and all(type(each) in (*_PLAIN, float) for each in item))
    }


def _of_numpy(value: Any, name: str, tensors: Tensors) -> Any:
    if value.dtype.kind not in "biufc" or value.dtype.itemsize > 16:
        raise TypeError(f"{name} is an array of {value.dtype}, which a rescue cannot hold")
    native = value.dtype.newbyteorder("=")
    if isinstance(value, np.generic):
        raw = base64.b64encode(value.astype(native).tobytes()).decode("ascii")
        return {_SCALAR: [native.str, raw]}
    flat = np.ascontiguousarray(value, native).reshape(-1).view(np.uint8)
    flat = flat if flat.flags.writeable else flat.copy()
    held = tensors.add(name, torch.from_numpy(flat))
    return {_ARRAY: [held, native.str, list(value.shape)]}


def _tagged(tag: str, held: Any, read: Callable[[str], torch.Tensor]) -> Any:
    if tag == _TENSOR:
        return _moved(read(held[0]), held[1])
    if tag == _ARRAY:
        return read(held[0]).numpy().view(np.dtype(held[1])).reshape(held[2])
    if tag == _SCALAR:
        return np.frombuffer(base64.b64decode(held[1]), np.dtype(held[0]))[0]
    if tag == _FLOAT:
        return _SPECIAL_FLOATS[held]
    if tag == _BYTES:
        return base64.b64decode(held)
    if tag == _TORCH:
        return torch.device(held[1]) if held[0] == "device" else getattr(torch, held[1])
    if tag == _DEQUE:
        return deque(decode(held[1], read), held[0])
    if tag == _SET:
        items = decode(held[1], read)
        return frozenset(items) if held[0] else set(items)
    items = decode(held, read)
    if tag == _COMPLEX:
        return complex(*items)
    if tag == _TUPLE:
        return tuple(items)
    if tag == _SIZE:
        return torch.Size(items)
    if tag == _COUNTER:
        return Counter(dict(items))
    return OrderedDict(items) if tag == _ORDERED else dict(items)


def _moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    if device == "cpu":
        return tensor
    try:
        return tensor.to(device)
    except (RuntimeError, AssertionError):  # no such device here: who takes it moves it
        return tensor
