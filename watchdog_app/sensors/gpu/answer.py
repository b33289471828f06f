"""
Lines of the reader to records. The reader is ours, the driver inside it is not: what does not
fit is an error, never a wrong figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from watchdog_app.core.model.hardware import Gpu, GpuProcess, GpuState

_BYTES = ("memory_used_bytes", "memory_reserved_bytes", "memory_total_bytes")
_COUNTS = (*_BYTES, "throttle_reasons", "ecc_uncorrected")
_FIGURES = (
    "utilization_percent",
    "temperature_c",
    "slowdown_c",
    "shutdown_c",
    "fan_percent",
    "power_w",
    "power_limit_w",
    "processes_mono_s",
)
_FLAGS = ("remap_pending", "remap_failed")
_TEXTS = ("bus_id", "parent_id", "recovery_action")
_MOST_TEXT = 200
_MOST_CARDS = 1024
_MOST_NOTES = 20


def processes(
    rows: Sequence[Sequence[Any]], foreign: Callable[[int], bool]
) -> tuple[GpuProcess, ...]:
    """
    Who is on a card.

    Args:
        rows: pid and bytes, as the reader tells them.
        foreign: whether a pid is none that we can see.

    Raises:
        ValueError, TypeError: those are none.
    """
    return tuple(
        GpuProcess(int(pid), None if memory is None else int(memory), foreign(int(pid)))
        for pid, memory in rows
    )


def card(row: Mapping[str, Any], running: tuple[GpuProcess, ...]) -> Gpu:
    """
    One card's figures.

    Args:
        row: as the reader tells them.
        running: who is on it.

    Raises:
        ValueError, TypeError, KeyError: that is no card.
    """
    index = int(row["index"])
    if not 0 <= index < _MOST_CARDS:
        raise ValueError(f"card {index}")
    fields: dict[str, Any] = {name: _count(row[name]) for name in _COUNTS if name in row}
    fields |= {name: _figure(row[name]) for name in _FIGURES if name in row}
    fields |= {name: bool(row[name]) for name in _FLAGS if name in row}
    fields |= {name: text(row[name]) for name in _TEXTS if name in row}
    return Gpu(
        id=text(row.get("uuid", "")),
        uuid=text(row["uuid"]) if "uuid" in row else None,
        index=index,
        name=text(row.get("name", "NVIDIA GPU")),
        state=GpuState(row.get("state", GpuState.OK)),
        unified_memory=bool(row.get("unified_memory", False)),
        processes=running,
        notes=tuple(text(note) for note in row.get("notes", ())[:_MOST_NOTES]),
        **fields,
    )


def _count(value: Any) -> int:
    found = int(value)
    if found < 0:
        raise ValueError(f"{found} of something")
    return found


def _figure(value: Any) -> float:
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"{found} of something")
    return found


def versions(row: Mapping[str, Any]) -> dict[str, Any]:
    """
    What driver and library say of themselves: `driver`, `library`, `cuda`; None: not told.

    Raises:
        ValueError, TypeError, KeyError: that is no answer.
    """
    found: dict[str, Any] = {
        name: None if row[name] is None else text(row[name]) for name in ("driver", "library")
    }
    return {**found, "cuda": None if row["cuda"] is None else int(row["cuda"])}


def text(value: object) -> str:
    """
    Words of the driver's, without what could steer a terminal.

    Raises:
        TypeError: that is none.
    """
    if not isinstance(value, str):
        raise TypeError("no text")
    if value.isprintable():
        return value[:_MOST_TEXT]
    return "".join(c if c.isprintable() else "?" for c in value[:_MOST_TEXT])
