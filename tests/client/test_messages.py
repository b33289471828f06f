"""What a message looks like, and what is said of one that does not."""

from __future__ import annotations

import pytest

from watchdog_app.base.errors import RequestError
from watchdog_app.client import messages
from watchdog_app.client.framing import BadLine
from watchdog_app.client.messages import Params


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (messages.request(1, "status"), messages.REQUEST),
        (messages.request("a", "status"), messages.REQUEST),
        (messages.notification("agent.bye"), messages.NOTIFICATION),
        (messages.result(1, None), messages.RESPONSE),
        (messages.error(None, -32700, "no"), messages.RESPONSE),
    ],
)
def test_what_is_built_is_recognized(message, kind):
    """Constructors and reader agree."""
    assert kind == messages.kind(message)


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
    """Each is a bad line with the code for it."""
    with pytest.raises(BadLine) as caught:
        messages.kind(message)
    assert messages.INVALID_REQUEST == caught.value.code


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (Params.text, None),
        (Params.text, 1),
        (Params.text, "x" * 5000),
        (Params.whole, None),
        (Params.whole, True),
        (Params.whole, 1.0),
        (Params.whole, "1"),
        (Params.whole, -1),
        (Params.whole, 2**64),
        (Params.number_or_none, True),
        (Params.number_or_none, "1"),
        (Params.number_or_none, float("nan")),
        (Params.number_or_none, float("inf")),
        (Params.number_or_none, 10**400),
        (Params.truth, 1),
        (Params.truth, "true"),
    ],
)
def test_a_parameter_of_the_wrong_kind_is_named(read, value):
    """The error has the code for it and the parameter's name."""
    with pytest.raises(RequestError, match="Parameter pid") as caught:
        read(Params({"pid": value}), "pid")
    assert messages.BAD_PARAMS == caught.value.code


def test_parameters_are_read_as_what_they_are():
    """Null and absent are the same; whole numbers are numbers too."""
    params = Params({"a": "x", "b": 3, "c": None, "d": 2.5, "e": True, "f": ["status"]})

    assert "x" == params.text("a")
    assert 3 == params.whole("b")
    assert params.text_or_none("c") is None
    assert params.whole_or_none("missing") is None
    assert 3.0 == params.number_or_none("b")
    assert 2.5 == params.number_or_none("d")
    assert params.truth("e")
    assert not params.truth("c")
    assert ["status"] == params.texts("f", ("status",))
    assert [] == params.texts("c", ("status",))


@pytest.mark.parametrize("value", ["status", ["other"], [1], {}])
def test_a_list_of_words_holds_known_words_only(value):
    """A topic that nobody publishes is a mistake to be told."""
    with pytest.raises(RequestError, match="topics"):
        Params({"topics": value}).texts("topics", ("status",))
