"""
Lines of the reader to records. The reader is ours, the driver inside it is not: what does not
fit is an error, never a wrong figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from watchdog_app.core.hardware import Gpu, GpuProcess, GpuState

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
)
_FLAGS = ("remap_pending", "remap_failed")
_TEXTS = ("bus_id", "parent_uuid", "recovery_action")
_MOST_TEXT = 200
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
    fields: dict[str, Any] = {name: int(row[name]) for name in _COUNTS if name in row}
    fields |= {name: float(row[name]) for name in _FIGURES if name in row}
    fields |= {name: bool(row[name]) for name in _FLAGS if name in row}
    fields |= {name: _text(row[name]) for name in _TEXTS if name in row}
    return Gpu(
        uuid=_text(row.get("uuid", "")),
        index=index,
        name=_text(row.get("name", "NVIDIA GPU")),
        state=GpuState(row.get("state", GpuState.OK)),
        unified_memory=bool(row.get("unified_memory", False)),
        processes=running,
        notes=tuple(_text(note) for note in row.get("notes", ())[:_MOST_NOTES]),
        **fields,
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    if value.isprintable():
        return value[:_MOST_TEXT]
    return "".join(c if c.isprintable() else "?" for c in value[:_MOST_TEXT])
