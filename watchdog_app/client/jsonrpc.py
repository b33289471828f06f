"""
JSON-RPC 2.0 without batches: one JSON object a line, at most 1 MiB a line.

Neither side trusts the other. This module refuses endless lines, endless nesting, numbers that JSON
does not define and text that is not UTF-8. The code behind it need not check for them.
"""

from __future__ import annotations

import json

from watchdog_app.base.errors import ProtocolError

TYPE_CHECKING = False  # the typing module costs more than this whole package
if TYPE_CHECKING:
    from typing import Any, Final

PROTOCOL_VERSION: Final = 2
MAX_LINE_BYTES: Final = 1024 * 1024

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
REFUSED: Final = -32000
VERSIONS_DIFFER: Final = -32001

_ID_CHARS = 200


class BadLine(ProtocolError):
    """
    A line is not a valid message. The lines after it may be valid.

    Args:
        message: the reason.
        code: a JSON-RPC error code.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class LineTooLong(ProtocolError):
    """More than `MAX_LINE_BYTES` without a newline: the stream cannot be read further."""


class TooLongToSend(ProtocolError):
    """An outgoing message is longer than `MAX_LINE_BYTES`."""


class LineDecoder:
    """Joins received pieces of any size into lines. Each connection needs its own decoder."""

    __slots__ = ("_limit", "_partial_line")

    def __init__(self, limit_bytes: int = MAX_LINE_BYTES) -> None:
        self._limit = limit_bytes
        # The unfinished line, joined at once: a list of 2-byte pieces would take 57 bytes each.
        self._partial_line = bytearray()

    def lines(self, data: bytes) -> list[bytes]:
        """
        The lines that `data` completes, in order, without newlines and without blank lines.

        Raises:
            LineTooLong: the stream cannot be read further.
        """
        parts = data.split(b"\n")
        rest = parts.pop()
        found: list[bytes] = []
        for part in parts:
            line = part
            if self._partial_line:
                partial_line, self._partial_line = self._partial_line, bytearray()
                partial_line += part
                line = bytes(partial_line)
            elif not part:
                continue  # many empty lines must cost little
            if len(line) > self._limit:
                raise self._line_too_long()
            if not line.isspace():
                found.append(line)
        if rest:
            if len(self._partial_line) + len(rest) > self._limit:
                raise self._line_too_long()
            self._partial_line += rest
        return found

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """
        The messages that `data` completes, in order.

        Raises:
            BadLine: a line is not a JSON object; the messages before it in `data` are lost.
            LineTooLong: the stream cannot be read further.
        """
        return [decode(line) for line in self.lines(data)]

    @property
    def pending_bytes(self) -> int:
        """Bytes of the unfinished line."""
        return len(self._partial_line)

    def _line_too_long(self) -> LineTooLong:
        self._partial_line = bytearray()
        return LineTooLong(f"A message is longer than {self._limit} bytes; the connection is shut.")


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


# Built once: json.loads builds a new decoder at every call that has arguments.
_DECODER = json.JSONDecoder(parse_constant=_reject_constant)
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False)


def decode(line: bytes) -> dict[str, Any]:
    """
    The message in one line.

    Raises:
        BadLine: `code` tells invalid JSON from JSON that is not an object.
    """
    try:
        message = _DECODER.decode(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError: bad UTF-8 or JSON, huge integers
        raise BadLine(f"Not JSON: {str(error)[:120]}", PARSE_ERROR) from error
    if not isinstance(message, dict):
        what = "a batch; send one message a line" if isinstance(message, list) else "no object"
        raise BadLine(f"A message is a JSON object; this is {what}.", INVALID_REQUEST)
    return message


def encode(message: dict[str, Any]) -> bytes:
    """
    A message as one line with its newline. NaN and infinite numbers become null, as JSON has
    neither.

    Raises:
        TooLongToSend: the line is longer than `MAX_LINE_BYTES`.
        TypeError: the message holds a value that JSON cannot represent.
    """
    try:
        text = _ENCODER.encode(message)
    except ValueError:
        text = _ENCODER.encode(_replace_non_finite(message))
    line = text.encode("ascii") + b"\n"  # the encoder escapes the rest, lone surrogates included
    if len(line) > MAX_LINE_BYTES:
        raise TooLongToSend(f"A message of {len(line)} bytes is too long to be sent.")
    return line


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(item) for item in value]
    return value


def request(id_: int | str, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    """
    A message that expects an answer.

    Args:
        id_: the id that the answer repeats.
        method: a method of docs/protocol.md.
        params: the parameters of the method.
    """
    return {"jsonrpc": "2.0", "id": id_, "method": method, "params": params or {}}


def notification(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    """
    A message that gets no answer.

    Args:
        method: a method of docs/protocol.md.
        params: the parameters of the method.
    """
    return {"jsonrpc": "2.0", "method": method, "params": params or {}}


def result(id_: int | str, value: Any) -> dict[str, Any]:
    """
    The answer to a request that succeeded.

    Args:
        id_: the id of the request.
        value: a value that JSON can represent.
    """
    return {"jsonrpc": "2.0", "id": id_, "result": value}


def error(
    id_: int | str | None, code: int, message: str, data: dict[str, Any] | None = None
) -> dict[str, Any]:
    """
    The answer to a request that failed.

    Args:
        id_: the id of the request; None: it could not be read.
        code: a JSON-RPC error code, or one of ours.
        message: the reason, for people.
        data: the reason, for programs.
    """
    body: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        body["data"] = data
    return {"jsonrpc": "2.0", "id": id_, "error": body}


def check(message: dict[str, Any]) -> None:
    """
    Check that a message is a request, a notification or a response.

    Raises:
        BadLine: the message is none of these.
    """
    if message.get("jsonrpc") != "2.0":
        raise BadLine('Not a request: "jsonrpc": "2.0" is missing.', INVALID_REQUEST)
    id_ = message.get("id")
    if isinstance(id_, bool) or not isinstance(id_, int | str | None):
        raise BadLine("Not a request: id must be a number or a text.", INVALID_REQUEST)
    # The answer repeats the id, which must not make the answer too long to send.
    if len(id_) > _ID_CHARS if isinstance(id_, str) else abs(id_ or 0) >= 2**63:
        raise BadLine(
            f"Not a request: id is longer than {_ID_CHARS} characters or beyond 64 bits.",
            INVALID_REQUEST,
        )
    if "method" in message:
        if not isinstance(message["method"], str):
            raise BadLine("Not a request: method must be a text.", INVALID_REQUEST)
        if not isinstance(message.get("params", {}), dict):
            raise BadLine("Not a request: params must be an object.", INVALID_REQUEST)
    elif "result" not in message and "error" not in message:
        raise BadLine("Not a request: method is missing.", INVALID_REQUEST)
