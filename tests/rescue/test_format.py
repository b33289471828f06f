"""The safetensors layout, compared with the safetensors package."""

from __future__ import annotations

import json
import math
import zlib

import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from watchdog_app.base.errors import RescueDamaged, RescueError
from watchdog_app.rescue.checkpoint.format import (
    ALIGN_BYTES,
    ITEM_BYTES,
    TensorEntry,
    build_manifest,
    plan_layout,
    read_manifest,
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


def manifest_of(layout):
    return build_manifest(
        layout, {}, step=0, created_unix_s=0.0, meta={}, writer="",
    )  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(entries())
def test_a_manifest_says_where_each_tensor_lies(tensors):
    """Each tensor has its place, aligned to its element size."""
    layout = plan_layout(tensors)
    content = file_of(layout)

    read = read_manifest(manifest_of(layout)).layout
    found = read.tensors()

    assert (layout.header, layout.file_bytes) == (read.header, read.file_bytes)
    assert len(read.header) % ALIGN_BYTES == 0
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


GOOD = {"name": "a", "dtype": "U8", "shape": [1], "bytes": 1, "crc32": "0"}


@pytest.mark.parametrize(
    "tensors",
    [
        [{}],
        ["a"],
        [None],
        {"a": GOOD},
        7,
        [GOOD, GOOD],
        [{**GOOD, "name": 1}],
        [{**GOOD, "name": ["a"]}],
        [{**GOOD, "name": "__metadata__"}],
        [{**GOOD, "dtype": ["U8"]}],
        [{**GOOD, "dtype": "C64"}],
        [{**GOOD, "shape": [2]}],
        [{**GOOD, "shape": [True]}],
        [{**GOOD, "shape": [1.0]}],
        [{**GOOD, "shape": [-1], "bytes": -1}],
        [{**GOOD, "shape": [2**63], "bytes": 2**63}],
        [{**GOOD, "shape": [1] * 300}],
        [{**GOOD, "shape": 1}],
        [{**GOOD, "bytes": True}],
        [{**GOOD, "crc32": "x"}],
    ],
)
def test_tensors_that_make_no_sense_are_damage(tensors):
    """Any values cause RescueDamaged and no other exception."""
    body = {
        "format": 2, "created_unix_s": 0, "step": 0, "missing": [], "meta": {}, "reason": None,
        "run": None, "identity": None, "position": None,
        "state": {"checksum": "crc32", "tensors": tensors},
    }  # fmt: skip
    text = json.dumps(body).encode()
    data = b'{"crc32": "%08x", "rescue":\n%s}\n' % (zlib.crc32(text), text)

    with pytest.raises(RescueDamaged):
        read_manifest(data)
