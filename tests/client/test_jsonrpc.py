"""The form of a message, and the error for a malformed one."""

from __future__ import annotations

import pytest

from watchdog_app.client import jsonrpc
from watchdog_app.client.jsonrpc import BadLine


@pytest.mark.parametrize(
    "message",
    [
        jsonrpc.request(1, "status"),
        jsonrpc.request("a", "status"),
        jsonrpc.notification("agent.bye"),
        jsonrpc.result(1, None),
        jsonrpc.error(None, -32700, "no"),
    ],
)
def test_what_is_built_is_accepted(message):
    """The constructors and the reader agree."""
    jsonrpc.check(message)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"method": "status"},
        {"jsonrpc": "1.0", "method": "status"},
        {"jsonrpc": "2.0"},
        {"jsonrpc": "2.0", "method": 1},
        {"jsonrpc": "2.0", "method": "status", "params": []},
        {"jsonrpc": "2.0", "method": "status", "params": None},
        {"jsonrpc": "2.0", "method": "status", "id": True},
        {"jsonrpc": "2.0", "method": "status", "id": {}},
        {"jsonrpc": "2.0", "method": "status", "id": 1.5},
        {"jsonrpc": "2.0", "method": "status", "id": "x" * 201},
        {"jsonrpc": "2.0", "method": "status", "id": 2**63},
        {"jsonrpc": "2.0", "method": "status", "id": -(2**63)},
    ],
)
def test_what_is_no_message_is_refused(message):
    """Each is a BadLine with the code for an invalid request."""
    with pytest.raises(BadLine) as caught:
        jsonrpc.check(message)
    assert jsonrpc.INVALID_REQUEST == caught.value.code
