"""
Figures in table cells: sizes, rates, percentages, times to exhaustion, ages.

Each in a full form and a compact one for narrow terminals (`12.3G`, `4m (3-7m)`).
Unknown reads `N/A`, and no forecast `-`; neither is ever a zero.
"""

from __future__ import annotations

import math

from watchdog_app.base.json_values import number_or_none
from watchdog_app.base.text.quantities import format_bytes, format_duration, format_rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

UNKNOWN = "N/A"
NONE = "-"

_UNITS = {"celsius": "°C", "watts": "W"}


def size(value: Any, *, compact: bool = False) -> str:
    """`11.2 GiB`, compact `11.2G`; `0 B`, compact `0`."""
    text = format_bytes(number_or_none(value))
    return _compact(text) if compact else text


def rate(value: Any, *, compact: bool = False) -> str:
    """`+21.0 MiB/s`, compact `+21M/s`; `0` below a KiB a second, which is no trend."""
    known = number_or_none(value)
    if known is not None and abs(known) < 1024:
        return "0"
    text = format_rate(known)
    return _compact(_two_figures(text)) if compact else text


def whole(value: Any) -> str:
    """A count, a pid or a percentage as a whole number."""
    known = number_or_none(value)
    return UNKNOWN if known is None else f"{known:.0f}"


def ratio(value: Any) -> str:
    """`72 %` of a ratio of 0.72."""
    known = number_or_none(value)
    # Rounded down: 100 % is said when nothing is left, not a moment before.
    return UNKNOWN if known is None else f"{math.floor(known * 100 + 1e-9)} %"


def moment(value: Any) -> str:
    """`14:05`, with the day where that is not today's; empty when there is none."""
    known = number_or_none(value)
    if known is None:
        return ""
    import time

    then, now = time.localtime(known), time.localtime()
    same = then[:3] == now[:3]
    return time.strftime("%H:%M" if same else "%Y-%m-%d %H:%M", then)


def of_limit(used: Any, limit: Any, unit: str) -> str:
    """`11.2 of 15.6 GiB`, `71 of 90 °C`."""
    if unit == "bytes":
        first, second = size(used), size(limit)
        if first[-3:] == second[-3:] and UNKNOWN not in (first, second):
            first = first[:-4]
        return f"{first} of {second}"
    if unit == "ratio":  # a battery: what is used is gone
        known = number_or_none(used)
        return UNKNOWN if known is None else f"{max(0.0, 1 - known) * 100:.0f} % left"
    sign = _UNITS.get(unit, unit)
    return f"{whole(used)} of {whole(limit)} {sign}"


def eta(
    eta_s: float | None, low_s: float | None, high_s: float | None, *, compact: bool = False
) -> str:
    """
    Time to exhaustion with its 80 % interval: `4 min (3-7 min)`; `-` where none is foreseen.

    Args:
        eta_s: median; None: none.
        low_s: lower end; None: no interval is shown.
        high_s: upper end; None: it is open.
        compact: `4m (3-7m)`.
    """
    if eta_s is None:
        return NONE if low_s is None else f">{_joined(_time(low_s), compact)}"
    middle = _joined(_time(eta_s), compact)
    if low_s is None or (high_s is not None and high_s < 1):
        return middle
    # The range is rounded outwards: it never promises more than was forecast.
    from_, to = _time(low_s, math.floor), None if high_s is None else _time(high_s, math.ceil)
    if to is None:
        return f"{middle} ({from_[0]}+{'' if compact else ' '}{_unit(from_[1], compact)})"
    if from_[1] == to[1]:
        return f"{middle} ({from_[0]}-{_joined(to, compact)})"
    return f"{middle} ({_joined(from_, compact)}-{_joined(to, compact)})"


def movement(slope_per_s: Any, unit: str) -> str:
    """
    How a resource changes, as people count: `+21.0 MiB/s`, `+2.1 °C/min`; `0` when it rests.

    The use of a battery is what is gone; people count what is left: `-0.6 %/min`.
    """
    if unit == "bytes":
        return rate(slope_per_s)
    known = number_or_none(slope_per_s)
    if known is None:
        return UNKNOWN
    a_minute = 60 * known * (-100 if unit == "ratio" else 1)
    sign = "%" if unit == "ratio" else _UNITS.get(unit, unit)
    return "0" if abs(a_minute) < 0.05 else f"{a_minute:+.1f} {sign}/min"


def age(seconds: float) -> str:
    """How long ago: `now`, `12 s ago`, `3 min ago`."""
    if seconds < 1:  # a clock that was set back included
        return "now"
    return f"{format_duration(float(round(seconds)) if seconds < 60 else seconds)} ago".replace(
        ".0 s", " s"
    )


def _time(seconds: float, rounded: Callable[[float], int] = round) -> tuple[str, str]:
    """A time in two figures: `4 min`, not `243 s`."""
    value = max(0.0, seconds)
    if value < 1:
        return "<1", "s"
    for factor, unit in ((1, "s"), (60, "min"), (3600, "h")):
        if value / factor < (99.5 if factor < 3600 else 47.5):
            return str(rounded(value / factor)), unit
    return str(rounded(value / 86400)), "d"


def _joined(time: tuple[str, str], compact: bool) -> str:
    return f"{time[0]}{'' if compact else ' '}{_unit(time[1], compact)}"


def _unit(unit: str, compact: bool) -> str:
    return unit[0] if compact else unit


def _two_figures(text: str) -> str:
    """`+21 MiB/s` of `+21.0 MiB/s`, `+9.5 MiB/s` of `+9.54 MiB/s`."""
    figure, blank, unit = text.partition(" ")
    whole_part, dot, rest = figure.partition(".")
    if not dot:
        return text
    kept = f"{whole_part}.{rest[0]}" if len(whole_part.lstrip("+-")) == 1 else whole_part
    return kept + blank + unit


def _compact(text: str) -> str:
    if text == UNKNOWN:
        return text
    figure, _, unit = text.partition(" ")
    if not unit:
        return figure
    each = "/s" if unit.endswith("/s") else ""
    letter = "" if unit.startswith("B") else unit[0]
    return figure + letter + each
