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
    Follows kernels by their id over the ends of their processes.

    A kernel is known by its id and its user: the id stands in a file's name on the command line,
    which another user may copy.
    """

    def __init__(self) -> None:
        self._kernels: dict[tuple[int, str], _Kernel] = {}
        self._of: dict[ProcessKey, tuple[int, str]] = {}
        self.revision = 0  # another one wherever `dump` is another

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
        return codec.encode(self._kernels)  # type: ignore[no-any-return]

    def load(self, value: Any) -> None:
        """
        Take over what `dump` gave an earlier daemon, since the machine was started.

        A kernel that was restarted while nobody watched is seen by the next look.

        Raises:
            ValueError: these are not its values; nothing is changed.
        """
        kernels = codec.decode(dict[tuple[int, str], _Kernel], value)
        if not all(known.keys for known in kernels.values()):
            raise ValueError("not what was written down: a kernel without a process")
        while len(kernels) > _MOST_KERNELS:
            del kernels[next(iter(kernels))]
        self._kernels = kernels
        self._of = {key: ident for ident, known in kernels.items() for key in known.keys}

    def successor_of(self, key: ProcessKey) -> ProcessKey | None:
        """The process in which that one's kernel runs now; None: none that came after it."""
        kernel = self._kernel(key)
        return None if kernel is None or kernel.keys[-1] == key else kernel.keys[-1]

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

    def _kernel(self, key: ProcessKey) -> _Kernel | None:
        ident = self._of.get(key)
        return None if ident is None else self._kernels[ident]

    def _make_room(self) -> None:
        while len(self._kernels) >= _MOST_KERNELS:
            for key in self._kernels.pop(next(iter(self._kernels))).keys:
                self._of.pop(key, None)


_NAMELESS = frozenset((TaskKind.KERNEL, TaskKind.CONSOLE))
_MOST = 500


class ToldNotebooks:
    """Remembers what agents said of their kernels for as long as these live, or run again."""

    def __init__(self) -> None:
        self._by_key: dict[ProcessKey, str] = {}
        self._by_kernel: dict[tuple[int, str], str] = {}
        self._heard: dict[ProcessKey, str] = {}  # of a process that no look has shown yet
        self.revision = 0  # another one wherever `dump` is another

    def name(self, tasks: Sequence[Task], reported: Mapping[ProcessKey, str]) -> tuple[Task, ...]:
        """
        The tasks, those that only their agent knows under its notebook.

        Args:
            tasks: of one look.
            reported: paths by the very process whose agent said so; a worker's says nothing of the
                kernel.
        """
        if not reported and not self._by_key and not self._by_kernel and not self._heard:
            return tuple(tasks)
        running = {task.key for task in tasks}
        if self._heard:
            reported = {**self._heard, **reported}
            self._heard = {key: path for key, path in self._heard.items() if key not in running}
        if not self._by_key.keys() <= running:
            self._by_key = {key: path for key, path in self._by_key.items() if key in running}
            self.revision += 1
        return tuple(self._named(task, reported.get(task.key)) for task in tasks)

    def hear(self, key: ProcessKey, path: str) -> None:
        """
        A kernel has said its notebook once, before any training.

        Args:
            key: process of the kernel.
            path: of its notebook.
        """
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

    def _named(self, task: Task, reported: str | None) -> Task:
        if task.kind not in _NAMELESS or task.info.notebook is not None:
            return task
        kernel = None if task.info.kernel_id is None else (task.uid, task.info.kernel_id)
        if reported is not None and os.path.isabs(reported):
            path = os.path.normpath(reported)
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
