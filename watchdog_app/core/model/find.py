"""
Which task was meant: a pid, a kernel id, a notebook or script, or enough of its name. Pure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from watchdog_app.base.errors import NOT_FOUND, SEVERAL_FIT, TaskNotFound
from watchdog_app.base.text.plain import plain
from watchdog_app.base.text.quantities import pid_in
from watchdog_app.core.model.machine import Task

_MOST_CANDIDATES = 50


def find(wanted: str, tasks: Sequence[Task]) -> Task:
    """
    The one task that answers to `wanted`.

    A number is a pid and nothing else: of the task, else of a worker. Of the rest what is more
    exact wins: kernel id, full path, name, beginning of a name or kernel id, part of a name or
    path. Case counts only where that is what tells two tasks apart.

    Raises:
        TaskNotFound: none does, or several do; `candidates` lists them.
    """
    wanted = wanted.strip()
    for fits in _ways(wanted):
        found = [task for task in tasks if fits(task)]
        if len(found) == 1:
            return found[0]
        if found:
            raise TaskNotFound(
                f"{len(found)} tasks answer to {wanted!r}. Name one by its pid.",
                SEVERAL_FIT,
                candidates(found),
            )
    if not tasks:
        message = f"No task answers to {wanted!r}: no Python process of yours is running."
    elif pid_in(wanted) is not None:
        message = (
            f"No task has the pid {wanted}. A number is always a pid: name a script called "
            f"{wanted} by its path, ./{wanted}, or by its own pid."
        )
    else:
        message = f"No task answers to {wanted!r}. Name one of these by its pid or its name."
    raise TaskNotFound(message, NOT_FOUND, candidates(tasks))


def named(task: Task) -> str:
    """A task in a sentence: one line, whatever its files are called, and its pid."""
    return f"{plain(task.name)} (pid {task.key.pid})"


def candidates(tasks: Sequence[Task]) -> tuple[dict[str, object], ...]:
    """The tasks as an error lists them."""
    return tuple({"pid": task.key.pid, "name": task.name} for task in tasks[:_MOST_CANDIDATES])


def _ways(wanted: str) -> list[Callable[[Task], bool]]:
    """From the most to the least exact."""
    if not wanted:
        return []
    pid = pid_in(wanted)
    if pid is not None:
        # A pid that is gone must never be taken for another task's name, or for a part of it.
        return [
            lambda task: task.key.pid == pid,
            lambda task: any(member.key.pid == pid for member in task.members),
        ]
    folded = wanted.casefold()
    return [
        lambda task: task.info.kernel_id == wanted,
        lambda task: wanted in _paths(task),
        lambda task: wanted in _names(task),
        lambda task: any(name.casefold() == folded for name in _names(task)),
        lambda task: any(text.casefold().startswith(folded) for text in _heads(task)),
        lambda task: any(folded in text.casefold() for text in (*_names(task), *_paths(task))),
    ]


def _heads(task: Task) -> tuple[str, ...]:
    return (*_names(task), task.info.kernel_id or "")


def _paths(task: Task) -> tuple[str, ...]:
    info = task.info
    return tuple(path for path in (info.notebook, *info.other_notebooks, info.script) if path)


def _names(task: Task) -> tuple[str, ...]:
    return (task.name, *(os.path.basename(path) for path in _paths(task)))
