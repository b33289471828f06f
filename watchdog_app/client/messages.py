"""
What a message looks like: JSON-RPC 2.0 without batches, and the codes of its errors.

Constructors build what `docs/protocol.md` describes; `kind` and `Params` read
what a stranger sent and name what is wrong with it.
"""

from __future__ import annotations

from watchdog_app.base.errors import NOT_FOUND, SEVERAL_FIT, RequestError
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
    "Params",
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


class Params:
    """
    The parameters of one message, read by name and type.

    Null and absent are the same. Every reader raises RequestError (-32602)
    naming the parameter when the value is not of its kind.
    """

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def text(self, name: str, limit: int = 4096) -> str:
        """A text that must be there."""
        value = self.text_or_none(name, limit)
        if value is None:
            raise _bad(name, "is missing")
        return value

    def text_or_none(self, name: str, limit: int = 4096) -> str | None:
        """A text, or None."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise _bad(name, "must be a text")
        if len(value) > limit:
            raise _bad(name, f"is longer than {limit} characters")
        return value

    def whole(self, name: str, low: int = 0, high: int = 2**63 - 1) -> int:
        """A whole number within [low, high] that must be there."""
        value = self.whole_or_none(name, low, high)
        if value is None:
            raise _bad(name, "is missing")
        return value

    def whole_or_none(self, name: str, low: int = 0, high: int = 2**63 - 1) -> int | None:
        """A whole number within [low, high], or None."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise _bad(name, "must be a whole number")
        if not low <= value <= high:
            raise _bad(name, f"must be between {low} and {high}")
        return value

    def number_or_none(
        self, name: str, low: float = -1.7e308, high: float = 1.7e308
    ) -> float | None:
        """A finite number within [low, high], or None."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _bad(name, "must be a number")
        if not low <= value <= high:  # an undefined number fails this too
            raise _bad(name, f"must be between {low:g} and {high:g}")
        return float(value)

    def part_or_none(self, name: str) -> Params | None:
        """An object within the parameters, or None."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _bad(name, "must be an object")
        return Params(value)

    def parts(self, name: str, most: int) -> list[Params]:
        """A list of at most `most` objects; empty when absent."""
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise _bad(name, "must be a list of objects")
        if len(value) > most:
            raise _bad(name, f"has more than {most} entries")
        return [Params(item) for item in value]

    def wholes(self, name: str, most: int) -> list[int]:
        """A list of at most `most` whole numbers from 0 on; empty when absent."""
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(
            isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= 2**53
            for item in value
        ):
            raise _bad(name, "must be a list of whole numbers")
        if len(value) > most:
            raise _bad(name, f"has more than {most} entries")
        return value

    def truth(self, name: str, default: bool = False) -> bool:
        """True or false; `default` when absent."""
        value = self.truth_or_none(name)
        return default if value is None else value

    def truth_or_none(self, name: str) -> bool | None:
        """True or false, or None."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            raise _bad(name, "must be true or false")
        return value

    def texts(self, name: str, allowed: tuple[str, ...]) -> list[str]:
        """A list of words out of `allowed`, each once; empty when absent."""
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(
            isinstance(item, str) and item in allowed for item in value
        ):
            raise _bad(name, f"must be a list out of {', '.join(allowed)}")
        return list(dict.fromkeys(value))


def _bad(name: str, what: str) -> RequestError:
    return RequestError(f"Parameter {name} {what}.", BAD_PARAMS)
