"""The safetensors layout, compared with the safetensors package."""

from __future__ import annotations

import json
import math

import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from watchdog_app.base.errors import RescueDamaged, RescueError
from watchdog_app.rescue.checkpoint.format import (
    ALIGN_BYTES,
    ITEM_BYTES,
    TensorEntry,
    header_bytes,
    parse_header,
    plan_layout,
)


def entry(name, dtype, shape, data=None):
    nbytes = ITEM_BYTES[dtype] * math.prod(shape)
    content = bytes(nbytes) if data is None else data
    return TensorEntry(name, dtype, tuple(shape), nbytes, lambda: memoryview(content))


def file_of(layout):
    return layout.header + b"".join(bytes(each.view()) for each in layout.entries)


NAMES = st.text(max_size=30).filter(lambda name: name != "__metadata__")
# JSON readers disagree about lone surrogates; Python makes none from a model's names.
NAMES = NAMES.filter(lambda name: name.isascii() or name.encode("utf-8", "ignore").decode() == name)


@st.composite
def entries(draw):
    found = []
    for name in draw(st.lists(NAMES, unique=True, max_size=8)):
        dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        size = ITEM_BYTES[dtype] * math.prod(shape)
        data = draw(st.binary(min_size=size, max_size=size))
        found.append(entry(name, dtype, shape, data))
    return found


@settings(deadline=None, max_examples=150)
@given(entries())
def test_files_of_this_layout_are_read_by_the_safetensors_package(tensors):
    """Names, types, shapes and bytes are unchanged, for every type and empty tensors."""
    found = safetensors.deserialize(file_of(plan_layout(tensors)))

    expected = {e.name: (e.dtype, list(e.shape), bytes(e.view())) for e in tensors}
    assert expected == {
        name: (item["dtype"], list(item["shape"]), bytes(item["data"])) for name, item in found
    }


@settings(deadline=None, max_examples=150)
@given(entries())
def test_parse_finds_what_plan_laid_out(tensors):
    """A parsed header gives each tensor its place, aligned to its element size."""
    content = file_of(plan_layout(tensors))

    length = header_bytes(content[:8], len(content))
    found = parse_header(content[:length], len(content))

    assert length % ALIGN_BYTES == 0
    assert {each.name for each in tensors} == set(found)
    for each in tensors:
        info = found[each.name]
        assert (each.dtype, each.shape, each.nbytes) == (info.dtype, info.shape, info.nbytes)
        assert bytes(each.view()) == content[info.begin : info.end]
        assert info.begin % ITEM_BYTES[each.dtype] == 0


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([entry("a", "U8", (1,)), entry("a", "F32", (1,))], "Two tensors are called 'a'"),
        ([entry("__metadata__", "U8", (1,))], "__metadata__"),
        ([TensorEntry("c", "C64", (1,), 8, lambda: memoryview(b""))], "'C64'"),
        ([TensorEntry("n", "F32", (2,), 7, lambda: memoryview(b""))], "7 bytes long"),
        ([TensorEntry("m", "U8", (-1, -1), 1, lambda: memoryview(b"x"))], "'m'"),
    ],
)
def test_what_cannot_be_laid_out_is_refused_by_name(tensors, words):
    """The message names the tensor."""
    with pytest.raises(RescueError, match=words):
        plan_layout(tensors)


def made(table, data=b""):
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01\x00\x00",
        (2**63).to_bytes(8, "little"),
        made(b"{}")[:-1],
        made(b"[]"),
        made(b"\xff\xfe"),
        made(b"[" * 100000),
        made({"a": 1}),
        made({"a": {}}),
        made({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}),
        made({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"xy"),
        made({"a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}, b"xy"),
        made({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 1]}}, b"x"),
        made({"a": {"dtype": "U8", "shape": [True], "data_offsets": [0, 1]}}, b"x"),
        made({"a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, -1]}}),
        made({"a": {"dtype": ["U8"], "shape": [1], "data_offsets": [0, 1]}}, b"x"),
        made({"a": {"dtype": "U8", "shape": [1.0], "data_offsets": [0, 1]}}, b"x"),
        made(
            {
                "a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
                "b": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]},
            },
            b"xyz",
        ),
        made(
            b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
            b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
        ),
    ],
)
def test_a_header_that_makes_no_sense_is_damage(content):
    """Any bytes cause RescueDamaged and no other exception."""
    with pytest.raises(RescueDamaged):
        parse_header(content[: header_bytes(content[:8], len(content))], len(content))
