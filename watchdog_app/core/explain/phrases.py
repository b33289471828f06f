"""Shared phrases for resources, times and levels."""

from __future__ import annotations

import math
import time

from watchdog_app.base.text import quantities
from watchdog_app.base.text.plain import clean
from watchdog_app.base.text.quantities import format_bytes, format_duration, format_rough_duration
from watchdog_app.core.model.agent import RescueRecord
from watchdog_app.core.model.resource import SPECS, ResourceKind, Scope
from watchdog_app.core.model.runs import Past, Run, RunEnd, Verdict

_KINDS = {"kernel": "Jupyter kernel", "server": "Jupyter server", "python": "Python"}
_ENDS = {
    RunEnd.ENDED: "ended well with",
    RunEnd.STOPPED: "was stopped at",
    RunEnd.LOST_SIGHT: "was last seen at",
}
_TOO_FAR_S = 30 * 86400.0
WHILE_IT_RUNS = "While it runs or is stopped"  # prefix of advice that is useless after an exit


def format_eta(eta_s: float | None) -> str:
    """Return `in about 4 min`, rounded to the accuracy of a forecast."""
    if eta_s is None or not math.isfinite(eta_s) or eta_s > _TOO_FAR_S:
        return "soon"
    if eta_s < 1.5:
        return "in about a second" if eta_s >= 0.5 else "now"
    return f"in about {format_rough_duration(eta_s)}"


def format_level(used: float, limit: float, unit: str) -> str:
    """
    Return `6.00 GiB of 7.00 GiB`, `78 of 83 °C`, or for a battery `41 % left`.

    The use of a battery is the used part of its charge.

    Args:
        used: in `unit`.
        limit: in `unit`.
        unit: "bytes", "celsius", "watts" or "ratio".
    """
    if unit == "bytes":
        return f"{format_bytes(used)} of {format_bytes(limit)}"
    if unit == "ratio":
        return f"{100 * max(0.0, 1.0 - used):.0f} % left"
    if unit == "seconds":
        return quantities.of_limit(used, limit, unit)
    return f"{used:.4g} of {limit:.4g} {quantities.UNIT_SIGNS.get(unit, unit)}"


def format_slope(slope_per_s: float | None, unit: str) -> str:
    """
    Return a slope in common units: `+21.0 MiB/s`, `+2.1 °C/min`. Empty if level.

    Args:
        slope_per_s: units per second.
        unit: "bytes", "celsius", "watts" or "ratio".
    """
    text = quantities.movement(slope_per_s, unit)
    return "" if text in ("0", quantities.UNKNOWN) else text


def nearness_text(kind: ResourceKind, label: str) -> str:
    """
    Return `RAM is about to run out`, or `GPU 0 is about to switch off from heat`.

    Args:
        kind: kind of the resource.
        label: label of the resource.
    """
    if SPECS[kind].scope is Scope.HEAT:
        return f"{heated_device(label)} is about to switch off from heat"
    return f"{label} is about to run out"


def heated_device(label: str) -> str:
    """Return the hot device of a label: `GPU 0` of `heat of GPU 0 (switches off at 98 °C)`."""
    thing = label.partition(" (")[0]
    return thing.removeprefix("heat of ").removesuffix(" heat")


def kind_text(kind: object) -> str:
    """Return the kind of a task in words: `notebook`, `Jupyter kernel`."""
    return _KINDS.get(str(kind), clean(str(kind or "process")))


def format_age(seconds: float | None) -> str:
    """Return `12 s ago`, or `just now`."""
    if seconds is None:
        return "at an unknown time"
    return "just now" if seconds < 1 else f"{format_duration(seconds)} ago"


def resume_text(rescue: RescueRecord | None) -> str:
    """Return how a training resumes from its rescue after a restart, as the end of a sentence."""
    if rescue is not None and rescue.by_lines:
        return "start it again: it starts over and says which lines resume it."
    return "start it again: it resumes from there."


def describe_run(run: Run) -> str:
    """Say what a run took: `ran out of memory at 6.2 GiB after 41 min on Tuesday, 24 November`."""
    how = _ENDS.get(run.outcome, "ran out of memory at")
    day = time.strftime("%A, %d %B", time.localtime(run.started_unix_s + run.seconds))
    return f"{how} {format_bytes(run.peak_bytes)} after {format_duration(run.seconds)} on {day}"


def describe_past(past: Past, name: str, guard_bytes: int | None = None) -> str:
    """
    Say what earlier runs of a program mean for the present one.

    Args:
        past: what is known about them.
        name: name of the program.
        guard_bytes: limit of its guard; None: it has none.
    """
    room, there = format_bytes(past.room), format_bytes(past.level + past.room)
    if past.expected == 0:
        return f"with other arguments or another text {name} {describe_run(past.last)}"
    if past.together:
        return f"{past.together} will want {format_bytes(past.more)} more, {room} are free"
    times = f"{past.runs} runs" if past.runs > 1 else "run"
    said = f"{name} peaked at {format_bytes(past.expected)} in its last {times}"
    said = f"{name} {describe_run(past.last)}" if past.killed else said
    when = "" if past.end_s is None else f" in about {format_rough_duration(past.end_s)}"
    more = {
        Verdict.SHORT: f"; {room} are free. It will not fit: expect the end{when}",
        Verdict.BEYOND: ", and is above that now",
        Verdict.FITS: f", and {there} are there",
    }
    if guard_bytes is not None and past.verdict is Verdict.FITS:
        return f"{said}; its guard gives it {format_bytes(guard_bytes)}"
    return said + more.get(past.verdict, "")
