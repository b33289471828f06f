"""
What a message looks like: JSON-RPC 2.0 without batches, and the codes of its errors.

Constructors build what `docs/protocol.md` describes; `kind` reads what a stranger sent and says
what is wrong with it.
"""

from __future__ import annotations

from watchdog_app.base.errors import NOT_FOUND, SEVERAL_FIT
from watchdog_app.client.framing import INVALID_REQUEST, PARSE_ERROR, BadLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

__all__ = [
    "BAD_PARAMS",
    "INVALID_REQUEST",
    "NOTIFICATION",
    "NOT_FOUND",
    "NO_SUCH_METHOD",
    "PARSE_ERROR",
    "PROTOCOL_VERSION",
    "REFUSED",
    "REQUEST",
    "RESPONSE",
    "SEVERAL_FIT",
    "VERSIONS_DIFFER",
    "error",
    "kind",
    "notification",
    "request",
    "result",
]

PROTOCOL_VERSION: Final = 2

NO_SUCH_METHOD: Final = -32601
BAD_PARAMS: Final = -32602
REFUSED: Final = -32000
VERSIONS_DIFFER: Final = -32001

_ID_CHARS = 200

REQUEST: Final = "request"
NOTIFICATION: Final = "notification"
RESPONSE: Final = "response"


def request(id_: int | str, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    """A message that wants an answer."""
    return {"jsonrpc": "2.0", "id": id_, "method": method, "params": params or {}}


def notification(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    """A message that gets no answer."""
    return {"jsonrpc": "2.0", "method": method, "params": params or {}}


def result(id_: int | str, value: Any) -> dict[str, Any]:
    """The answer to a request that worked."""
    return {"jsonrpc": "2.0", "id": id_, "result": value}


def error(
    id_: int | str | None, code: int, message: str, data: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The answer to a request that did not; `id_` is None when the request could not be read."""
    body: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        body["data"] = data
    return {"jsonrpc": "2.0", "id": id_, "error": body}


def kind(message: dict[str, Any]) -> str:
    """
    `REQUEST`, `NOTIFICATION` or `RESPONSE`.

    Raises:
        BadLine: it is none of them.
    """
    if message.get("jsonrpc") != "2.0":
        raise BadLine('Not a request: "jsonrpc": "2.0" is missing.', INVALID_REQUEST)
    id_ = message.get("id")
    if isinstance(id_, bool) or not isinstance(id_, int | str | None):
        raise BadLine("Not a request: id must be a number or a text.", INVALID_REQUEST)
    # It comes back in the answer, which must not become too long to be sent by it.
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
        return NOTIFICATION if id_ is None else REQUEST
    if "result" in message or "error" in message:
        return RESPONSE
    raise BadLine("Not a request: method is missing.", INVALID_REQUEST)
