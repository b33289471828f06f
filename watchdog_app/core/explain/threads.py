"""What the threads of a task do, in words: those that matter whole, the rest counted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from watchdog_app.base.text.plain import plain
from watchdog_app.core.diagnosis.stall_signs import place
from watchdog_app.core.model.agent import ProcessThreads, ThreadDump, ThreadState

_STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "cannot be interrupted",
    "T": "is stopped",
    "t": "is held by a debugger",
    "Z": "has ended, and its parent has not noticed",
    "I": "sleeps",
}
_TOPS = 6  # frames of a thread that are shown
_MOST_PROCESSES = 12
_MOST_WITH_PYTHON = 8


def where(picture: ThreadDump) -> str | None:
    """The innermost line of the thread that trains; None if not known."""
    root = picture.root
    main = None if root is None else root.main
    if main is not None and main.frames:
        return place(main.frames[0])
    if picture.last_seen is not None:
        return f"{place(picture.last_seen)} ({picture.last_seen_s or 0.0:.0f} s before)"
    return None


def of_picture(picture: ThreadDump, tops: int = _TOPS) -> Iterator[str]:
    """
    Lines for a person, without an end of line.

    Args:
        picture: of a task.
        tops: frames of each thread that are shown.
    """
    if picture.answered is False:
        seen = picture.last_seen
        yield "Python's stacks: the agent got no turn to tell them (the GIL is held)." + (
            ""
            if seen is None
            else f" {picture.last_seen_s or 0.0:.0f} s before it was at {place(seen)}."
        )
    for process in picture.processes[:_MOST_PROCESSES]:
        yield from _process(process, tops)
    left = len(picture.processes) - _MOST_PROCESSES
    if left > 0:
        yield f"... and {left} more processes"


def _process(process: ProcessThreads, tops: int) -> Iterator[str]:
    state = _STATES.get(process.state, f"state {plain(process.state, 4)}")
    name = plain(process.name, 30)
    if not process.threads:
        yield f"Process {process.pid} ({name}): {state}."
        return
    count = max(process.thread_count, len(process.threads))
    yield f"Process {process.pid} ({name}): {count} thread{'s' if count > 1 else ''}."
    python = [each for each in process.threads if each.frames or each.trains]
    shown = python[:_MOST_WITH_PYTHON] or list(process.threads[:1])
    if process.threads[0] not in shown:
        shown.insert(0, process.threads[0])
    for thread in shown:
        yield f"  {plain(thread.name, 40)}{_ident(thread)}: {_does(thread)}"
        for frame in thread.frames[:tops]:
            yield f"    {place(frame)}"
        if len(thread.frames) > tops:
            yield f"    ... and {len(thread.frames) - tops} more"
    rest = Counter(_does(each) for each in process.threads if each not in shown)
    for does, number in rest.most_common(4):
        yield f"  {number} more: {does}"


def _ident(thread: ThreadState) -> str:
    said = [] if thread.tid is None else [str(thread.tid)]
    if thread.trains:
        said.append("it trains")
    return f" ({', '.join(said)})" if said else ""


def _does(thread: ThreadState) -> str:
    if thread.state is None:
        return "what the kernel says of it is not known"
    state = _STATES.get(thread.state, f"state {plain(thread.state, 4)}")
    place_ = thread.waits
    return state if place_ is None or thread.state == "R" else f"{state} in {plain(place_, 60)}"
