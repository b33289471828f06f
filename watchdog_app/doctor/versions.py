"""
The table of versions (`versions.toml`) and lookups in it. Pure except for reading that file.

A version is a tuple of numbers. It ends at the first part that is not a number: "2.3.0+cu121" is
(2, 3, 0).
"""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Any

Version = tuple[int, ...]

_NUMBERS = re.compile(r"\s*v?(\d+(?:\.\d+)*)")


def parse(text: object) -> Version:
    """Parse the numbers at the start of a version; empty: it does not start with a number."""
    found = _NUMBERS.match(text) if isinstance(text, str) else None
    return tuple(int(part) for part in found[1].split(".")[:6]) if found else ()


def format_version(version: Version) -> str:
    """Format (12, 4) as `12.4`."""
    return ".".join(map(str, version))


def format_driver_version(version: Version) -> str:
    """Format (550, 90, 7) as `550.90.07`: NVIDIA writes two digits from the third number on."""
    return ".".join(str(part) if at < 2 else f"{part:02d}" for at, part in enumerate(version))


@functools.cache
def table() -> dict[str, Any]:
    """Return the whole table."""
    import tomllib

    text = resources.files("watchdog_app.doctor").joinpath("versions.toml").read_text("utf-8")
    return tomllib.loads(text)


def parse_driver_cuda(number: int | None) -> Version:
    """Convert the driver's CUDA number: 12090 is (12, 9)."""
    if not number or number < 1000:
        return ()
    return number // 1000, number % 1000 // 10


def minimum_driver(cuda: Version) -> Version:
    """Return the oldest Linux driver for programs built with a CUDA version; empty: unknown."""
    minimum: dict[str, str] = table()["cuda_driver"]["minimum"]
    for length in (2, 1):
        found = minimum.get(format_version(cuda[:length]))
        if found:
            return parse(found)
    return ()


def tested_tensorflow(version: Version) -> dict[str, Any] | None:
    """Return the tested build of a TensorFlow release; None: not in the table."""
    for build in table()["tensorflow"]["build"]:
        if parse(build["version"]) == version[:2]:
            return dict(build)
    return None


def first_cuda(capability: Version) -> Version:
    """Return the first CUDA version that compiles for such a card; empty: not in the table."""
    return parse(table()["compute_capability"]["first_cuda"].get(format_version(capability[:1])))


def is_dropped(capability: Version, cuda: Version) -> bool:
    """Return whether this CUDA no longer compiles for cards of this compute capability."""
    below = table()["compute_capability"]["gone_below"].get(format_version(cuda[:1]))
    return bool(below and capability) and capability < parse(below)
