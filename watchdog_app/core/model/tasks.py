"""Processes to tasks; which task a word means; Jupyter kernels over their restarts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from watchdog_app.base import codec
from watchdog_app.base.errors import NOT_FOUND, SEVERAL_FIT, TaskNotFound
from watchdog_app.base.text.plain import clean, shortened
from watchdog_app.base.text.quantities import parse_pid
from watchdog_app.core.model.machine import ProcessInfo, ProcessKey, ProcessSample, Task, TaskKind

_MOST_CANDIDATES = 50
_MOST_KERNELS = 500
_MOST_BEFORE = 20  # processes that are remembered of one kernel
_MOST_NOTEBOOKS = 1000
_NAMELESS = frozenset((TaskKind.KERNEL, TaskKind.CONSOLE))


def is_stopped(task: Task) -> bool:
    """The root is stopped; workers may be waiting for it in any state."""
    return task.members[0].state in "Tt"  # t: a debugger looks at it


def is_suspended(task: Task, held: bool) -> bool:
    """
    Whether it does nothing more: it is stopped, or was paused (`held`) and waits in the kernel.

    Memory that is read back from swap, or a group beyond its `memory.high`, makes it wait for
    seconds, a network disk for hours; a signal that stops takes effect when that ends.

    Args:
        task: of one sample.
        held: whether watchdog has paused it.
    """
    return is_stopped(task) or (held and task.members[0].state == "D")


# A kernel is one thing, whoever started it: papermill, nbconvert, a test. So is a console.
_ALWAYS_ROOT = frozenset((TaskKind.NOTEBOOK, TaskKind.KERNEL, TaskKind.CONSOLE, TaskKind.SERVER))


# What a launcher put into a session of its own (a sweep's trainings, a test's programs) is no
# worker: multiprocessing, DataLoader and joblib leave theirs in the session of the script.
_ROOT_IN_OWN_SESSION = frozenset((TaskKind.SCRIPT, TaskKind.MODULE))


# They do nothing for anybody but the server that has them.
_RESOURCE_TRACKERS = frozenset(
    ("multiprocessing resource tracker", "multiprocessing semaphore tracker")
)


def group_processes(
    samples: Sequence[ProcessSample], infos: Mapping[ProcessKey, ProcessInfo]
) -> tuple[Task, ...]:
    """
    The tasks that these processes form, ordered by the pid of their root.

    A process belongs to its parent, or through shells to `ProcessInfo.ancestor`. A fork always
    does. Any other process is a root of its own in these cases:

    - it is a kernel or a console, or a program in a session of its own
    - its parent is a server, such as that of a Jupyter terminal or a supervisor
    - pid 1 of a container has inherited it
    - its parent belongs to another user, is not watched, or has ended

    Args:
        samples: one tick; a sample without an info is left out.
        infos: of the same processes.
    """
    known = [sample for sample in samples if sample.key in infos]
    by_pid = {sample.key.pid: sample for sample in known}
    keys = {sample.key for sample in known}
    children: dict[ProcessKey, list[ProcessSample]] = {}
    roots = []
    for sample in known:
        parent = _parent(sample, infos, by_pid, keys)
        if parent is None:
            roots.append(sample)
        else:
            children.setdefault(parent, []).append(sample)
    tasks = [_task(root, children, infos) for root in roots]
    # Parents that form a circle exist only where pids were reused between two reads: no process
    # may be lost by it, so each that no root reaches stands alone.
    reached = {member.key for task in tasks for member in task.members}
    tasks += [_task(sample, {}, infos) for sample in known if sample.key not in reached]
    return tuple(sorted(tasks, key=lambda task: task.key))


def _parent(
    sample: ProcessSample,
    infos: Mapping[ProcessKey, ProcessInfo],
    by_pid: Mapping[int, ProcessSample],
    keys: set[ProcessKey],
) -> ProcessKey | None:
    info = infos[sample.key]
    direct = by_pid.get(sample.ppid)
    if sample.ppid == 1 and info.ppid > 1:
        return None  # its parent has ended, and pid 1 has only inherited it
    if direct is not None:
        parent = direct.key
    elif info.ancestor in keys and sample.ppid == info.ppid and info.ancestor is not None:
        parent = info.ancestor
    else:
        return None
    above = infos[parent]
    if parent == sample.key or above.uid != info.uid:
        return None
    if _is_same_program(info, above):
        return parent
    if info.kind in _ALWAYS_ROOT or (info.leads_session and info.kind in _ROOT_IN_OWN_SESSION):
        return None
    if above.kind is TaskKind.SERVER and info.name not in _RESOURCE_TRACKERS:
        return None
    return parent


def _is_same_program(info: ProcessInfo, above: ProcessInfo) -> bool:
    """A fork, which bears its parent's words; or a kernel below the wrapper that started it."""
    forked = len(info.argv) > 1 and info.argv == above.argv
    return forked or (info.kernel_id is not None and info.kernel_id == above.kernel_id)


def _task(
    root: ProcessSample,
    children: Mapping[ProcessKey, Sequence[ProcessSample]],
    infos: Mapping[ProcessKey, ProcessInfo],
) -> Task:
    members = [root]
    for member in members:  # grows while it is walked: parents come before their children
        members += sorted(children.get(member.key, ()), key=lambda sample: sample.key)
    info = infos[root.key]
    swap = [member.swap_bytes for member in members]
    return Task(
        key=root.key,
        name=info.name,
        kind=info.kind,
        uid=info.uid,
        members=tuple(members),
        rss_bytes=resident_bytes(members),
        # One member that cannot be read must not make the rest look like all of it.
        swap_bytes=None if None in swap else sum(part for part in swap if part is not None),
        cpu_s=sum(member.cpu_s for member in members),
        info=info,
    )


def resident_bytes(members: Sequence[ProcessSample]) -> int:
    """
    RAM of a process tree, shared pages counted once.

    Adding up RSS counts a library, a shared-memory batch and whatever a fork took over once for
    every worker: eight DataLoader workers over 4 GiB of data would look like 36 GiB. The exact
    figure (PSS) needs a walk of every page table, 49 ms for 8 GB. This one adds the private memory
    of each, less what a fork still shares with its parent (measured now and then). The largest
    part that is shared otherwise is added once. The result is exact when the members share the
    same pages, as workers do. Otherwise it is low by the smaller shared parts.

    Args:
        members: root first.
    """
    private = shared = 0
    for member in members:
        part = min(member.shared_bytes or 0, member.rss_bytes)
        own = member.rss_bytes - part
        # The root's parent is no member: nobody else counts what the two share.
        private += own if member is members[0] else max(0, own - (member.cow_bytes or 0))
        shared = max(shared, part)
    return private + shared


def find_task(wanted: str, tasks: Sequence[Task]) -> Task:
    """
    The one task that answers to `wanted`.

    A number is a pid and nothing else: of the task, else of a worker. Of the rest what is more
    exact wins: kernel id, full path, name, beginning of a name or kernel id, part of a name or
    path. Case counts only where that is what tells two tasks apart.

    Args:
        wanted: a pid, kernel id, name, path, or part of one.
        tasks: of one sample.

    Raises:
        TaskNotFound: none does, or several do; `candidates` lists them.
    """
    wanted = wanted.strip()
    ranked = [(_task_match_rank(wanted, task), task) for task in tasks]
    best = min((rank for rank, _ in ranked if rank is not None), default=None)
    found = [task for rank, task in ranked if rank == best is not None]
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
    elif parse_pid(wanted) is not None:
        message = (
            f"No task has the pid {wanted}. A number is always a pid: name a script called "
            f"{wanted} by its path, ./{wanted}, or by its own pid."
        )
    else:
        message = f"No task answers to {wanted!r}. Name one of these by its pid or its name."
    raise TaskNotFound(message, NOT_FOUND, candidates(tasks))


def name_with_pid(task: Task) -> str:
    """A task in a sentence: one line, whatever its files are called, and its pid."""
    return f"{clean(task.name)} (pid {task.key.pid})"


def candidates(tasks: Sequence[Task]) -> tuple[dict[str, object], ...]:
    """The tasks as an error lists them."""
    return tuple({"pid": task.key.pid, "name": task.name} for task in tasks[:_MOST_CANDIDATES])


def _task_match_rank(wanted: str, task: Task) -> int | None:
    info, pids = task.info, [task.key.pid, *(member.key.pid for member in task.members)]
    paths = [path for path in (info.notebook, *info.other_notebooks, info.script) if path]
    return match_rank(wanted, pids, task.name, paths, info.kernel_id)


def match_rank(
    wanted: str, pids: Sequence[int], name: str, paths: Sequence[str], kernel_id: str | None
) -> int | None:
    """
    How exactly a word means a task: 0 is the most exact; None: it means another one.

    Args:
        wanted: without blanks around it.
        pids: of the task; that of its root first.
        name: of the task.
        paths: of its notebooks and its script.
        kernel_id: of Jupyter; None: it is no kernel.
    """
    pid = parse_pid(wanted)
    if pid is not None:
        # A pid that is gone must never be taken for another task's name, or for a part of it.
        return min(1, pids.index(pid)) if pid in pids else None
    names, folded = [name, *map(os.path.basename, paths)], wanted.casefold()
    ways = (
        kernel_id == wanted,
        wanted in paths,
        wanted in names,
        any(each.casefold() == folded for each in names),
        any(each.casefold().startswith(folded) for each in (*names, kernel_id or "")),
        any(folded in each.casefold() for each in (*names, *paths)),
    )
    return next((at for at, fits in enumerate(ways) if fits and wanted), None)


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
        # Paths of notebooks that only an agent has told, of processes and of kernels.
        self._notebooks: dict[str, str] = {}
        self.revision = 0  # another one wherever `dump` is another

    def with_notebook_names(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """The tasks of one look, those that only their agent knows under its notebook."""
        return tuple(map(self._with_notebook_name, tasks)) if self._notebooks else tuple(tasks)

    def set_notebook(self, key: ProcessKey, path: str) -> None:
        """
        A kernel, or an agent in it, has said its notebook.

        Args:
            key: its very process; a worker's says nothing of the kernel.
            path: of its notebook.
        """
        self._store_notebook(_process_id(key), path)

    def update(self, tasks: Sequence[Task]) -> tuple[Restart, ...]:
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
                while len(self._kernels) >= _MOST_KERNELS:
                    del self._kernels[next(iter(self._kernels))]
                known = _Kernel((task.key,), task.name, path)
            elif known.keys[-1] == task.key:
                if (known.name, known.path) != (task.name, path):
                    known = _Kernel(known.keys, task.name, path, known.restarts)
            elif task.key in known.keys or known.keys[-1] in running:
                continue  # two of one id at a time: the first is the one that Jupyter knows
            else:
                found.append(Restart(kernel_id, known.keys[-1], task))
                keys = (*known.keys[1 - _MOST_BEFORE :], task.key)
                known = _Kernel(keys, task.name, path, known.restarts + 1)
            if self._kernels.get(ident) is not known:
                self.revision += 1
            self._kernels[ident] = known
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

    def previous_processes(self, key: ProcessKey) -> tuple[ProcessKey, ...]:
        """The processes in which the same kernel ran before, oldest first."""
        kernel = self._kernel(key)
        return () if kernel is None else kernel.keys[: kernel.keys.index(key)]

    def restarts(self, key: ProcessKey) -> int:
        """How often the kernel of a process was restarted since it is watched."""
        kernel = self._kernel(key)
        return 0 if kernel is None else kernel.restarts

    def notebook_of(self, kernel_id: str) -> str | None:
        """Path of the notebook, else the name, of a kernel that runs or ran; None: no such id."""
        for (_, known_id), kernel in self._kernels.items():
            if known_id == kernel_id:
                return kernel.path or kernel.name
        return None

    def journal_query(self, wanted: str | None) -> tuple[str | None, tuple[int, ...]]:
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
        for kernel in self._kernels.values():
            *before, now = kernel.keys
            if wanted == str(now.pid):
                return wanted, tuple(key.pid for key in before)
        return self.notebook_of(wanted) or wanted, ()

    def restart_message(self, key: ProcessKey) -> str | None:
        """What is to be said of a task whose kernel was restarted; None: it was not."""
        before = self.previous_processes(key)
        if not before:
            return None
        count = self.restarts(key)
        times = "once" if count == 1 else f"{count} times"
        return (
            f"Its kernel was restarted {times} since it is watched; it was process "
            f"{before[-1].pid} before. What it had in memory then is gone."
        )

    def _with_notebook_name(self, task: Task) -> Task:
        info = task.info
        if task.kind not in _NAMELESS or info.notebook is not None:
            return task
        process, kernel = _process_id(task.key), f"{task.uid}:{info.kernel_id}"
        path = self._notebooks.get(process)
        if path is not None and os.path.isabs(path):
            path = os.path.normpath(path)
            if info.kernel_id is not None:
                self._store_notebook(kernel, path)
        else:  # it was restarted: nobody in it has spoken yet
            path = self._notebooks.get(kernel)
        if path is None:
            return task
        name = shortened(os.path.basename(path))
        info = replace(info, kind=TaskKind.NOTEBOOK, name=name, notebook=path)
        return replace(task, kind=TaskKind.NOTEBOOK, name=name, info=info)

    def _store_notebook(self, whose: str, path: str) -> None:
        if self._notebooks.get(whose) != path:
            self._notebooks.pop(whose, None)
            while len(self._notebooks) >= _MOST_NOTEBOOKS:
                del self._notebooks[next(iter(self._notebooks))]
            self._notebooks[whose] = path
            self.revision += 1

    def _kernel(self, key: ProcessKey) -> _Kernel | None:
        return next((each for each in self._kernels.values() if key in each.keys), None)


def _process_id(key: ProcessKey) -> str:
    return f"{key.pid}/{key.start_time}"
