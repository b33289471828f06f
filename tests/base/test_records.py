"""The daemon's dataclasses behave like those of the standard library."""

from __future__ import annotations

import dataclasses
import importlib
import pickle
import sys
from dataclasses import FrozenInstanceError, field

import pytest
from support.finished import finished

from watchdog_app.base.records import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """A record with a field that may not be shown."""

    x: int
    y: int = 2
    secret: str = field(default="hidden", repr=False)


@dataclass
class Named:
    """A class with a text of its own."""

    name: str

    def __repr__(self) -> str:
        return f"<{self.name}>"


def test_a_record_is_shown_without_what_may_not_be_shown():
    """As `dataclasses` does."""
    assert "Point(x=1, y=2)" == repr(Point(1))
    assert "<a>" == repr(Named("a"))


def test_a_frozen_record_stays_as_it_is():
    """It can be neither set nor deleted, but compared, hashed, replaced and pickled."""
    point = Point(1)

    with pytest.raises(FrozenInstanceError):
        point.x = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del point.y  # type: ignore[misc]
    assert {point} == {Point(1)}
    assert Point(5) == dataclasses.replace(point, x=5)
    assert point == pickle.loads(pickle.dumps(point))


def test_every_module_that_the_daemon_loads_uses_it():
    """`dataclasses.dataclass` in one of them takes 4 KB more a class."""
    loaded = finished(
        [sys.executable, "-c", "import sys, watchdog_app.daemon.app; print(*sys.modules)"],
        check=True,
    ).stdout.split()
    own = [importlib.import_module(name) for name in loaded if name.startswith("watchdog_app.")]

    other = [each.__name__ for each in own if vars(each).get("dataclass") is dataclasses.dataclass]

    assert [] == other
