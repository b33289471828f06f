"""
Show what each thread of a task is doing: its Python stack, from the agent, and its kernel state.
Nothing is stopped or attached, and no value of a variable is shown. Without an agent, or while
a C extension holds the interpreter's lock (GIL), there are no Python stacks.

examples:
  watchdog stacks train.ipynb
  watchdog stacks 4242 --all          every thread and every line
  watchdog stacks train.py --json | jq '.reasons[0].text'
"""

from __future__ import annotations

import sys
from typing import Any

from watchdog_app.base.errors import EXIT_OK
from watchdog_app.base.text.terminal import plain
from watchdog_app.cli.output import Output, wrap_lines
from watchdog_app.cli.parser import Args, Parser
from watchdog_app.client.client import request

Json = dict[str, Any]


_ANSWER_S = 15.0
_MAX_FRAMES = 8  # frames shown of a Python stack
_MAX_NATIVE_THREADS = 3  # threads shown without a Python stack, if the process has no Python stack
_STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "cannot be interrupted",
    "T": "is stopped",
    "t": "is held by a debugger",
    "Z": "has ended, and its parent has not noticed",
}


def add_arguments(parser: Parser) -> None:
    """Add the task and the options of the display."""
    parser.task()
    parser.flag("--all", "show every thread and every line of its stack")
    parser.json("print all of it as JSON")
    parser.color_option()


def run(args: Args, out: Output) -> int:
    """Ask for the stacks and print them."""
    with out.progress("asking its threads"):
        found = request("task.stacks", task=args.task, wait_s=_ANSWER_S)
    out.result(
        found,
        lambda: [
            out.style.paint(line, weight)
            for text, weight in render(found, args.all)
            for line in wrap_lines(text, out.columns)
        ],
    )
    return EXIT_OK


def render(found: Json, everything: bool = False) -> list[tuple[str, str]]:
    """
    Return lines with their style: "bold", "dim" or "".

    Args:
        found: the answer to `task.stacks`.
        everything: show every thread and every frame.
    """
    lines: list[tuple[str, str]] = []
    seen = found.get("last_seen")
    if found.get("answered") is None:
        lines.append(("No agent is in it: Python's stacks are not known.", ""))
    elif found.get("answered") is False:
        at = "" if not seen else f" Before, it was at {_format_frame(seen)}."
        text = "Its agent got no turn within three seconds: a call into a C library keeps the "
        lines.append((f"{text}interpreter's lock (GIL), or the machine is very slow.{at}", ""))
    for process in found.get("processes") or []:
        lines += _render_process(process, everything)
    # A task that computes is not suspicious: it may be training.
    reasons = [one for one in found.get("reasons") or [] if one.get("kind") != "busy"]
    if reasons:
        first = reasons[0]
        lines.append(("", ""))
        lines.append(
            (f"If it does not progress, most likely {plain(first.get('text') or '?')}.", "bold")
        )
        lines += [(f"  - {plain(reason)}", "") for reason in first.get("facts") or []]
        lines.append((f"  > {plain(first.get('remedy') or '')}", ""))
    return lines


def _render_process(process: Json, everything: bool) -> list[tuple[str, str]]:
    threads = [thread for thread in process.get("threads") or [] if isinstance(thread, dict)]
    name = f"Process {process.get('pid')} ({plain(process.get('name') or '?')})"
    state = str(process.get("state"))
    count = max(len(threads), process.get("thread_count") or 0)
    if not threads:
        return [(f"{name}: {_STATES.get(state, plain(state))}", "bold")]
    lines = [(f"{name}, {count} thread{'s' if count > 1 else ''}", "bold")]
    python = [thread for thread in threads if thread.get("frames")]
    kernel = [thread for thread in threads if not thread.get("frames")]
    shown = python + (kernel if everything else kernel[: 1 if python else _MAX_NATIVE_THREADS])
    max_frames = sys.maxsize if everything else _MAX_FRAMES
    for thread in shown:
        frames = thread.get("frames") or []
        lines.append((f"  {_format_thread(thread)}", ""))
        lines += [(f"    {_format_frame(frame)}", "") for frame in frames[:max_frames]]
        if len(frames) > max_frames:
            lines.append((f"    ... and {len(frames) - max_frames} more (--all shows them)", "dim"))
    left = count - len(shown)
    if left > 0:
        lines.append((f"  ... and {left} more that hold no Python (--all shows them)", "dim"))
    return lines


def _format_thread(thread: Json) -> str:
    notes = []
    if thread.get("tid") is not None:
        notes.append(str(thread["tid"]))
    if thread.get("trains"):
        notes.append("it trains")
    ident = f" ({', '.join(notes)})" if notes else ""
    state, waits = thread.get("state"), thread.get("wchan") or thread.get("syscall")
    does = _STATES.get(str(state), plain(str(state))) if state else "not known to the kernel"
    at = f" in {plain(waits)}" if waits and state != "R" else ""
    return f"{plain(thread.get('name') or '?')}{ident}: {does}{at}"


def _format_frame(frame: Json) -> str:
    line = "" if frame.get("line") is None else f":{frame['line']}"
    return f"{plain(frame.get('file') or '?')}{line} in {plain(frame.get('function') or '?')}"
