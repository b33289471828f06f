"""Parameters are read strictly: an error names the wrong parameter."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from watchdog_app.base.errors import RequestError
from watchdog_app.client import jsonrpc, requests
from watchdog_app.client.requests import Params, flag, integer, list_of, nested, number, text, word


class Inner(Params):
    name: str = text()


class Sample(Params):
    a: str | None = text(default=None)
    b: int | None = integer(default=None)
    c: float | None = number()
    d: bool = flag()
    e: tuple[str, ...] = list_of(word(("status",)), 2)
    f: Inner | None = nested(Inner)
    g: tuple[Inner, ...] = list_of(nested(Inner), 2)
    h: tuple[int, ...] = list_of(integer(), 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("a", value) for value in (1, [], "x" * 5000)),
        *(("b", value) for value in (True, 1.0, "1", -1, 2**64)),
        *(("c", value) for value in (True, "1", float("nan"), float("inf"), 10**400)),
        *(("d", value) for value in (1, "true")),
        *(("e", value) for value in ("status", ["other"], [1], {})),
        *(("f", value) for value in (1, [], "x")),
        *(("g", value) for value in ({}, [1], [{"name": "x"}] * 3)),
        *(("h", value) for value in ({}, [True], [-1], [1, 2, 3])),
    ],
)
def test_a_parameter_of_the_wrong_kind_is_named(name, value):
    """The error has the code for invalid parameters, and the parameter's name."""
    with pytest.raises(RequestError, match=f"Parameter {name}") as caught:
        Sample.read({name: value})
    assert jsonrpc.INVALID_PARAMS == caught.value.code


def test_a_parameter_within_an_object_is_named():
    """The error has the inner name."""
    with pytest.raises(RequestError, match="Parameter name is missing"):
        Sample.read({"g": [{"name": "x"}, {}]})


@pytest.mark.parametrize(
    ("record", "name"),
    [(requests.PauseTask, "task"), (requests.Hello, "protocol"), (requests.SetProtection, "on"),
     (requests.SnoozeNotifications, "for_s"), (requests.Saved, "rescue")],
)  # fmt: skip
@pytest.mark.parametrize("raw", ["absent", "null"])
def test_what_must_be_there_is_asked_for(record, name, raw):
    """Null and absent are the same."""
    with pytest.raises(RequestError, match="is missing") as caught:
        record.read({} if raw == "absent" else {name: None})
    assert jsonrpc.INVALID_PARAMS == caught.value.code


def test_parameters_are_read_as_what_they_are():
    """Null and absent are the same; integers are valid numbers; unknown keys are ignored."""
    found = Sample.read({"a": "x", "b": 3, "c": 4, "d": True, "e": ["status", "status"],
                         "f": {"name": "y"}, "h": [0, 1], "z": "of a later version"})  # fmt: skip
    empty = Sample.read({"a": None})

    assert ("x", 3, 4.0, True, ("status", "status")) == (
        found.a,
        found.b,
        found.c,
        found.d,
        found.e,
    )
    assert ("y", (), (0, 1)) == (found.f.name, found.g, found.h)
    assert (None, None, None, False, ()) == (empty.a, empty.b, empty.c, empty.d, empty.e)
    assert {"name": "y"} == found.f.values()


@pytest.mark.parametrize("value", [float("inf"), "nan", True, []])
def test_a_loss_that_is_no_number_is_unknown(value):
    """The rest of the report counts."""
    found = requests.Report.read({"training": True, "loss": value})

    assert (True, None) == (found.training, found.loss)


def test_each_record_has_a_function_of_the_daemon():
    """A new request is a record and a function; without the function the daemon does not start."""
    from watchdog_app.daemon.methods import Methods

    parts = SimpleNamespace(agents=None, checkpoints=None)

    assert set(requests.METHODS) == set(Methods(parts, None).table)
