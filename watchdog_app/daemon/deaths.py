"""
Of what a task died: pure, from its exit status and the kernel's counters.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

from watchdog_app.core.records import RescueRecord
from watchdog_app.units import format_bytes, format_duration

OUT_OF_MEMORY = "out_of_memory"
KILLED = "killed"
CRASHED = "crashed"
FAILED = "failed"
UNKNOWN = "unknown"
ENDED = "ended"  # well, or because its user wanted it: no death

_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}
_WANTED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


@dataclass(frozen=True, slots=True)
class Traces:
    """What a death left behind. None: not known."""

    wait_status: int | None  # as wait(2) gives it
    group_kills: int | None  # that the kernel made for memory in its group just now
    host_kills: int | None  # ... on the whole machine
    near_limit: str | None = None  # label of a ceiling that was near its end
    limit: str | None = None  # label of the ceiling that would have been hit first
    was_paused: bool = False  # by us


@dataclass(frozen=True, slots=True)
class Cause:
    """`kind` is one of the words above; `short` and `text` go on after the name of the task."""

    kind: str
    short: str
    text: str
    signal: str | None = None
    exit_code: int | None = None


def cause(traces: Traces) -> Cause:
    """The likeliest cause."""
    status = traces.wait_status
    number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
    name = _signal_name(number)
    code = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None
    near = f" while it was close to its limit ({traces.near_limit})" if traces.near_limit else ""
    certain = number == signal.SIGKILL or traces.near_limit is not None
    if number in (None, signal.SIGKILL) and code is None:
        where = traces.limit if traces.group_kills else traces.near_limit
        if traces.group_kills or (traces.host_kills and certain):
            of_what = f" ({where})" if where else ""
            return Cause(
                OUT_OF_MEMORY,
                "ran out of memory",
                f"ran out of memory{of_what}: the kernel killed it",
                name,
            )
    if number == signal.SIGKILL:
        return Cause(KILLED, "was killed", f"was killed{near}{_by_whom(traces)}", name)
    if number is not None and number in _WANTED:
        return Cause(ENDED, "was ended", f"was ended by {name}", name)
    if number is not None and number in _CRASHES:
        return Cause(CRASHED, "crashed", f"crashed ({name}){near}", name)
    if number is not None:
        return Cause(KILLED, "was ended", f"was ended by {name}{near}", name)
    if code == 0:
        return Cause(ENDED, "ended", "ended", exit_code=0)
    if code is not None:
        text = f"failed (exit status {code}){near}"
        return Cause(FAILED, "failed", text, exit_code=code)
    return Cause(UNKNOWN, "is gone", f"is gone{near}, and nothing tells why")


def _by_whom(traces: Traces) -> str:
    """Who sends SIGKILL when the kernel did not for memory."""
    if traces.near_limit:
        return (
            ", and not by the kernel: by a guard such as systemd-oomd or earlyoom, "
            "a batch system, or a person"
        )
    if traces.was_paused:
        return " while it was paused: Jupyter does that on Restart and on Shutdown"
    return " (SIGKILL), and not for memory: by a person, a restart in Jupyter or a batch system"


def text(name: str, pid: int, found: Cause, rescue: RescueRecord | None, now_unix_s: float) -> str:
    """The death in words: who, of what, and what is left to go on from."""
    if rescue is not None:
        age = format_duration(max(0.0, now_unix_s - rescue.saved_unix_s))
        left = (
            f"Its rescue of step {rescue.step} ({format_bytes(rescue.bytes)}, saved {age} before) "
            "is complete: run it again and it goes on from there."
        )
    else:
        left = "It left no rescue."
    return f"{name} (pid {pid}) {found.text}. {left}"


def entry(
    name: str, pid: int, found: Cause, rescue: RescueRecord | None, now_unix_s: float
) -> dict[str, Any]:
    """The death as the journal keeps it."""
    return {
        "pid": pid,
        "name": name,
        "cause": found.kind,
        "signal": found.signal,
        "exit_code": found.exit_code,
        "text": text(name, pid, found, rescue, now_unix_s),
        "rescue": None
        if rescue is None
        else {
            "path": rescue.path,
            "step": rescue.step,
            "bytes": rescue.bytes,
            "seconds": rescue.seconds,
            "saved_unix_s": rescue.saved_unix_s,
        },
    }


def _signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
