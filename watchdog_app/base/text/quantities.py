"""
Format quantities for the user and parse them. Inside the program all values are bytes and seconds.

Texts use the binary units GiB, MiB and KiB. Figures in table cells have a full form and a compact
form for narrow terminals (`12.3G`, `4m (3-7m)`). An unknown value is `N/A`, a missing forecast is
`-`; neither is ever shown as zero.
"""

from __future__ import annotations

import math
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4

UNKNOWN = "N/A"
NONE = "-"

UNIT_SIGNS = {"celsius": "°C", "watts": "W"}
AUTOMATIC_LIMIT = "follows the machine's free memory"  # of a guard without a user's limit
_RESERVE_GIVEN = ("finishing", "refusing", "exiting", "ending")  # guard states with the reserve

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])i?b?|b)?\s*", re.IGNORECASE)
_SIZE_FACTOR = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?\s*", re.IGNORECASE)
_DURATION_FACTOR = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def format_bytes(value: Any, *, compact: bool = False, figures: int = 3) -> str:
    """
    Format a size: `5.30 GiB`, compact `5.30G`; `0 B`, compact `0`.

    Args:
        value: size in bytes; `N/A`, never zero, if it is not a finite number.
        compact: leave out the space and shorten the unit.
        figures: number of digits of a size below 100 of its unit, 2 or 3.
    """
    known = number_or_none(value)
    if known is None:
        return UNKNOWN
    sign = "-" if known < 0 else ""
    size = abs(known)
    for factor, unit in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        # 0.9995 so that 1023.6 MiB becomes "1.00 GiB", not "1024 MiB".
        if size >= factor * 0.9995:
            shown = size / factor
            digits = figures - (1 if shown < 9.995 else 2) if shown < 99.95 else 0
            return f"{sign}{shown:.{digits}f}{unit[0] if compact else f' {unit}'}"
    return f"{sign}{size:.0f}{'' if compact else ' B'}"


def parse_pid(text: str) -> int | None:
    """Parse a text of digits as a pid; None: a name, a path or a kernel id."""
    text = text.strip()
    # Pids are shorter than 18 digits, so the rest need not be converted.
    return int(text[:18]) if text.isascii() and text.isdigit() else None


def size_above(bytes_: float) -> str:
    """
    A round size about a third larger, as a command line argument: `400M`, `1.25G`, `16G`.

    `format_bytes` shows the same number and unit for this size.
    """
    wanted = int(bytes_) * 4 // 3
    if wanted < 1000 * MIB:
        return f"{max(1, -(-wanted // MIB))}M"
    step = GIB if wanted >= 4 * GIB else GIB // 4
    return f"{-(-wanted // step) * step / GIB:g}G"


def limit_above(limit: float, used: float) -> str:
    """
    The limit to give a program next, the same on every screen, as `size_above` formats it.

    Args:
        limit: its present limit in bytes.
        used: what it holds in bytes. A reading a little above the limit does not count.
    """
    return size_above(used if used > 1.1 * limit else limit)


def format_rate(value: Any, *, compact: bool = False) -> str:
    """
    Format a rate: `+21.0 MiB/s`, compact `+21M/s`; `0` below 1 KiB/s, too slow to matter.

    Args:
        value: bytes per second; `N/A` if it is not a finite number.
        compact: leave out the space and shorten the unit.
    """
    known = number_or_none(value)
    if known is None:
        return UNKNOWN
    if abs(known) < KIB:
        return "0"
    sign = "+" if known > 0 else ""
    return f"{sign}{format_bytes(known, compact=compact, figures=2 if compact else 3)}/s"


def format_duration(seconds: float | None) -> str:
    """Format a duration: `45 s`, `4 min 10 s`, `2 h 05 min`, `3 d 4 h`; None, infinity: `N/A`."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    sign = "-" if seconds < 0 else ""
    value = abs(seconds)
    if value < 59.5:
        return f"{sign}{value:.{1 if value < 9.95 else 0}f} s"
    whole = round(value)
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{sign}{minutes} min" + (f" {rest} s" if rest and minutes < 10 else "")
    if whole < 86400:
        hours, rest = divmod(whole, 3600)
        return f"{sign}{hours} h {rest // 60:02d} min"
    days, rest = divmod(whole, 86400)
    return f"{sign}{days} d {rest // 3600} h"


def format_rough_duration(seconds: float) -> str:
    """Format a duration with at most two digits: `3 s`, `25 s`, `4 min`, `1.5 h`, `2 d`."""
    if seconds < 10:
        return f"{max(1, round(seconds))} s"
    if seconds < 57.5:
        return f"{5 * round(seconds / 5)} s"
    if seconds < 95:
        return "1 min" if seconds < 75 else "1.5 min"
    if seconds < 3570:
        return f"{round(seconds / 60)} min"
    if seconds < 35_000:
        return f"{seconds / 3600:.1f} h".replace(".0 h", " h")
    if seconds < 2 * 86400:
        return f"{round(seconds / 3600)} h"
    return f"{round(seconds / 86400)} d"


def format_step(seconds: float | None) -> str:
    """Format the time of a step: `20 ms`, `1.5 s`; None: `N/A`."""
    if seconds is None or not 0 <= seconds < 0.95:
        return format_duration(seconds)
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.0095 else f"{1000 * seconds:.1g} ms"


def parse_bytes(text: str) -> int:
    """
    Parse a size such as `12G`, `512 MiB`, `1.5gb` or `4096`, in bytes. All units are binary.

    Raises:
        ValueError: the text is not a size.
    """
    found = _SIZE.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no size; write a number with K, M, G or T, such as 12G")
    return int(float(found[1]) * _SIZE_FACTOR[(found[2] or "").lower()])


def parse_duration(text: str) -> float:
    """
    Parse a duration such as `90`, `90s`, `15 min`, `2h` or `250ms`, in seconds.

    Raises:
        ValueError: the text is not a duration.
    """
    found = _DURATION.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no duration; write a number with s, m or h, such as 15m")
    return float(found[1]) * _DURATION_FACTOR[(found[2] or "").lower()]


def exact_duration(seconds: float) -> str:
    """
    Format a duration in the largest unit without a fraction: "90 s", "1 d" or "20 ms".

    Args:
        seconds: duration, at least 0.
    """
    for unit, unit_s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:g} {unit}"
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms" if seconds else "0"


def number_or_none(value: Any) -> float | None:
    """The value if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def whole(value: Any) -> str:
    """Format a count, a pid or a percentage as an integer."""
    known = number_or_none(value)
    return UNKNOWN if known is None else f"{known:.0f}"


def growth(bytes_per_s: Any, share: Any) -> str:
    """
    Format what a task adds to a resource: `grows by 21.0 MiB/s, 95 % of the growth`.

    Args:
        bytes_per_s: growth of the task.
        share: its share of all growth.
    """
    return f"grows by {format_bytes(bytes_per_s)}/s, {ratio(share)} of the growth"


def ratio(value: Any) -> str:
    """Format a ratio as a percentage: 0.72 becomes `72 %`."""
    known = number_or_none(value)
    # Round down, so that 100 % only appears when nothing is left.
    return UNKNOWN if known is None else f"{math.floor(known * 100 + 1e-9)} %"


def moment(value: Any) -> str:
    """Format a time: `14:05`, with the date if it is not today; empty if unknown."""
    known = number_or_none(value)
    if known is None:
        return ""
    import time

    then, now = time.localtime(known), time.localtime()
    same = then[:3] == now[:3]
    return time.strftime("%H:%M" if same else "%Y-%m-%d %H:%M", then)


def of_limit(used: Any, limit: Any, unit: str) -> str:
    """
    Format a level with its limit: `11.2 of 15.6 GiB`, `71 of 90 °C`.

    Args:
        used: level in `unit`.
        limit: limit in `unit`.
        unit: "bytes", "celsius", "watts", "seconds", or "ratio" of a battery.
    """
    if unit == "bytes":
        first, second = format_bytes(used), format_bytes(limit)
        if first[-3:] == second[-3:] and UNKNOWN not in (first, second):
            first = first[:-4]
        return f"{first} of {second}"
    if unit == "ratio":  # a battery: show the rest
        known = number_or_none(used)
        return UNKNOWN if known is None else f"{max(0.0, 1 - known) * 100:.0f} % left"
    if unit == "seconds":
        return f"{format_duration(used)} of {format_duration(limit)}"
    sign = UNIT_SIGNS.get(unit, unit)
    return f"{whole(used)} of {whole(limit)} {sign}"


def guard_level(guard: Any, *, automatic: bool) -> str:
    """
    Format the memory of a guard: `3.10 GiB of 12.0 GiB, reserve 512 MiB`.

    Args:
        guard: object with `used_bytes`, `limit_bytes`, `reserve_bytes` and `state`.
        automatic: whether the limit is automatic.
    """
    limit = format_bytes(guard.limit_bytes) + (f" ({AUTOMATIC_LIMIT})" if automatic else "")
    joint = " and the reserve of " if guard.state in _RESERVE_GIVEN else ", reserve "
    used, reserve = format_bytes(guard.used_bytes), format_bytes(guard.reserve_bytes)
    return f"{used} of {limit}{joint}{reserve}"


def eta(
    eta_s: float | None, low_s: float | None, high_s: float | None, *, compact: bool = False
) -> str:
    """
    Format a time to exhaustion with its 80 % interval: `4 min (3-7 min)`; no forecast: `-`.

    Args:
        eta_s: median; None: no forecast.
        low_s: lower end of the interval; None: show no interval.
        high_s: upper end of the interval; None: unbounded.
        compact: short form such as `4m (3-7m)`.
    """
    if eta_s is None:
        return NONE if low_s is None else ">" + "".join(_time(low_s, compact))
    middle = "".join(_time(eta_s, compact))
    if low_s is None or low_s == high_s or (high_s is not None and high_s < 1):
        return middle
    # Round the interval outwards, so that it is never narrower than the forecast.
    low, low_unit = _time(low_s, compact, math.floor)
    if high_s is None:
        return f"{middle} ({low}+{low_unit})"
    high, high_unit = _time(high_s, compact, math.ceil)
    return f"{middle} ({low if low_unit == high_unit else low + low_unit}-{high}{high_unit})"


def movement(slope_per_s: Any, unit: str) -> str:
    """
    Format the change of a resource: `+21.0 MiB/s`, `+2.1 °C/min`; `0` without a change.

    The level of a battery is its used share, but the text shows the change of the charge:
    `-0.6 %/min`.

    Args:
        slope_per_s: change in `unit` per second.
        unit: "bytes", "celsius", "watts" or "ratio".
    """
    if unit == "bytes":
        return format_rate(slope_per_s)
    known = number_or_none(slope_per_s)
    if known is None or unit == "seconds":
        return UNKNOWN
    a_minute = 60 * known * (-100 if unit == "ratio" else 1)
    sign = "%" if unit == "ratio" else UNIT_SIGNS.get(unit, unit)
    return "0" if abs(a_minute) < 0.05 else f"{a_minute:+.1f} {sign}/min"


def age(seconds: float) -> str:
    """Format an age: `now`, `12 s ago`, `3 min ago`."""
    if seconds < 1:  # also if the clock was set back
        return "now"
    return f"{round(seconds)} s ago" if seconds < 59.5 else f"{format_duration(seconds)} ago"


def _time(
    seconds: float, compact: bool, rounded: Callable[[float], int] = round
) -> tuple[str, str]:
    """A duration as a number of two digits and a unit: `4` and ` min`, not `243 s`."""
    factor, unit = 86400, "d"
    for shorter, name, least in ((3600, "h", 47.5), (60, "min", 99.5), (1, "s", 99.5)):
        if seconds / shorter < least:
            factor, unit = shorter, name
    number = "<1" if seconds < 1 else str(rounded(seconds / factor))
    return number, unit[0] if compact else f" {unit}"
