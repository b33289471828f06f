"""Jupyter kernels over their restarts, and notebooks that only an agent can name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from watchdog_app.base import codec
from watchdog_app.base.text.plain import shortened
from watchdog_app.core.model.machine import ProcessKey, Task, TaskKind

_MOST_KERNELS = 500
_MOST_BEFORE = 20  # processes that are remembered of one kernel
_MOST_NOTEBOOKS = 1000
_NAMELESS = frozenset((TaskKind.KERNEL, TaskKind.CONSOLE))


@dataclass(frozen=True, slots=True)
class Restart:
    """One kernel that runs again in a new process."""

    kernel_id: str
    before: ProcessKey
    now: Task


@dataclass(frozen=True, slots=True)
class _Kernel:
    """One kernel over all its processes, oldest first; the last is the one that runs."""

    keys: tuple[ProcessKey, ...]
    name: str
    path: str | None
    restarts: int = 0


class KernelRegistry:
    """
    Follows kernels by their id over the ends of their processes, and what agents say of them.

    A kernel is known by its id and its user: the id stands in a file's name on the command line,
    which another user may copy.
    """

    def __init__(self) -> None:
        self._kernels: dict[tuple[int, str], _Kernel] = {}
        self._of: dict[ProcessKey, tuple[int, str]] = {}
        # Paths of notebooks that only an agent has told, of processes and of kernels.
        self._notebooks: dict[str, str] = {}
        self.revision = 0  # another one wherever `dump` is another

    def name(self, tasks: Sequence[Task], reported: Mapping[ProcessKey, str]) -> tuple[Task, ...]:
        """
        The tasks, those that only their agent knows under its notebook.

        Args:
            tasks: of one look.
            reported: paths by the very process whose agent said so; a worker's says nothing of the
                kernel.
        """
        if not reported and not self._notebooks:
            return tuple(tasks)
        return tuple(self._named(task, reported.get(task.key)) for task in tasks)

    def hear(self, key: ProcessKey, path: str) -> None:
        """
        A kernel has said its notebook once, before any training.

        Args:
            key: process of the kernel.
            path: of its notebook.
        """
        self._keep(_process(key), path)

    def take(self, tasks: Sequence[Task]) -> tuple[Restart, ...]:
        """Those that run in another process than at the look before. One look's tasks."""
        running = {task.key for task in tasks}
        found = []
        for task in tasks:
            kernel_id = task.info.kernel_id
            if kernel_id is None:
                continue
            ident = (task.uid, kernel_id)
            known = self._kernels.get(ident)
            path = task.info.notebook or task.info.script
            if known is None:
                self._make_room()
                known = _Kernel((task.key,), task.name, path)
            elif known.keys[-1] == task.key:
                if (known.name, known.path) != (task.name, path):
                    known = _Kernel(known.keys, task.name, path, known.restarts)
            elif task.key in known.keys or known.keys[-1] in running:
                continue  # two of one id at a time: the first is the one that Jupyter knows
            else:
                found.append(Restart(kernel_id, known.keys[-1], task))
                for gone in known.keys[: 1 - _MOST_BEFORE]:
                    self._of.pop(gone, None)
                keys = (*known.keys[1 - _MOST_BEFORE :], task.key)
                known = _Kernel(keys, task.name, path, known.restarts + 1)
            if self._kernels.get(ident) is not known:
                self.revision += 1
            self._kernels[ident] = known
            self._of[task.key] = ident
        return tuple(found)

    def dump(self) -> list[Any]:
        """What the next daemon is to know, as plain values."""
        return codec.encode((self._kernels, self._notebooks))  # type: ignore[no-any-return]

    def load(self, value: Any) -> None:
        """
        Take over what `dump` gave an earlier daemon, since the machine was started.

        A kernel that was restarted while nobody watched is seen by the next look.

        Raises:
            ValueError: these are not its values; nothing is changed.
        """
        kept = tuple[dict[tuple[int, str], _Kernel], dict[str, str]]
        kernels, notebooks = codec.decode(kept, value)
        if not all(known.keys for known in kernels.values()):
            raise ValueError("not what was written down: a kernel without a process")
        while len(kernels) > _MOST_KERNELS:
            del kernels[next(iter(kernels))]
        self._kernels, self._notebooks = kernels, notebooks
        self._of = {key: ident for ident, known in kernels.items() for key in known.keys}

    def before(self, key: ProcessKey) -> tuple[ProcessKey, ...]:
        """The processes in which the same kernel ran before, oldest first."""
        kernel = self._kernel(key)
        return () if kernel is None else kernel.keys[: kernel.keys.index(key)]

    def restarts(self, key: ProcessKey) -> int:
        """How often the kernel of a process was restarted since it is watched."""
        kernel = self._kernel(key)
        return 0 if kernel is None else kernel.restarts

    def known_as(self, kernel_id: str) -> str | None:
        """Path of the notebook, else the name, of a kernel that runs or ran; None: no such id."""
        for (_, known_id), kernel in self._kernels.items():
            if known_id == kernel_id:
                return kernel.path or kernel.name
        return None

    def meant(self, wanted: str | None) -> tuple[str | None, tuple[int, ...]]:
        """
        How the journal finds a task by name or pid.

        Args:
            wanted: pid, kernel id, part of a name or path; None: everybody.

        Returns:
            The notebook in place of a kernel's id; and pids that the kernel had before this one.
        """
        if wanted is None:
            return None, ()
        wanted = wanted.strip()
        for key, ident in self._of.items():
            if wanted == str(key.pid) and self._kernels[ident].keys[-1] == key:
                return wanted, tuple(before.pid for before in self.before(key))
        return self.known_as(wanted) or wanted, ()

    def sentence(self, key: ProcessKey) -> str | None:
        """What is to be said of a task whose kernel was restarted; None: it was not."""
        before = self.before(key)
        if not before:
            return None
        count = self.restarts(key)
        times = "once" if count == 1 else f"{count} times"
        return (
            f"Its kernel was restarted {times} since it is watched; it was process "
            f"{before[-1].pid} before. What it had in memory then is gone."
        )

    def _named(self, task: Task, said: str | None) -> Task:
        info = task.info
        if task.kind not in _NAMELESS or info.notebook is not None:
            return task
        process, kernel = _process(task.key), f"{task.uid}:{info.kernel_id}"
        path = said or self._notebooks.get(process)
        if path is not None and os.path.isabs(path):
            path = os.path.normpath(path)
            self._keep(process, path)
            if info.kernel_id is not None:
                self._keep(kernel, path)
        else:  # it was restarted: nobody in it has spoken yet
            path = self._notebooks.get(kernel)
        if path is None:
            return task
        name = shortened(os.path.basename(path))
        info = replace(info, kind=TaskKind.NOTEBOOK, name=name, notebook=path)
        return replace(task, kind=TaskKind.NOTEBOOK, name=name, info=info)

    def _keep(self, whose: str, path: str) -> None:
        if self._notebooks.get(whose) != path:
            self._notebooks.pop(whose, None)
            while len(self._notebooks) >= _MOST_NOTEBOOKS:
                del self._notebooks[next(iter(self._notebooks))]
            self._notebooks[whose] = path
            self.revision += 1

    def _kernel(self, key: ProcessKey) -> _Kernel | None:
        ident = self._of.get(key)
        return None if ident is None else self._kernels[ident]

    def _make_room(self) -> None:
        while len(self._kernels) >= _MOST_KERNELS:
            for key in self._kernels.pop(next(iter(self._kernels))).keys:
                self._of.pop(key, None)


def _process(key: ProcessKey) -> str:
    return f"{key.pid}/{key.start_time}"
