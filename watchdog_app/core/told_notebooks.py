"""
Kernels whose notebook nobody knows but the agent inside: VS Code's, Spyder's. Pure.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from watchdog_app.base import codec
from watchdog_app.base.text.plain import shortened
from watchdog_app.core.records import ProcessKey, Task, TaskKind

_NAMELESS = frozenset((TaskKind.KERNEL, TaskKind.CONSOLE))
_MOST = 500


class ToldNotebooks:
    """Remembers what agents said of their kernels for as long as these live, or run again."""

    def __init__(self) -> None:
        self._by_key: dict[ProcessKey, str] = {}
        self._by_kernel: dict[tuple[int, str], str] = {}
        self._heard: dict[ProcessKey, str] = {}  # of a process that no look has shown yet
        self.revision = 0  # another one wherever `dump` is another

    def name(self, tasks: Sequence[Task], told: Mapping[ProcessKey, str]) -> tuple[Task, ...]:
        """
        The tasks, those that only their agent knows under its notebook.

        Args:
            tasks: of one look.
            told: paths by the very process whose agent said so; a worker's says nothing of the
                kernel.
        """
        if not told and not self._by_key and not self._by_kernel and not self._heard:
            return tuple(tasks)
        running = {task.key for task in tasks}
        if self._heard:
            told = {**self._heard, **told}
            self._heard = {key: path for key, path in self._heard.items() if key not in running}
        if not self._by_key.keys() <= running:
            self._by_key = {key: path for key, path in self._by_key.items() if key in running}
            self.revision += 1
        return tuple(self._named(task, told.get(task.key)) for task in tasks)

    def hear(self, key: ProcessKey, path: str) -> None:
        """A kernel has said its notebook once, before any training."""
        while len(self._heard) >= _MOST:
            del self._heard[next(iter(self._heard))]
        self._heard[key] = path

    def dump(self) -> list[Any]:
        """What the next daemon is to know, as plain values."""
        return codec.encode((self._by_key, self._by_kernel))  # type: ignore[no-any-return]

    def load(self, value: Any) -> None:
        """
        Take over what `dump` gave an earlier daemon, since the machine was started.

        Raises:
            ValueError: these are not its values; nothing is changed.
        """
        kept = tuple[dict[ProcessKey, str], dict[tuple[int, str], str]]
        self._by_key, self._by_kernel = codec.decode(kept, value)

    def _named(self, task: Task, told: str | None) -> Task:
        if task.kind not in _NAMELESS or task.info.notebook is not None:
            return task
        kernel = None if task.info.kernel_id is None else (task.uid, task.info.kernel_id)
        if told is not None and os.path.isabs(told):
            path = os.path.normpath(told)
            if self._by_key.get(task.key) != path:
                self._by_key[task.key] = path
                self.revision += 1
            if kernel is not None:
                self._by_kernel.pop(kernel, None)
                while len(self._by_kernel) >= _MOST:
                    del self._by_kernel[next(iter(self._by_kernel))]
                self._by_kernel[kernel] = path
        else:
            found = self._by_key.get(task.key)
            if found is None and kernel is not None:
                found = self._by_kernel.get(kernel)  # it was restarted: nobody in it has spoken yet
            if found is None:
                return task
            path = found
        name = shortened(os.path.basename(path))
        info = replace(task.info, kind=TaskKind.NOTEBOOK, name=name, notebook=path)
        return replace(task, kind=TaskKind.NOTEBOOK, name=name, info=info)
