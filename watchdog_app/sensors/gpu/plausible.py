"""
Figures that cannot be: a driver's nonsense is no figure.

Each function gives the figure, or None and why it is not believed.
"""

from __future__ import annotations

from typing import NamedTuple

# The hottest that silicon survives is near 125; 0 is what a sensor says that is not there.
_COLDEST_C, _HOTTEST_C = 1, 130
_LEAST_THRESHOLD_C, _MOST_THRESHOLD_C = 50, 130
# Boards briefly draw more than their limit; the largest draw 1.4 kW.
_OVER_LIMIT = 1.5
_OVER_LIMIT_W = 25.0
_MOST_W = 3000.0
# Some laptop cards, which tell no limit, said 593 W with nothing to do.
_IDLE_PERCENT = 5
_MOST_IDLE_W = 250.0
_MOST_BYTES = 1 << 50  # the largest cards have a two-thousandth of that
_ALL_ONES = frozenset((2**32 - 1, 2**64 - 1))
_MOST_FAN_PERCENT = 200.0  # more than 100 is what NVML calls above the nominal speed


class Believed(NamedTuple):
    """A figure, or why there is none."""

    value: float | None
    why: str | None = None


def power(watts: float, limit_w: float | None, utilization_percent: float | None) -> Believed:
    """Power draw against the enforced limit, in watts."""
    if limit_w is not None:
        too_much = watts > limit_w * _OVER_LIMIT + _OVER_LIMIT_W
        against = f"with a limit of {limit_w:.0f} W"
    else:
        idle = utilization_percent is not None and utilization_percent <= _IDLE_PERCENT
        too_much = watts > (_MOST_IDLE_W if idle else _MOST_W)
        against = "with nothing to do" if idle else "at all"
    if too_much or watts < 0:
        return Believed(None, f"Power: the driver says {watts:.0f} W {against}: not believed.")
    return Believed(watts)


def power_limit(watts: float) -> Believed:
    """An enforced limit, in watts."""
    if not 0 < watts <= _MOST_W:
        return Believed(None, f"Power limit: the driver says {watts:.0f} W: not believed.")
    return Believed(watts)


def memory(value: int) -> bool:
    """Whether so many bytes can be on a card: a driver's N/A is all ones, and so is a dead bus."""
    return 0 <= value <= _MOST_BYTES


def count(value: int) -> int | None:
    """A counter of errors, or a mask; None: all ones, as a bus reads on which nobody answers."""
    return None if value < 0 or value in _ALL_ONES else value


def temperature(celsius: float) -> Believed:
    """The card's temperature."""
    if not _COLDEST_C <= celsius <= _HOTTEST_C:
        return Believed(None, f"Temperature: the driver says {celsius:.0f} °C: not believed.")
    return Believed(celsius)


def threshold(celsius: float) -> float | None:
    """A temperature at which something happens; None: not believed."""
    return celsius if _LEAST_THRESHOLD_C <= celsius <= _MOST_THRESHOLD_C else None


def percent(value: float, what: str, most: float = 100.0) -> Believed:
    """A share of 100."""
    if not 0 <= value <= most:
        return Believed(None, f"{what}: the driver says {value:.0f} %: not believed.")
    return Believed(value)


def fan(value: float) -> Believed:
    """Fan speed; NVML may say more than 100."""
    return percent(value, "Fan", _MOST_FAN_PERCENT)
