"""An observer's results without a machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


def observer_of(
    tasks: Sequence[Any] = (),
    cgroup_of: Callable[[Any], str | None] = lambda _: None,
    readings: Callable[[], Sequence[Any]] = tuple,
) -> Any:
    """Return an observer whose last sample had these tasks and readings."""
    return SimpleNamespace(
        tasks=lambda: tasks,
        task=lambda key: next((each for each in tasks if each.key == key), None),
        cgroup_of=cgroup_of,
        readings=readings,
    )
