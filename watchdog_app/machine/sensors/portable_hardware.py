"""
Heat, fans and battery as psutil tells them: macOS and Windows (battery), FreeBSD (heat too).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import psutil

from watchdog_app.base.text.plain import clean
from watchdog_app.core.model.hardware import Battery, Fan, Temperature
from watchdog_app.machine.sensors.hardware import HeatAndPower

_BATTERY_EVERY_S = 10.0
_PROCESSORS = ("coretemp", "k10temp", "cpu", "cpu_thermal")


class PsutilReader:
    """What psutil offers on this system; a question that it does not know has no answer."""

    def __init__(self) -> None:
        self._battery: tuple[tuple[Battery, ...], bool | None] = ((), None)
        self._battery_mono_s = float("-inf")

    def present(self) -> bool:
        """Whether psutil knows any of the questions here."""
        return any(
            hasattr(psutil, name)
            for name in ("sensors_temperatures", "sensors_fans", "sensors_battery")
        )

    def read(self, now_mono_s: float) -> HeatAndPower:
        """What psutil knows now."""
        if now_mono_s >= self._battery_mono_s:
            self._battery_mono_s = now_mono_s + _BATTERY_EVERY_S
            self._battery = battery(_ask("sensors_battery"))
        return HeatAndPower(
            temperatures=temperatures(_ask("sensors_temperatures") or {}),
            fans=fans(_ask("sensors_fans") or {}),
            batteries=self._battery[0],
            on_mains=self._battery[1],
        )

    def close(self) -> None:
        """Nothing is held open."""


def temperatures(found: dict[str, list[Any]]) -> tuple[Temperature, ...]:
    """
    The hottest sensor of each processor chip, of psutil's `sensors_temperatures`.

    The limits of a processor ("critical") are where it begins to slow itself down.
    """
    result = []
    for name, entries in found.items():
        if name.lower() not in _PROCESSORS:
            continue
        known = [each for each in entries if _is_heat(each.current)]
        if known:
            hottest = max(known, key=lambda each: float(each.current))
            limit = hottest.critical
            result.append(
                Temperature(
                    key=clean(name),
                    label="CPU",
                    celsius=float(hottest.current),
                    slowdown_c=float(limit) if _is_heat(limit) and limit >= 40 else None,
                    is_cpu=True,
                )
            )
    return tuple(result)


def fans(found: dict[str, list[Any]]) -> tuple[Fan, ...]:
    """The fans of psutil's `sensors_fans`."""
    return tuple(
        Fan(clean(each.label or f"{name} fan {index}"), int(each.current))
        for name, entries in found.items()
        for index, each in enumerate(entries, 1)
        if each.current is not None and 0 <= each.current <= 30_000
    )


def battery(found: Any) -> tuple[tuple[Battery, ...], bool | None]:
    """The batteries of psutil's `sensors_battery`, all as one; none where it answers None."""
    if found is None or found.percent is None or not 0 <= found.percent <= 100:
        return (), None
    plugged = found.power_plugged
    return (
        (Battery(name="battery", percent=float(found.percent), discharging=plugged is False),),
        plugged,
    )


def _is_heat(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and 0.0 < value <= 126.0


def _ask(question: str) -> Any:
    """psutil's answer; None where it has no such question here, or fails at it."""
    ask: Callable[[], Any] | None = getattr(psutil, question, None)
    if ask is None:
        return None
    try:
        return ask()
    except Exception:  # OSError, RuntimeError and others, by system and driver
        return None
