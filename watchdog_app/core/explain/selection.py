"""Select and sort the tasks, resources and GPUs of a status for a screen. Pure."""

from __future__ import annotations

import math

from watchdog_app.base.text.quantities import MIB, UNKNOWN
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import Resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from watchdog_app.core.model.status import Gpu, Host, Status, Task

KERNELS = ("notebook", "kernel")  # run in Jupyter alone, which can restart them
RUN_CELLS = (*KERNELS, "console")  # a console is Jupyter's, or IPython in a terminal
SMALL_BYTES = 64 * MIB

_MOST_FAR = 4  # resources far from their limits that are listed without --all
_HALF_FULL = 0.5


def sort_tasks(tasks: Sequence[Task], sort: str = "urgency") -> list[Task]:
    """
    Return the tasks sorted. Unknown figures come last, equal figures are sorted by pid.

    Args:
        tasks: tasks of a status.
        sort: one of `SORTS`.
    """
    return sorted(tasks, key=_SORT_KEYS[sort])


def split_background(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """Return the tasks to list, and the small idle interpreters that a desktop runs."""
    shown: list[Task] = []
    hidden: list[Task] = []
    for task in tasks:
        (hidden if _is_background(task) else shown).append(task)
    return shown, hidden


def listed_resources(status: Status, everything: bool) -> tuple[list[Resource], int]:
    """
    Return the resources to list, and the number of others far from their limits.

    Args:
        status: the last status.
        everything: whether to list the resources far from their limits as well.
    """
    first = [one for one in status.resources if one.display == "always"]
    if status.host.swap_total_bytes:
        first.append(_swap_resource(status.host))
    rest = [one for one in status.resources if one.display != "always"]
    rest.sort(key=lambda one: (-one.level, -(one.ratio or 0)))
    if everything:
        return first + rest, 0
    listed: list[Resource] = []
    far = 0
    for one in rest:
        near = one.level > Level.OK
        if one.kind == "gpu_memory" and status.gpus:
            continue  # shown on the line of its GPU
        if one.display == "in_danger" and not near:
            continue
        full = one.display == "half_full" and (one.ratio or 0) >= _HALF_FULL
        if near or ((full or one.display == "usual") and len(listed) < _MOST_FAR):
            listed.append(one)
        else:
            far += 1
    return first + listed, far


def gpu_resources(gpu: Gpu, status: Status) -> list[Resource]:
    """
    Return the memory and the temperatures of a GPU.

    Args:
        gpu: a GPU of the status.
        status: the last status.
    """
    subjects = (gpu.id, f"{gpu.id}/shutdown")
    return [
        one
        for one in status.resources
        if one.kind in ("gpu_memory", "temperature") and one.subject in subjects
    ]


def nearest_resource(status: Status, task: Task) -> Resource | None:
    """
    Return the resource that a task is predicted to exhaust, otherwise the fullest one above it.

    Args:
        status: the last status.
        task: a task of the status.
    """
    above = [one for one in status.resources if task.pid in one.tasks]
    foreseen = [one for one in above if one.eta_s is not None]
    if foreseen:
        return min(foreseen, key=lambda one: one.eta_s or 0.0)
    in_bytes = [one for one in above if one.unit == "bytes"]
    return max(in_bytes, key=lambda one: one.ratio or 0.0, default=None)


def gpu_numbers(task: Task) -> str:
    """Return the GPUs of a task: `0`, `0,2`, or `0-7` for eight in a row. Empty without a GPU."""
    known = sorted({one.index for one in task.gpus if one.index is not None})
    texts = [str(each) for each in known]
    if len(known) > 2 and known[-1] - known[0] == len(known) - 1:
        texts = [f"{known[0]}-{known[-1]}"]
    return ",".join([*texts, *(UNKNOWN for one in task.gpus if one.index is None)])


def _swap_resource(host: Host) -> Resource:
    limit, free = host.swap_total_bytes, host.swap_free_bytes
    used = None if limit is None or free is None else limit - free
    return Resource(
        kind="swap",
        label="swap",
        unit="bytes",
        used=used,
        limit=limit,
        ratio=used / limit if used is not None and limit else None,
        slope_per_s=host.swap_slope_bytes_per_s,
    )


def _is_background(task: Task) -> bool:
    return (
        task.kind not in RUN_CELLS
        and task.state == "sleeping"
        and task.ram_bytes is not None
        and task.ram_bytes + (task.swap_bytes or 0) < SMALL_BYTES
        and (task.cpu_percent or 0) < 1
        and task.agent is None
        and task.guard is None
        and not task.paused_by_watchdog
        and not task.gpus
        and task.level is Level.OK
    )


def _descending_by(figure: str) -> Callable[[Task], tuple[float, ...]]:
    def order(task: Task) -> tuple[float, ...]:
        value = getattr(task, figure)
        return value is None, -(value or 0), task.pid or 0

    return order


def _by_eta(task: Task) -> float:
    return math.inf if task.eta_s is None else task.eta_s


_SORT_KEYS: dict[str, Callable[[Task], Any]] = {
    "urgency": lambda task: (-task.level, _by_eta(task), *_descending_by("ram_bytes")(task)),
    "ram": _descending_by("ram_bytes"),
    "swap": _descending_by("swap_bytes"),
    "gpu": _descending_by("gpu_memory_bytes"),
    "cpu": _descending_by("cpu_percent"),
    "trend": _descending_by("slope_bytes_per_s"),
    "eta": lambda task: (_by_eta(task), task.pid or 0),
    "name": lambda task: ((task.name or "").lower(), task.pid or 0),
    "pid": lambda task: task.pid or 0,
}
SORTS = tuple(_SORT_KEYS)
