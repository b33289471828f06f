"""Rank the tasks under a resource by their share of its growth."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from watchdog_app.core.model.decisions import NOBODY, Attribution, Contributor
from watchdog_app.core.model.history import History
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import SPECS, Blame, Reading, ResourceKind

# Use the shortest window that shows the current growth. A warm-up that ended half a minute ago must
# not be blamed for a leak that happens now. The longer windows find leaks that grow in steps.
_WINDOWS_S = (2.0, 5.0, 20.0, 60.0, 240.0)
_NOISE_BYTES = 4 * 1024**2  # an idle interpreter varies by less than this
_NOISE_RATIO = 0.002  # share of the limit
_UNWATCHED_LATE_S = 5.0  # the last sample of unwatched processes can be this old
_LISTED = 0.05  # smaller shares are not listed
_WORKS_PERCENT = 5.0  # percent of a core; a task on a GPU that uses less is only waiting


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
        reading: current reading of the resource.
        slope_per_s: trend of the resource; 0 when flat.
        resource: history of `reading.used`.
        tasks: the tasks of `reading.tasks`.
        growths: by task, history of its RAM and swap. For GPU memory, history of its memory on that
            GPU.
        cpu_percent: by task; used for heat and battery, which depend on work.
        unwatched: history of the memory of processes that are not watched. None: these processes
            were not sampled. They then get all growth that no task explains.
    """
    blame = SPECS[reading.key.kind].blame
    if blame is Blame.WORK:
        return _attribute_by_cpu(tasks, cpu_percent or {})
    if blame is Blame.OWNER and len(tasks) == 1:
        return _attribute_to_owner(tasks[0], slope_per_s, resource)
    if blame is not Blame.GROWTH:
        return NOBODY
    histories = {task.key: growths[task.key] for task in tasks if task.key in growths}
    span = _find_span(reading, slope_per_s, resource, histories.values())
    if span is None:
        return NOBODY
    if reading.key.kind is ResourceKind.GPU_MEMORY and not histories and tasks:
        # The driver does not report memory by process, so every task on this GPU may be the cause.
        share = 1.0 / len(tasks)
        rate = span.grown / span.seconds * share
        alike = tuple(Contributor(task.key, task.name, rate, share) for task in tasks)
        return Attribution(alike, 0.0, span.window_s)
    return _attribute_by_growth(span, tasks, histories, unwatched)


def _attribute_to_owner(task: Task, slope_per_s: float, resource: History) -> Attribution:
    """Attribute the growth to the only task that owns the resource."""
    window_s = _WINDOWS_S[1]
    grown, seconds = resource.growth(window_s)
    if grown <= 0 and slope_per_s <= 0:
        return NOBODY
    rate = max(slope_per_s, grown / seconds if seconds else 0.0)
    return Attribution((Contributor(task.key, task.name, rate, 1.0),), 0.0, window_s)


def _attribute_by_growth(
    span: _Span,
    tasks: Sequence[Task],
    histories: Mapping[ProcessKey, History],
    unwatched: History | None,
) -> Attribution:
    """Attribute the growth by the change of each task's memory since the span began."""
    grown = span.grown
    by_task = {
        key: (growth.last or 0.0) - growth.point_at(span.begin_mono_s)[1]
        for key, growth in histories.items()
        if growth.first_mono_s is not None
    }
    _spread(by_task, grown, _new_tasks(histories, span.seen_mono_s))
    others: float | None = None
    if unwatched is not None:
        # Unwatched processes are sampled only every few seconds.
        most, seconds = unwatched.growth(span.window_s + _UNWATCHED_LATE_S)
        if seconds < span.window_s:  # not sampled that early, so all of it may be new
            most = unwatched.last or 0.0
        others = min(max(0.0, grown - _known_growth(by_task)), max(0.0, most))
        _spread(by_task, grown - others, _copied_pages(by_task, tasks))
    known = _known_growth(by_task)
    # Shared or swapped pages, and pages counted twice, can make the tasks' growth exceed the
    # resource's growth.
    total = max(grown, known)
    contributors = _contributors(tasks, by_task, total, span.seconds)
    missing = total - known
    others = missing if others is None else min(others, missing)
    return Attribution(contributors, others / total, span.window_s, (missing - others) / total)


def _known_growth(by_task: Mapping[ProcessKey, float]) -> float:
    return sum(part for part in by_task.values() if part > 0)


def _new_tasks(
    histories: Mapping[ProcessKey, History], begin_mono_s: float
) -> dict[ProcessKey, float]:
    """
    Return the first known memory of tasks first seen since then. All of it may be new.

    A program may also be new only to watchdog, and may have held its memory for long.
    """
    return {
        key: growth.point_at(growth.first_mono_s)[1]
        for key, growth in histories.items()
        if growth.first_mono_s is not None and growth.first_mono_s > begin_mono_s
    }


def _copied_pages(
    by_task: Mapping[ProcessKey, float], tasks: Sequence[Task]
) -> dict[ProcessKey, float]:
    """
    Return the size of the pages that the forked workers of each task could have copied.

    An interpreter that iterates over its objects copies pages but its size stays the same. The
    number of pages still shared (`cow_bytes`) is measured only now and then. This growth came after
    the last measurement.
    """
    return {
        task.key: float(sum(member.cow_bytes or 0 for member in task.members))
        for task in tasks
        if task.key in by_task
    }


def _spread(
    by_task: dict[ProcessKey, float], grown: float, most: Mapping[ProcessKey, float]
) -> None:
    """Distribute unexplained growth in proportion to the most that each task can have caused."""
    missing, total = grown - _known_growth(by_task), sum(most.values())
    if missing > 0 and total > 0:
        for key, size in most.items():
            by_task[key] = max(0.0, by_task[key]) + size * min(1.0, missing / total)


def _attribute_by_cpu(
    tasks: Sequence[Task], cpu_percent: Mapping[ProcessKey, float | None]
) -> Attribution:
    """Attribute heat or battery drain by CPU time: a busy GPU needs a process that feeds it."""
    used = {task.key: cpu_percent.get(task.key) or 0.0 for task in tasks}
    busy = {key: part for key, part in used.items() if part >= _WORKS_PERCENT}
    if not busy:
        return NOBODY
    contributors = _contributors(tasks, busy, sum(busy.values()), float("inf"))
    return Attribution(contributors, 0.0, _WINDOWS_S[0])


def _contributors(
    tasks: Sequence[Task], parts: Mapping[ProcessKey, float], total: float, seconds: float
) -> tuple[Contributor, ...]:
    """Return the tasks whose parts of the total are worth a line, largest first."""
    names = {task.key: task.name for task in tasks}
    return tuple(
        Contributor(key, names[key], part / seconds, part / total)
        for key, part in sorted(parts.items(), key=lambda item: (-item[1], item[0]))
        if part >= _LISTED * total
    )


class _Span(NamedTuple):
    """Time span over which the growth is measured."""

    window_s: float  # one of `_WINDOWS_S`
    begin_mono_s: float
    seen_mono_s: float  # time of the resource's own sample at the beginning
    grown: float  # growth of the resource
    seconds: float


def noise_bytes(limit_bytes: float) -> float:
    """Return the change of a resource that says nothing about its growth."""
    return max(_NOISE_BYTES, _NOISE_RATIO * limit_bytes)


def _find_span(
    reading: Reading, slope_per_s: float, resource: History, histories: Collection[History]
) -> _Span | None:
    """
    Return the shortest window in which the resource grew as its trend says, and beyond noise.

    The span ends at the last list of the processes that hold the memory, and begins at an earlier
    list. The lists come every five seconds, so two seconds of growth say nothing about a process.
    """
    noise = noise_bytes(reading.limit)
    best = None
    for window in _WINDOWS_S:
        listed_mono_s = reading.listed_mono_s
        end = resource.point_at(float("inf") if listed_mono_s is None else listed_mono_s)
        begin = end[0] - window
        if listed_mono_s is not None:
            begin = min((begin, *(growth.point_at(begin)[0] for growth in histories)))
        then = resource.point_at(begin)
        grown, seconds = end[1] - then[1], end[0] - then[0]
        if seconds <= 0 or grown < noise:
            continue
        span = _Span(window, begin, then[0], grown, seconds)
        if grown >= 0.5 * slope_per_s * seconds:
            return span
        best = span
    return best
