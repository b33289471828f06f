"""State dicts become JSON and tensors, and are restored with their types and bits."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from watchdog_app.agent.state import torch_tensors, values
from watchdog_app.agent.state.torch_tensors import Tensors

pytestmark = pytest.mark.torch


def through_json(value: Any) -> Any:
    """Convert as a rescue does: JSON, and the raw bytes of the tensors."""
    tensors = Tensors()
    text = json.dumps(torch_tensors.encode(value, "it", tensors), allow_nan=False)
    rows = {row[0]: row for row in tensors.rows}
    raw = {entry.name: bytes(entry.view()) if entry.nbytes else b"" for entry in tensors.entries}

    def read(name: str) -> torch.Tensor:
        return torch_tensors.from_bytes(rows[name][1], rows[name][2], raw[name])

    return torch_tensors.decode(json.loads(text), read)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        2**70,
        0.1 + 0.2,
        -0.0,
        math.inf,
        -math.inf,
        5e-324,
        complex(0.1, math.inf),
        "name\x00\n\ud83d",
        b"\x00\xff",
        (1, (2.5, None)),
        [],
        {},
        {"a": {1: "b", (2, 3): [4]}},
        [{"a": 1, "b": 0.5}, {"b": -0.0}, {}],
        [{"a": 1, "b": 0.5}, {"b": math.nan}],
        [{"a": 1}, {"a": [1]}],
        [{"a": 1}, {"__tuple__": 1}],
        [{"a": 1}, {1: "a"}],
        [(1, 0.5), (True, None), ()],
        [[1, 0.5], [math.inf]],
        [(1,), [1]],
        {"__tensor__": ["not", "ours"]},
        {"__tuple__": 1},
        Counter({30: 1, 60: 2}),
        OrderedDict([("b", 1), ("a", 2)]),
        {1, 2},
        frozenset({("x", 1)}),
        deque([1, 2], maxlen=5),
        torch.Size([2, 3]),
        torch.bfloat16,
        torch.device("cpu"),
        np.float32(0.1),
        np.int64(-1),
    ],
)
def test_a_value_comes_back_with_its_type(value: Any):
    """Numbers keep every bit, keys their type, containers their class."""
    found = through_json(value)

    assert type(value) is type(found)
    assert repr(value) == repr(found)


@pytest.mark.parametrize("row", [(1, 0.5), [1, 0.5], {"step": 1, "loss": 0.5}])
def test_a_long_history_is_encoded_without_a_call_for_each_of_its_values(row: Any):
    """Near a limit this happens at each step."""
    calls: list[Any] = []

    found = values.encode([row] * 9, "history", lambda value, _: calls.append(value))

    assert [values.encode(row, "row", lambda *_: None)] * 9 == found
    assert 1 == len(calls)


def test_a_counter_still_counts_what_it_lacks():
    """A MultiStepLR reads its milestones for every epoch."""
    assert 0 == through_json({"milestones": Counter({30: 1})})["milestones"][7]


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.float8_e4m3fn, torch.int64, torch.int8, torch.uint8, torch.bool),
        *(torch.complex64, torch.complex128, torch.uint16),
    ],
)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4)])
def test_a_tensor_keeps_every_bit(dtype: torch.dtype, shape: tuple[int, ...]):
    """This includes scalars, empty tensors and types that NumPy lacks."""
    size = torch.empty((), dtype=dtype).element_size() * math.prod(shape)
    bits = torch.randint(0, 2, (size,), dtype=torch.uint8)
    tensor = bits.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)

    found = through_json(tensor)

    assert (tensor.dtype, tensor.shape) == (found.dtype, found.shape)
    expected = tensor.contiguous().reshape(-1).view(torch.uint8)
    assert torch.equal(expected, found.contiguous().reshape(-1).view(torch.uint8))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(12.0)[::3],
        torch.arange(3.0).expand(4, 3),
        torch.arange(16.0).reshape(1, 2, 2, 4).to(memory_format=torch.channels_last),
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=["transposed", "strided", "expanded", "channels_last", "conjugated", "parameter"],
)
def test_a_view_is_written_as_what_it_shows(tensor: torch.Tensor):
    """The file has the visible elements, not the whole storage."""
    assert torch.equal(tensor.detach(), through_json(tensor))


def test_tied_weights_are_written_once():
    """Two names of one storage are one tensor in the file, and both are restored."""
    embedding = nn.Embedding(10, 4)
    head = nn.Linear(4, 10, bias=False)
    head.weight = embedding.weight
    tensors = Tensors()

    torch_tensors.encode({"in": embedding.state_dict(), "out": head.state_dict()}, "m", tensors)

    assert ["m/in/weight"] == [entry.name for entry in tensors.entries]


def test_two_parts_of_one_storage_are_two_tensors():
    """An example is a flat buffer that is split into weights."""
    flat = torch.arange(6.0)
    found = through_json({"first": flat[:3], "second": flat[3:]})

    assert [0.0, 1.0, 2.0] == found["first"].tolist()
    assert [3.0, 4.0, 5.0] == found["second"].tolist()


def test_nothing_is_copied_before_its_turn():
    """An entry refers to the tensor's own memory."""
    tensor = torch.zeros(4)
    tensors = Tensors()
    tensors.add("it", tensor)
    tensor.fill_(7)

    assert np.full(4, 7, np.float32).tobytes() == bytes(tensors.entries[0].view())


def test_an_array_comes_back_in_its_byte_order():
    """This includes big-endian and read-only arrays."""
    array = np.arange(5, dtype=">i4")
    array.flags.writeable = False

    assert [0, 1, 2, 3, 4] == through_json([array])[0].tolist()


class Own:
    pass


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Own(), "it is a Own"),
        ({"a": [1, Own()]}, "it/a/1 is a Own"),
        ({"f": len}, "it/f is a builtin_function_or_method"),
        (np.array(["text"]), "an array of <U4"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "device meta"),
        (nn.parameter.UninitializedParameter(), "run one batch"),
    ],
)
def test_what_cannot_be_saved_is_named_with_its_place(value: Any, said: str):
    """The error comes before the training starts, and pickle is never used."""
    with pytest.raises(TypeError, match=said):
        torch_tensors.encode(value, "it", Tensors())
