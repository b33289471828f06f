"""Whose growth leads towards a resource: tasks ranked by their share of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from watchdog_app.core.model.decisions import NOBODY, Attribution, Contributor
from watchdog_app.core.model.history import History
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import SPECS, Blame, Reading, ResourceKind

# The shortest window that shows the present growth is asked first: a warm-up that ended half a
# minute ago must not be blamed for the leak of now. Longer ones are for leaks that come in steps.
_WINDOWS_S = (2.0, 5.0, 20.0, 60.0, 240.0)
_NOISE_BYTES = 4 * 1024**2  # an idle interpreter moves by less
_NOISE_RATIO = 0.002  # of the limit
_UNWATCHED_LATE_S = 5.0  # a look at them can be that old
_LISTED = 0.05  # smaller shares are not worth a line
_WORKS_PERCENT = 5.0  # of a core: below it a task that is on a card only waits there


def attribute(
    reading: Reading,
    slope_per_s: float,
    resource: History,
    tasks: Sequence[Task],
    growths: Mapping[ProcessKey, History],
    *,
    cpu_percent: Mapping[ProcessKey, float | None] | None = None,
    unwatched: History | None = None,
) -> Attribution:
    """
    Rank the tasks under a resource by their share of its growth.

    Args:
        reading: the resource now.
        slope_per_s: its trend, 0 when flat.
        resource: history of `reading.used`.
        tasks: those under it, `reading.tasks`.
        growths: history of RAM and swap by task; of a card's memory, for that.
        cpu_percent: by task, for what comes of work: heat, and what a battery gives.
        unwatched: history of what processes hold under it that are not watched; None: they were
            not looked at, and all that no task explains is taken for theirs.
    """
    blame = SPECS[reading.key.kind].blame
    if blame is Blame.WORK:
        return _attribute_by_cpu(tasks, cpu_percent or {})
    if blame is Blame.OWNER and len(tasks) == 1:
        return _attribute_to_owner(tasks[0], slope_per_s, resource)
    if blame is not Blame.GROWTH:
        return NOBODY
    held = {task.key: growths[task.key] for task in tasks if task.key in growths}
    span = _find_span(reading, slope_per_s, resource, held.values())
    if span is None:
        return NOBODY
    if reading.key.kind is ResourceKind.GPU_MEMORY and not held and tasks:
        # A driver that does not say who holds what: whoever is on the card may be the one.
        share = 1.0 / len(tasks)
        rate = span.grown / span.seconds * share
        alike = tuple(Contributor(task.key, task.name, rate, share) for task in tasks)
        return Attribution(alike, 0.0, span.window_s)
    return _attribute_by_growth(span, tasks, held, unwatched)


def _attribute_to_owner(task: Task, slope_per_s: float, resource: History) -> Attribution:
    """The task that has all of it, while it grows."""
    window_s = _WINDOWS_S[1]
    grown, seconds = resource.growth(window_s)
    if grown <= 0 and slope_per_s <= 0:
        return NOBODY
    rate = max(slope_per_s, grown / seconds if seconds else 0.0)
    return Attribution((Contributor(task.key, task.name, rate, 1.0),), 0.0, window_s)


def _attribute_by_growth(
    span: _Span,
    tasks: Sequence[Task],
    held: Mapping[ProcessKey, History],
    unwatched: History | None,
) -> Attribution:
    """By what each task holds more than at the beginning of the span."""
    grown = span.grown
    by_task = {
        key: (growth.last or 0.0) - growth.point_at(span.begin_mono_s)[1]
        for key, growth in held.items()
        if growth.first_mono_s is not None
    }
    missing = grown - sum(part for part in by_task.values() if part > 0)
    _add_new_tasks(by_task, missing, held, span.seen_mono_s)
    others: float | None = None
    if unwatched is not None:
        missing = grown - sum(part for part in by_task.values() if part > 0)
        # They are looked at every few seconds.
        most, seconds = unwatched.growth(span.window_s + _UNWATCHED_LATE_S)
        if seconds < span.window_s:  # they were not looked at before: it may all be new
            most = unwatched.last or 0.0
        others = min(max(0.0, missing), max(0.0, most))
        _add_copied_pages(by_task, missing - others, tasks)
    known = sum(part for part in by_task.values() if part > 0)
    # Pages that were shared, swapped or counted twice can make the tasks' growth the larger one.
    total = max(grown, known)
    names = {task.key: task.name for task in tasks}
    contributors = tuple(
        Contributor(key, names[key], part / span.seconds, part / total)
        for key, part in sorted(by_task.items(), key=lambda item: (-item[1], item[0]))
        if part >= _LISTED * total
    )
    missing = total - known
    others = missing if others is None else min(others, missing)
    return Attribution(contributors, others / total, span.window_s, (missing - others) / total)


def _add_new_tasks(
    by_task: dict[ProcessKey, float],
    missing: float,
    held: Mapping[ProcessKey, History],
    begin_mono_s: float,
) -> None:
    """
    Attribute unexplained growth to tasks first seen since then, up to all that they hold.

    No more than that: a program can also be new to us alone, and have held it for long.
    """
    whole = {
        key: growth.point_at(growth.first_mono_s)[1]
        for key, growth in held.items()
        if growth.first_mono_s is not None and growth.first_mono_s > begin_mono_s
    }
    _spread(by_task, missing, whole)


def _add_copied_pages(
    by_task: dict[ProcessKey, float], missing: float, tasks: Sequence[Task]
) -> None:
    """
    Attribute unexplained growth to forked workers, up to the pages that they could have copied.

    An interpreter that walks through its objects copies pages without becoming larger. How many
    are shared still is measured now and then (`cow_bytes`), and this is what came after.
    """
    shared = {
        task.key: float(sum(member.cow_bytes or 0 for member in task.members))
        for task in tasks
        if task.key in by_task
    }
    _spread(by_task, missing, shared)


def _spread(
    by_task: dict[ProcessKey, float], missing: float, most: Mapping[ProcessKey, float]
) -> None:
    """Attribute unexplained growth in proportion to the most that each task can have of it."""
    total = sum(most.values())
    if missing > 0 and total > 0:
        for key, size in most.items():
            by_task[key] = max(0.0, by_task[key]) + size * min(1.0, missing / total)


def _attribute_by_cpu(
    tasks: Sequence[Task], cpu_percent: Mapping[ProcessKey, float | None]
) -> Attribution:
    """Those that work, by the processor time they take: a card is fed by somebody."""
    busy = {task.key: cpu_percent.get(task.key) or 0.0 for task in tasks}
    total = sum(part for part in busy.values() if part >= _WORKS_PERCENT)
    if not total:
        return NOBODY
    names = {task.key: task.name for task in tasks}
    return Attribution(
        tuple(
            Contributor(key, names[key], 0.0, part / total)
            for key, part in sorted(busy.items(), key=lambda item: (-item[1], item[0]))
            if part >= max(_WORKS_PERCENT, _LISTED * total)
        ),
        0.0,
        _WINDOWS_S[0],
    )


class _Span(NamedTuple):
    """The stretch of time that is looked at."""

    window_s: float  # of `_WINDOWS_S`
    begin_mono_s: float
    seen_mono_s: float  # the resource's own point at the beginning
    grown: float  # of the resource
    seconds: float


def _find_span(
    reading: Reading, slope_per_s: float, resource: History, held: Collection[History]
) -> _Span | None:
    """
    The shortest window in which the resource has grown as its trend says, and beyond noise.

    It ends when the holders were listed last, and begins with one of their lists: growth of the
    resource over two seconds says nothing about holders that are listed every five.
    """
    noise = max(_NOISE_BYTES, _NOISE_RATIO * reading.limit)
    best = None
    for window in _WINDOWS_S:
        listed_mono_s = reading.held_mono_s
        end = resource.point_at(float("inf") if listed_mono_s is None else listed_mono_s)
        begin = end[0] - window
        if listed_mono_s is not None:
            begin = min((begin, *(growth.point_at(begin)[0] for growth in held)))
        then = resource.point_at(begin)
        grown, seconds = end[1] - then[1], end[0] - then[0]
        if seconds <= 0 or grown < noise:
            continue
        span = _Span(window, begin, then[0], grown, seconds)
        if grown >= 0.5 * slope_per_s * seconds:
            return span
        best = span
    return best
