"""
What of a rescue's description has changed since it was last published whole.

Most of it stays: names, settings, random numbers that nobody draws. What differs is told by its
place, so that a table costs what has changed and not what there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from watchdog_app.airbag.table import News

_LONGEST_LIST = 32  # that is looked into; longer ones are told whole


def news(before: Any, now: Any, path: tuple[str | int, ...] = ()) -> Iterator[News]:
    """Where two values of JSON's types differ, and what is there now."""
    if before is now:
        return
    if type(before) is dict and type(now) is dict and before.keys() == now.keys():
        for key, value in now.items():
            yield from news(before[key], value, (*path, key))
    elif type(before) is list and type(now) is list and len(before) == len(now) <= _LONGEST_LIST:
        for index, value in enumerate(now):
            yield from news(before[index], value, (*path, index))
    elif type(before) is not type(now) or before != now:
        yield path, now
