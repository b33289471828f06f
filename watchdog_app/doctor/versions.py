"""
The table of versions (`versions.toml`) and questions about it. Pure but for reading that file.

A version is a tuple of numbers; what is no number in it ends it: "2.3.0+cu121" is (2, 3, 0).
"""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Any

Version = tuple[int, ...]

_NUMBERS = re.compile(r"\s*v?(\d+(?:\.\d+)*)")


def parse(text: object) -> Version:
    """The numbers that a version begins with; empty: it begins with none."""
    found = _NUMBERS.match(text) if isinstance(text, str) else None
    return tuple(int(part) for part in found[1].split(".")[:6]) if found else ()


def format_version(version: Version) -> str:
    """`12.4` of (12, 4)."""
    return ".".join(map(str, version))


def format_driver_version(version: Version) -> str:
    """`550.90.07` of (550, 90, 7): NVIDIA writes two digits from the third number on."""
    return ".".join(str(part) if at < 2 else f"{part:02d}" for at, part in enumerate(version))


@functools.cache
def table() -> dict[str, Any]:
    """The whole file."""
    import tomllib

    text = resources.files("watchdog_app.doctor").joinpath("versions.toml").read_text("utf-8")
    return tomllib.loads(text)


def parse_driver_cuda(number: int | None) -> Version:
    """CUDA version of the driver's own figure: 12090 is (12, 9)."""
    if not number or number < 1000:
        return ()
    return number // 1000, number % 1000 // 10


def minimum_driver(cuda: Version) -> Version:
    """The oldest Linux driver that runs programs built with a CUDA; empty: not in the table."""
    minimum: dict[str, str] = table()["cuda_driver"]["minimum"]
    for length in (2, 1):
        found = minimum.get(format_version(cuda[:length]))
        if found:
            return parse(found)
    return ()


def tested_tensorflow(version: Version) -> dict[str, Any] | None:
    """The tested build of a TensorFlow release; None: not in the table."""
    for build in table()["tensorflow"]["build"]:
        if parse(build["version"]) == version[:2]:
            return dict(build)
    return None


def first_cuda(capability: Version) -> Version:
    """The first CUDA that makes code which runs on such a card; empty: not in the table."""
    return parse(table()["compute_capability"]["first_cuda"].get(format_version(capability[:1])))


def is_dropped(capability: Version, cuda: Version) -> bool:
    """Whether this CUDA no longer makes code for cards of this compute capability."""
    below = table()["compute_capability"]["gone_below"].get(format_version(cuda[:1]))
    return bool(below and capability) and capability < parse(below)
