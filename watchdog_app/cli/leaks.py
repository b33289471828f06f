"""
Ask the agent in a training for the lines whose Python objects keep growing, and for tensors
that accumulate. Python code runs up to twice as slow meanwhile; the framework's kernels do
not. A program that uses tracemalloc itself, or that tracing could crash, is asked for
tensors only. A due warning does the same once, for five seconds (watch.trace).

examples:
  watchdog leaks train.ipynb
  watchdog leaks train.py --for 1min     for what grows once an epoch
"""

from __future__ import annotations

from typing import Any

from watchdog_app.base.errors import EXIT_OK, UsageError
from watchdog_app.base.text import quantities
from watchdog_app.base.text.quantities import format_duration, number_or_none
from watchdog_app.base.text.terminal import plain
from watchdog_app.cli.output import Output, wrap_lines
from watchdog_app.cli.parser import Args, Parser, positive_duration
from watchdog_app.client.client import request

Json = dict[str, Any]


_DEFAULT_S = 10.0
_MIN_S, _MAX_S = 1.0, 120.0
_ANSWER_S = 30.0  # longer than the daemon's own timeout


def add_arguments(parser: Parser) -> None:
    """Add the task and the duration."""
    parser.task()
    parser.option(
        "--for TIME",
        "duration, 1s to 2min (default: 10s)",
        positive_duration,
        dest="for_s",
        default=_DEFAULT_S,
    )
    parser.json("print what was found as JSON")


def run(args: Args, out: Output) -> int:
    """Ask the daemon, wait, and print the answer."""
    if not _MIN_S <= args.for_s <= _MAX_S:
        raise UsageError("--for must be between 1s and 2min.")
    wait_s = args.for_s + _ANSWER_S
    with out.progress(f"tracing for {format_duration(args.for_s)}"):
        found = request("task.leaks", task=args.task, seconds=args.for_s, wait_s=wait_s)
    out.result(found, lambda: wrap_lines("\n".join(render(found)), out.columns))
    return EXIT_OK


def render(found: Json) -> list[str]:
    """
    Return the lines to print.

    Args:
        found: the answer to `task.leaks`.
    """
    seconds, steps = number_or_none(found.get("seconds")), found.get("steps")
    over = "" if seconds is None else f" in {format_duration(seconds)}"
    over += f" and {steps} steps" if isinstance(steps, int) else ""
    name = plain(found.get("name") or "?")
    lines: list[str] = []
    if found.get("refused"):
        lines.append(f"Lines are not known: {plain(found['refused'])}.")
    grown = [record for record in found.get("lines") or [] if isinstance(record, dict)]
    if grown:
        lines.append(f"{name}: Python objects that became more{over}:")
    for record in grown:
        size = number_or_none(record.get("bytes_per_step"))
        each = "" if size is None else f", {quantities.format_bytes(size)} a step"
        place = f"{plain(record.get('file') or '?')}:{record.get('line')}"
        lines.append(f"  {quantities.format_bytes(record.get('bytes'))}{each}: {place}")
    tensors = [record for record in found.get("tensors") or [] if isinstance(record, dict)]
    if tensors:
        lines.append(f"{name}: tensors that became more{over}:")
    for record in tensors:
        shape = ", ".join(str(size) for size in record.get("shape") or [])
        lines.append(f"  {record.get('more')} of {plain(record.get('type') or '?')} ({shape})")
    if not grown and not tensors and not found.get("refused"):
        lines.append(f"{name}: nothing that Python knows of became more{over}.")
        lines.append("What grows is a library's own memory, or it grows more rarely: try longer.")
    if found.get("cut_short") is True:
        lines.append(
            "It ended before its time: so many objects are made that the traces of them had "
            "become 8 MiB, and memory may be short. What grows more slowly is not seen so."
        )
    if found.get("tensors_counted") is False:
        lines.append(
            "Tensors were not counted: worker processes share this one's memory, and a look at "
            "its objects would copy it."
        )
    elif found.get("complete") is False:
        lines.append("There are too many objects to look at all: tensors are counted in part.")
    return lines
