"""Earlier runs of a program in words."""

from __future__ import annotations

import time

from watchdog_app.base.text.quantities import format_bytes, format_duration, format_rough_duration
from watchdog_app.core.model.runs import Past, Run, RunEnd, Verdict

_ENDS = {
    RunEnd.ENDED: "ended well with",
    RunEnd.STOPPED: "was stopped at",
    RunEnd.LOST_SIGHT: "was last seen at",
}


def describe_run(run: Run) -> str:
    """Say what a run took: `ran out of memory at 6.2 GiB after 41 min on Tuesday, 24 November`."""
    how = _ENDS.get(run.outcome, "ran out of memory at")
    day = time.strftime("%A, %d %B", time.localtime(run.started_unix_s + run.seconds))
    return f"{how} {format_bytes(run.peak_bytes)} after {format_duration(run.seconds)} on {day}"


def describe_past(past: Past, name: str) -> str:
    """
    Say what earlier runs of a program mean for the present one.

    Args:
        past: what is known about them.
        name: name of the program.
    """
    room, times = format_bytes(past.room), f"{past.runs} runs" if past.runs > 1 else "run"
    if past.expected == 0:
        return f"with other arguments or another text {name} {describe_run(past.last)}"
    if past.together:
        return f"{past.together} will want {format_bytes(past.more)} more, {room} are free"
    said = f"{name} peaked at {format_bytes(past.expected)} in its last {times}"
    if past.last.outcome not in _ENDS:
        said = f"{name} {describe_run(past.last)}"
    if past.verdict is Verdict.SHORT:
        when = "" if past.end_s is None else f" in about {format_rough_duration(past.end_s)}"
        return f"{said}; {room} are free. It will not fit: expect the end{when}"
    if past.verdict is Verdict.BEYOND:
        return f"{said}, and is above that now"
    there = format_bytes(past.level + past.room)
    return f"{said}, and {there} are there" if past.verdict is Verdict.FITS else said
