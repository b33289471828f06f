"""Parsers of foreign data return or raise a documented error, within seconds."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, os.path.dirname(__file__))
from fuzz_targets import TARGETS, WORDS

CORPUS = Path(__file__).parent / "corpus"
_EXAMPLES = 40
_SLOW_S = 5.0  # per input: more than a loaded machine needs

PIECES = st.lists(st.one_of(st.sampled_from(WORDS), st.binary(max_size=24)), max_size=24).map(
    b"".join
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
    | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from([w.decode("latin-1") for w in WORDS[:60] if len(w) < 20])
                      | st.text(max_size=4), inner, max_size=6),
    max_leaves=12,
)  # fmt: skip


def as_json(value) -> bytes:
    import json

    return json.dumps(value).encode()


def seeds(name: str) -> list[Path]:
    return sorted((CORPUS / name).glob("*")) if (CORPUS / name).is_dir() else []


@pytest.mark.parametrize("name", sorted(TARGETS))
@settings(
    max_examples=_EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=PIECES | JSON.map(as_json))
def test_nothing_that_is_read_raises_what_it_does_not_promise(name, data):
    """Every run uses the same inputs, and each input ends soon."""
    began = time.monotonic()

    TARGETS[name](data)

    assert time.monotonic() - began < _SLOW_S


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_what_was_found_once_stays_mended(name):
    """The corpus holds seeds that reach deep code and every input that once broke a parser."""
    assert seeds(name), f"tests/fuzz/corpus/{name} has no seed"
    for path in seeds(name):
        began = time.monotonic()
        TARGETS[name](path.read_bytes())
        assert time.monotonic() - began < _SLOW_S, path


def test_a_shape_of_endless_numbers_costs_no_hours():
    """The reader refuses numbers of thousands of digits before it multiplies them."""
    number = b"1" + b"0" * 4000
    tensor = b'{"name":"a","dtype":"F32","shape":[%s],"bytes":0,"crc32":"0"}'
    body = (
        b'{"format":1,"created_unix_s":1,"step":1,"meta":{},'
        b'"state":{"checksum":"crc32","tensors":[%s]}}'
    )
    began = time.monotonic()

    TARGETS["rescue_manifest"](body % (tensor % b",".join([number] * 200)))

    assert time.monotonic() - began < 2.0


def test_a_packed_trace_of_one_endless_line_takes_no_memory(tmp_path):
    """A few kB would expand to gigabytes. The reader stops at the first line that is too long."""
    import gzip
    import tracemalloc

    from watchdog_app.base.errors import UsageError
    from watchdog_app.core.replay import trace

    path = tmp_path / "x.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"t,used,limit\n")
        for _ in range(60):
            file.write(bytes(1 << 20))
    tracemalloc.start()

    with pytest.raises(UsageError, match="holds no samples"):
        trace.read(str(path))

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20
