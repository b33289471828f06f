"""
A recorded series and its file: CSV, plain or gzipped.

Columns `t` (seconds from the beginning), `limit`, and one or more readings in
bytes: `used`, or `unrecl`, `ws`, `usage` and `rss` of a memory group, to which
`swap` is added where it is there. A file NAME.json beside NAME.csv.gz may say
how it ended (`outcome`, `oom_time_s`) and what counts as the limit
(`memsw_limit_bytes`).
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO, cast

from watchdog_app.core.outlook import CeilingKind
from watchdog_app.errors import UsageError

SIGNALS = ("unrecl", "used", "ws", "usage", "rss")  # the first that a file has is played
_FAILED = {"oom", "memory_error"}
_MOST_SAMPLES = 5_000_000

Sample = tuple[float, float, float]  # (time in s, used, limit)


@dataclass(frozen=True, slots=True)
class Trace:
    """One series, oldest sample first, times increasing."""

    name: str
    samples: Sequence[Sample]
    unit: str = "bytes"
    signal: str = "used"
    ended_s: float | None = None  # when it was killed; None: it ended well, or nobody wrote it down
    kind: CeilingKind = CeilingKind.CGROUP  # what the limit belongs to
    start_unix_s: float | None = None
    task: str | None = None  # whose memory it is, as its user knows it; rules match it
    task_path: str | None = None


def read(path: str, signal: str | None = None, limit: float | None = None) -> Trace:
    """
    The trace in a file.

    Args:
        path: of a CSV file, gzipped or not.
        signal: column to play; None: the best that is there.
        limit: instead of the file's own.

    Raises:
        UsageError: no such file, no trace, or no such column.
    """
    try:
        with _open(path, "rt" if _gzipped(path) else "r") as file:
            table = csv.DictReader(file)
            columns = tuple(table.fieldnames or ())
            chosen = _column(path, columns, signal, limit)
            side = _side(path)
            given = limit if limit is not None else _number(side.get("memsw_limit_bytes"))
            samples = _samples(path, table, chosen, given)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"The trace {path} cannot be read: {error}.") from error
    if not samples:
        raise UsageError(f"The trace {path} holds no samples; there is nothing to play.")
    ended = _number(side.get("oom_time_s")) if side.get("outcome") in _FAILED else None
    task = side.get("task")
    return Trace(
        os.path.basename(path),
        samples,
        signal=chosen,
        ended_s=ended,
        task=task if isinstance(task, str) else None,
    )


def write(path: str, rows: Iterable[Sequence[float | int | None]], columns: Sequence[str]) -> int:
    """
    Write a trace, gzipped when the name ends in .gz; each row is on the disk before the next.

    Returns:
        Rows written.
    """
    written = 0
    with _open(path, "wt" if path.endswith(".gz") else "w") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        for row in rows:
            table.writerow(["" if cell is None else cell for cell in row])
            written += 1
            if not path.endswith(".gz"):
                file.flush()
    return written


def _open(path: str, mode: str) -> TextIO:
    """A text file; gzipped with the modes "rt" and "wt"."""
    if len(mode) == 2:
        return cast("TextIO", gzip.open(path, mode, newline=""))
    return cast("TextIO", open(path, mode, newline="", encoding="utf-8"))


def _gzipped(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _column(path: str, columns: tuple[str, ...], signal: str | None, limit: float | None) -> str:
    there = [name for name in SIGNALS if name in columns]
    if "t" not in columns or not there:
        raise UsageError(
            f"The file {path} is no trace: its first line names neither the time t nor one of "
            f"{', '.join(SIGNALS)}. watchdog record makes such files."
        )
    if signal is not None and signal not in there:
        raise UsageError(f"The trace {path} has no column {signal}; it has {', '.join(there)}.")
    if "limit" not in columns and limit is None:
        raise UsageError(f"The trace {path} has no column limit. Give one with --limit.")
    return signal or there[0]


def _samples(
    path: str, table: csv.DictReader[str], signal: str, limit: float | None
) -> list[Sample]:
    samples: list[Sample] = []
    swaps = signal != "used"
    for row in table:
        if len(samples) >= _MOST_SAMPLES:
            raise UsageError(f"The trace {path} holds more than {_MOST_SAMPLES} samples.")
        t, used = _number(row.get("t")), _number(row.get(signal))
        top = limit if limit is not None else _number(row.get("limit"))
        if t is None or used is None or top is None:
            continue  # half a line, as a killed recorder leaves it
        swap = (_number(row.get("swap")) or 0.0) if swaps else 0.0
        if not samples or t > samples[-1][0]:
            samples.append((t, used + swap, top))
    return samples


def _side(path: str) -> dict[str, object]:
    stem = path.removesuffix(".gz").removesuffix(".csv")
    try:
        with open(stem + ".json", encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}  # nobody wrote one: a trace needs none
    return found if isinstance(found, dict) else {}


def _number(value: object) -> float | None:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
