"""Records to JSON values and back."""

import json
from dataclasses import dataclass, field
from enum import Enum

import pytest

from watchdog_app.base import codec
from watchdog_app.base.codec import NOT_KEPT


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Key:
    pid: int
    name: str


@dataclass(slots=True)
class Record:
    colour: Colour
    key: Key
    rate: float
    when: float | None = None
    names: tuple[str, ...] = ()
    pair: tuple[int, str] = (0, "")
    seen: set[Key] = field(default_factory=set)
    sizes: dict[Key, float] = field(default_factory=dict)
    pending: str | None = field(default=None, metadata=NOT_KEPT)


KEY = Key(7, "a")


def test_a_record_comes_back_through_json():
    """Keys of mappings and sets may be records; infinite numbers are kept."""
    record = Record(
        Colour.RED, KEY, float("-inf"), 2.5, ("x", "y"), (3, "z"), {KEY}, {KEY: 1.0}, "asked"
    )

    again = codec.decode(Record, json.loads(json.dumps(codec.encode(record), allow_nan=False)))

    record.pending = None
    assert record == again


def test_fields_that_are_not_there_have_their_default_and_others_are_ignored():
    """A later version may add and remove fields."""
    value = {"colour": "red", "key": {"pid": 7, "name": "a"}, "rate": 1, "from_the_future": [1]}

    assert Record(Colour.RED, KEY, 1.0) == codec.decode(Record, value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colour": "blue"}, "Record.colour"),
        ({"key": {"pid": "7", "name": "a"}}, "Key.pid"),
        ({"key": {"pid": True, "name": "a"}}, "Key.pid"),
        ({"key": {"pid": 7}}, "Key.name is missing"),
        ({"key": 7}, "Record.key"),
        ({"rate": "fast"}, "Record.rate"),
        ({"rate": True}, "Record.rate"),
        ({"names": "xy"}, "Record.names"),
        ({"names": [1]}, "Record.names"),
        ({"pair": [1]}, "Record.pair"),
        ({"sizes": {"a": 1}}, "Record.sizes"),
        ({"sizes": [[1]]}, "Record.sizes"),
    ],
)
def test_what_is_no_such_record_is_an_error_that_names_the_field(change, words):
    """The file on disk may be damaged."""
    value = {"colour": "red", "key": {"pid": 7, "name": "a"}, "rate": 1.0, **change}

    with pytest.raises(ValueError, match=words):
        codec.decode(Record, value)


@pytest.mark.parametrize("value", [None, 7, [], "x"])
def test_no_record_at_all_is_an_error(value):
    """The file may be empty or belong to another program."""
    with pytest.raises(ValueError, match="Record"):
        codec.decode(Record, value)


def test_what_has_no_json_cannot_be_written_down():
    """It is a mistake of the program, and raises at once."""
    with pytest.raises(TypeError, match="object"):
        codec.encode({"a": object()})
