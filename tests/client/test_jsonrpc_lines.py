"""Bytes to messages and back, with hostile bytes."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchdog_app.base.errors import ProtocolError
from watchdog_app.client.jsonrpc import (
    INVALID_REQUEST,
    MAX_LINE_BYTES,
    PARSE_ERROR,
    BadLine,
    LineDecoder,
    LineTooLong,
    decode,
    encode,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.text(), inner), max_leaves=20)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(st.text(), VALUES), max_size=5), st.integers(1, 50))
def test_messages_come_back_whatever_the_pieces(messages, size):
    """Encoded messages that are cut into pieces of any size decode to the same."""
    data = b"".join(encode(message) for message in messages)
    decoder = LineDecoder()

    found = [m for i in range(0, len(data), size) for m in decoder.feed(data[i : i + size])]

    assert messages == found
    assert 0 == decoder.pending_bytes


def test_a_line_end_inside_a_text_ends_no_line():
    """Line ends in texts are escaped."""
    assert 1 == encode({"text": "a\nb\r\n"}).count(b"\n")


def test_a_name_that_is_no_utf8_survives():
    """File names may contain lone surrogates, which return unchanged."""
    name = b"\xff\xfe.ipynb".decode("utf-8", "surrogateescape")
    assert {"name": name} == decode(encode({"name": name}))


def test_numbers_that_json_lacks_become_null():
    """Infinity and NaN become null, at any depth."""
    line = encode({"high_s": float("inf"), "deep": [{"x": float("nan")}, (1.5,)]})
    assert {"high_s": None, "deep": [{"x": None}, [1.5]]} == json.loads(line)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", PARSE_ERROR),
        (b"nonsense", PARSE_ERROR),
        (b'{"a": NaN}', PARSE_ERROR),
        (b'{"a": -Infinity}', PARSE_ERROR),
        (b'{"a": "\xff"}', PARSE_ERROR),
        (b"\xff\xfe{\x00}\x00", PARSE_ERROR),
        (b"[" * 200_000, PARSE_ERROR),
        (b'{"a":' * 100_000, PARSE_ERROR),
        (b'{"a": ' + b"9" * 5000 + b"}", PARSE_ERROR),
        (b"[]", INVALID_REQUEST),
        (b'[{"jsonrpc": "2.0"}]', INVALID_REQUEST),
        (b'"text"', INVALID_REQUEST),
        (b"null", INVALID_REQUEST),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_line_that_is_no_message_is_named_so(line, code):
    """Each fault has its code, and always raises BadLine."""
    with pytest.raises(BadLine) as caught:
        decode(line)
    assert code == caught.value.code


def test_a_bad_line_does_not_hide_the_next():
    """`lines` returns every line; the caller decodes them one by one."""
    assert [b"nonsense", b"{}"] == LineDecoder().lines(b"nonsense\n\n  \n{}\n")


@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_a_line_without_end_is_refused(pieces):
    """The memory for an unfinished line is bounded."""
    decoder = LineDecoder(limit_bytes=10_000)
    piece = b"x" * (20_000 // pieces)

    def send():
        for _ in range(pieces + 1):
            decoder.lines(piece)

    with pytest.raises(LineTooLong):
        send()
    assert 0 == decoder.pending_bytes


def test_pieces_of_two_bytes_take_no_more_than_they_hold():
    """The decoder's memory stays close to the bytes it holds, however small the pieces are."""
    decoder = LineDecoder()
    tracemalloc.start()
    try:
        for _ in range(50_000):
            decoder.lines(bytes([120, 121]))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert 100_000 == decoder.pending_bytes
    assert held_bytes < 2 * decoder.pending_bytes
    assert [b"xy" * 50_000 + b"z"] == decoder.lines(b"z\n")


def test_the_longest_line_is_taken_and_one_byte_more_is_not():
    """The limit is exact, with the line end in the same piece or in the next."""
    assert 1 == len(LineDecoder(10).lines(b"x" * 10 + b"\n"))
    with pytest.raises(LineTooLong):
        LineDecoder(10).lines(b"x" * 11 + b"\n")


def test_a_message_that_is_too_long_is_not_sent():
    """The sender gets the error, not the receiver."""
    with pytest.raises(ProtocolError, match="too long"):
        encode({"text": "x" * MAX_LINE_BYTES})
