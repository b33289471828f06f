"""Under which notebooks the watched kernels are shown, and what follows when one is renamed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from watchdog_app.machine.sensors.kernels import Witnesses
from watchdog_app.machine.sensors.process_info import Describer
from watchdog_app.machine.sensors.watched import Watched


def known(watched: Iterable[Watched]) -> list[Witnesses]:
    """What is known of every kernel among them."""
    return [each.description.kernel for each in watched if each.description.kernel is not None]


def notebooks(watched: Iterable[Watched]) -> set[str]:
    """Paths that kernels are shown by now."""
    return {
        path
        for each in watched
        if each.description.kernel is not None
        and (path := each.description.info.notebook) is not None
    }


def rename(watched: Iterable[Watched], describer: Describer, moved: Mapping[str, str]) -> bool:
    """
    Give every kernel the name that it has now; whether one has another.

    Args:
        watched: processes.
        describer: knows names.
        moved: notebooks that were renamed, by where they were.
    """
    changed = False
    for each in watched:
        kernel = each.description.kernel
        path = each.description.info.notebook
        now = None if path is None else moved.get(path)
        if kernel is not None and now is not None and not kernel.parent_notebooks:
            kernel = replace(kernel, session_name=now)
            each.description = replace(each.description, kernel=kernel)
        info = describer.renamed(each.description)
        if info != each.description.info:
            each.description = replace(each.description, info=info)
            changed = True
    return changed
