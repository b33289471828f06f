"""
Bytes and seconds as people read them. Inside everything is bytes and seconds.

Binary units are written GiB, MiB, KiB in every text that leaves the program.
"""

from __future__ import annotations

import math
import re

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])i?b?|b)?\s*", re.IGNORECASE)
_SIZE_FACTOR = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|sec|m|min|h|d)?\s*", re.IGNORECASE)
_DURATION_FACTOR = {
    "": 1.0,
    "ms": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}


def format_bytes(value: float | None) -> str:
    """`5.3 GiB`, `812 MiB`, `0 B`; `N/A` for None, never a zero that was not measured."""
    if value is None or not math.isfinite(value):
        return "N/A"
    sign = "-" if value < 0 else ""
    size = abs(value)
    for factor, unit in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        # 0.9995 so that 1023.6 MiB reads "1.00 GiB" and never "1024 MiB".
        if size >= factor * 0.9995:
            shown = size / factor
            digits = 2 if shown < 9.995 else 1 if shown < 99.95 else 0
            return f"{sign}{shown:.{digits}f} {unit}"
    return f"{sign}{size:.0f} B"


def pid_in(text: str) -> int | None:
    """The pid that a text of digits alone means; None: it is a name, a path or a kernel id."""
    text = text.strip()
    # No pid is longer; more digits than that need not be converted.
    return int(text[:18]) if text.isascii() and text.isdigit() else None


def size_above(bytes_: float) -> str:
    """A round size about a third above, as somebody would type it: `1200M`, `16G`."""
    wanted = int(bytes_) * 4 // 3
    if wanted >= 4 * GIB:
        return f"{-(-wanted // GIB)}G"
    step = 100 if wanted >= GIB else 1
    return f"{max(1, -(-wanted // (step * MIB)) * step)}M"


def format_rate(bytes_per_s: float | None) -> str:
    """`+21.0 MiB/s`, `-3.20 MiB/s`; `0` when nothing moves; `N/A` for None."""
    if bytes_per_s is None or not math.isfinite(bytes_per_s):
        return "N/A"
    if abs(bytes_per_s) < 1:
        return "0"
    return f"{'+' if bytes_per_s > 0 else ''}{format_bytes(bytes_per_s)}/s"


def format_duration(seconds: float | None) -> str:
    """`0.2 s`, `45 s`, `4 min 10 s`, `2 h 05 min`, `3 d 4 h`; `N/A` for None or infinity."""
    if seconds is None or not math.isfinite(seconds):
        return "N/A"
    sign = "-" if seconds < 0 else ""
    value = abs(seconds)
    if value < 9.95:
        return f"{sign}{value:.1f} s"
    if value < 59.5:
        return f"{sign}{value:.0f} s"
    whole = round(value)
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{sign}{minutes} min" + (f" {rest} s" if rest and minutes < 10 else "")
    if whole < 86400:
        hours, rest = divmod(whole, 3600)
        return f"{sign}{hours} h {rest // 60:02d} min"
    days, rest = divmod(whole, 86400)
    return f"{sign}{days} d {rest // 3600} h"


def format_step(seconds: float | None) -> str:
    """What one step takes: `20 ms`, `1.5 s`; `N/A` for None."""
    if seconds is None or not 0 <= seconds < 0.95:
        return format_duration(seconds)
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.0095 else f"{1000 * seconds:.1g} ms"


def parse_bytes(text: str) -> int:
    """
    Bytes from `12G`, `512 MiB`, `1.5gb` or `4096`; every unit is binary.

    Raises:
        ValueError: the text is no size.
    """
    found = _SIZE.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no size; write a number with K, M, G or T, such as 12G")
    return int(float(found[1]) * _SIZE_FACTOR[(found[2] or "").lower()])


def parse_duration(text: str) -> float:
    """
    Seconds from `90`, `90s`, `15 min`, `2h` or `250ms`.

    Raises:
        ValueError: the text is no duration.
    """
    found = _DURATION.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no duration; write a number with s, m or h, such as 15m")
    return float(found[1]) * _DURATION_FACTOR[(found[2] or "").lower()]


def exact_duration(seconds: float) -> str:
    """
    A duration in the largest unit that needs no fraction, such as "90 s", "1 d" or "20 ms".

    Args:
        seconds: at least 0.
    """
    for unit, unit_s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:g} {unit}"
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms" if seconds else "0"
