"""
A recorded series and its file: CSV, plain or gzipped.

The columns are `t` (seconds from the start), `used` and `limit` (bytes). A file NAME.json next to
NAME.csv.gz may contain the end (`outcome`, `oom_time_s`) and the name of the task.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, TextIOWrapper
from typing import Any, BinaryIO, TextIO, cast

from watchdog_app.base.errors import UsageError
from watchdog_app.base.text.quantities import number_or_none
from watchdog_app.core.model.resource import ResourceKind

_LINE_CHARS = 1 << 16  # a longer line is read in pieces, which are no samples

_PAGE = "<!doctype html>"
# Around the table in a page of `watchdog report`.
EMBEDDED_BEGIN, EMBEDDED_END = '<pre class="trace">', "</pre>"

Sample = tuple[float, float, float]  # (time in s, used, limit)


@dataclass(frozen=True, slots=True)
class Trace:
    """One series, oldest sample first, times increasing."""

    name: str
    samples: Sequence[Sample]
    unit: str = "bytes"
    ended_s: float | None = None  # time of the kill; None: a normal end, or unknown
    kind: ResourceKind = ResourceKind.CGROUP  # kind of the resource
    start_unix_s: float | None = None
    task: str | None = None  # name of the task; rules match it
    task_path: str | None = None
    cut: bool = False  # the file is truncated


def read(path: str) -> Trace:
    """
    Read a trace from a file.

    Args:
        path: path of a CSV file, gzipped or not; - is standard input.

    Raises:
        UsageError: the file does not exist or is not a trace.
    """
    samples: list[Sample] = []
    cut = False
    try:
        with _open(path) as file:
            # A small archive may hold a line of gigabytes: it is read in pieces.
            table = csv.DictReader(_table_lines(iter(lambda: file.readline(_LINE_CHARS), "")))
            if not {"t", "used", "limit"} <= set(table.fieldnames or ()):
                raise UsageError(
                    f"The file {path} is no trace: its first line does not name t, limit and used."
                )
            try:
                for sample in _samples(table):
                    samples.append(sample)
            except (EOFError, gzip.BadGzipFile, zlib.error):
                # A killed writer leaves a truncated file; the samples before the end are valid.
                cut = True
    except UnicodeDecodeError as error:
        raise UsageError(f"The file {path} is no trace: it is no text.") from error
    except OSError as error:
        raise UsageError(f"The trace {path} cannot be read: {error.strerror or error}.") from error
    except (EOFError, zlib.error, csv.Error) as error:
        raise UsageError(f"The trace {path} cannot be read: {error}.") from error
    if not samples:
        raise UsageError(f"The trace {path} holds no samples; there is nothing to play.")
    side = _side(path)
    ended = number_or_none(side.get("oom_time_s")) if side.get("outcome") == "oom" else None
    task = side.get("task")
    return Trace(
        "standard input" if path == "-" else os.path.basename(path),
        samples,
        cut=cut,
        ended_s=ended,
        task=task if isinstance(task, str) else None,
    )


def from_series(series: Mapping[str, Any], task: Mapping[str, Any]) -> Trace | None:
    """
    A series of the journal as a trace; None: the series has no usable point.

    Args:
        series: one item of the protocol's `series`.
        task: series of the task's memory, for its name and path; may be empty.
    """
    samples: list[Sample] = []
    begin: float | None = None
    for unix_s, used, limit, _swap in series["points"]:
        if used is None or limit is None:
            continue
        begin = unix_s if begin is None else begin
        if not samples or unix_s - begin > samples[-1][0]:
            samples.append((unix_s - begin, used, limit))
    if not samples:
        return None
    kind = series["kind"]
    return Trace(
        series["name"] or kind,
        samples,
        unit=series["unit"] or "bytes",
        kind=ResourceKind(kind) if kind in list(ResourceKind) else ResourceKind.CGROUP,
        start_unix_s=begin,
        task=task.get("name"),
        task_path=task.get("path"),
    )


@contextmanager
def _open(path: str) -> Iterator[TextIO]:
    """Open a file as text, gzipped or not. The file may be a pipe."""
    if path == "-" and sys.stdin is None:
        raise UsageError("Standard input is closed; there is no trace to read.")
    raw = sys.stdin.buffer if path == "-" else open(path, "rb")  # noqa: SIM115
    with raw:
        file = cast("BufferedReader", raw)
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        # Spreadsheets write a byte order mark before the first name.
        with TextIOWrapper(
            cast("BinaryIO", gzip.GzipFile(fileobj=file)) if packed else file,
            "utf-8-sig",
            newline="",
        ) as text:
            yield text


def _table_lines(lines: Iterator[str]) -> Iterator[str]:
    """The lines of a CSV file; of a page of `watchdog report` those of its table."""
    first = next(lines, "")
    if not first.startswith(_PAGE):
        yield first
        yield from lines
        return
    for line in lines:
        _, begin, head = line.partition(EMBEDDED_BEGIN)
        if begin:
            yield head
            break
    for line in lines:
        last, end, _ = line.partition(EMBEDDED_END)
        yield last
        if end:
            return


def _samples(table: csv.DictReader[str]) -> Iterator[Sample]:
    last = -math.inf
    for row in table:
        t, used, limit = (_number(row.get(name)) for name in ("t", "used", "limit"))
        if t is None or used is None or limit is None:
            continue  # a truncated line of a killed recorder
        if t > last:
            last = t
            yield t, used, limit


def _side(path: str) -> dict[str, object]:
    stem = path.removesuffix(".gz").removesuffix(".csv")
    try:
        with open(stem + ".json", encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}  # the file is optional
    return found if isinstance(found, dict) else {}


def _number(text: str | None) -> float | None:
    try:
        return number_or_none(float(text or ""))
    except ValueError:
        return None
