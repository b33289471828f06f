"""Group processes into tasks, find a task by name, follow Jupyter kernels over restarts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from watchdog_app.base import codec
from watchdog_app.base.errors import NOT_FOUND, SEVERAL_FIT, TaskNotFound
from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import clean, shortened
from watchdog_app.base.text.quantities import parse_pid
from watchdog_app.core.model.machine import ProcessInfo, ProcessKey, ProcessSample, Task, TaskKind

_MOST_CANDIDATES = 50
_MOST_KERNELS = 500
_MOST_NOTEBOOKS = 1000
_NAMELESS = frozenset((TaskKind.KERNEL, TaskKind.CONSOLE))


def is_stopped(task: Task) -> bool:
    """Whether the root is stopped; its workers may wait for it in any state."""
    return task.members[0].state in "Tt"  # t: stopped by a debugger


def is_suspended(task: Task, paused: bool) -> bool:
    """
    Whether a task runs no more code: it is stopped, or `paused` and waiting in the kernel.

    SIGSTOP takes effect when an uninterruptible wait ends. Reads from swap or a group above
    `memory.high` take seconds, a network disk can take hours.

    Args:
        task: a task of one sample.
        paused: whether watchdog has paused the task.
    """
    return is_stopped(task) or (paused and task.members[0].state == "D")


# A kernel or console is always a task, also if papermill, nbconvert or a test started it.
_ALWAYS_ROOT = frozenset((TaskKind.NOTEBOOK, TaskKind.KERNEL, TaskKind.CONSOLE, TaskKind.SERVER))


# A program that a launcher (a sweep, a test) starts in a new session is not a worker.
# multiprocessing, DataLoader and joblib keep their workers in the session of the script.
_ROOT_IN_OWN_SESSION = frozenset((TaskKind.SCRIPT, TaskKind.MODULE))


# Helper processes of a server, which belong to its task.
_RESOURCE_TRACKERS = frozenset(
    ("multiprocessing resource tracker", "multiprocessing semaphore tracker")
)


def group_processes(
    samples: Sequence[ProcessSample], infos: Mapping[ProcessKey, ProcessInfo]
) -> tuple[Task, ...]:
    """
    The tasks of these processes, ordered by the pid of their root.

    A process belongs to its parent, or through shells to `ProcessInfo.ancestor`. A fork always
    belongs to its parent. Any other process is the root of a task in these cases:

    - it is a kernel or a console, or a program that leads a session
    - its parent is a server, such as the server of a Jupyter terminal or a supervisor
    - pid 1 of a container adopted it
    - its parent belongs to another user, is not watched, or has ended

    Args:
        samples: processes of one sample; a process without an info is left out.
        infos: properties of the same processes.
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
    # If pids were reused between two reads, parents can form a cycle that no root reaches.
    # Each process of such a cycle becomes a task, so that no process is lost.
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
        return None  # its parent has ended, and pid 1 adopted it
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
    """Whether it is a fork (the same command line), or a kernel below its wrapper."""
    forked = len(info.argv) > 1 and info.argv == above.argv
    return forked or (info.kernel_id is not None and info.kernel_id == above.kernel_id)


def _task(
    root: ProcessSample,
    children: Mapping[ProcessKey, Sequence[ProcessSample]],
    infos: Mapping[ProcessKey, ProcessInfo],
) -> Task:
    members = [root]
    for member in members:  # the list grows during the loop: parents before their children
        members += sorted(children.get(member.key, ()), key=lambda sample: sample.key)
    info, of_members = infos[root.key], [infos[member.key] for member in members]
    swap = [member.swap_bytes for member in members]
    return Task(
        key=root.key,
        name=info.name,
        kind=info.kind,
        uid=info.uid,
        members=tuple(members),
        rss_bytes=resident_bytes(members),
        # If one member is unreadable, the sum of the others must not look like the total.
        swap_bytes=None if None in swap else sum(part for part in swap if part is not None),
        cpu_s=sum(member.cpu_s for member in members),
        info=info,
        framework=next((each.framework for each in of_members if each.framework), None),
        agent_waits=any(each.agent_waits for each in of_members),
    )


def resident_bytes(members: Sequence[ProcessSample]) -> int:
    """
    RAM of a process tree in bytes, shared pages counted once.

    A sum of RSS counts libraries, shared-memory batches and forked pages once per worker: eight
    DataLoader workers over 4 GiB of data would look like 36 GiB. The exact figure (PSS) needs a
    walk of every page table, 49 ms for 8 GB.

    This function adds the private memory of all members. It subtracts the pages that a fork still
    shares with its parent, which are measured now and then. It adds the largest shared part once.
    The result is exact if the members share the same pages, as workers do. If not, it is too low
    by the smaller shared parts.

    Args:
        members: processes of one task, root first.
    """
    private = shared = 0
    for member in members:
        part = min(member.shared_bytes or 0, member.rss_bytes)
        own = member.rss_bytes - part
        # The root's parent is outside the tree, so pages shared with it count here.
        private += own if member is members[0] else max(0, own - (member.cow_bytes or 0))
        shared = max(shared, part)
    return private + shared


def find_task(wanted: str, tasks: Sequence[Task]) -> Task:
    """
    The task that `wanted` names.

    A number is always a pid: of the task, else of a worker. Other words match in this order, the
    most exact first: kernel id, full path, name, start of a name or kernel id, part of a name or
    path. Case matters only if two tasks differ in nothing else.

    Args:
        wanted: a pid, kernel id, name, path, or part of one.
        tasks: tasks of one sample.

    Raises:
        TaskNotFound: no task or several tasks match; `candidates` lists them.
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
    """The name and pid of a task for use in a sentence, in one line, without control characters."""
    return f"{clean(task.name)} (pid {task.key.pid})"


def candidates(tasks: Sequence[Task]) -> tuple[dict[str, object], ...]:
    """Pid and name of the first tasks, for an error message."""
    return tuple({"pid": task.key.pid, "name": task.name} for task in tasks[:_MOST_CANDIDATES])


def _task_match_rank(wanted: str, task: Task) -> int | None:
    info, pids = task.info, [task.key.pid, *(member.key.pid for member in task.members)]
    paths = [path for path in (info.notebook, *info.other_notebooks, info.script) if path]
    return match_rank(wanted, pids, task.name, paths, info.kernel_id)


def match_rank(
    wanted: str, pids: Sequence[int], name: str, paths: Sequence[str], kernel_id: str | None
) -> int | None:
    """
    How exactly a word matches a task: 0 is the most exact; None: no match.

    Args:
        wanted: the word, without spaces around it.
        pids: pids of the task, the root's first.
        name: name of the task.
        paths: paths of its notebooks and script.
        kernel_id: Jupyter's kernel id; None: the task is not a kernel.
    """
    pid = parse_pid(wanted)
    if pid is not None:
        # A pid that no longer exists must never match the name of another task.
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
    """One kernel that was restarted in a new process."""

    kernel_id: str
    before: ProcessKey
    now: Task


@dataclass(frozen=True, slots=True)
class _Kernel:
    """One kernel and its current process, or the last one."""

    key: ProcessKey
    name: str
    path: str | None


class KernelRegistry:
    """
    Follow kernels by id over restarts, and keep the notebook names that agents report.

    The key is the user and the kernel id. The id alone is not enough: it comes from the command
    line, which another user can copy.
    """

    def __init__(self) -> None:
        self._kernels: dict[tuple[int, str], _Kernel] = {}
        # Notebook paths that only an agent reported, by process and by kernel.
        self._notebooks: dict[str, str] = {}
        self.revision = 0  # changes whenever the result of `dump` changes

    def with_notebook_names(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """The tasks, with notebook names where only the agent knows the notebook."""
        return tuple(map(self._with_notebook_name, tasks)) if self._notebooks else tuple(tasks)

    def set_notebook(self, key: ProcessKey, path: str) -> None:
        """
        Store the notebook that a kernel or its agent reported.

        Args:
            key: process of the kernel itself, not of a worker.
            path: path of the notebook.
        """
        self._store_notebook(_process_id(key), path)

    def update(self, tasks: Sequence[Task]) -> tuple[Restart, ...]:
        """Take the tasks of one sample; return the kernels that were restarted since the last."""
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
            elif known.key != task.key:
                if known.key in running:
                    continue  # two processes with one id: Jupyter knows the first
                found.append(Restart(kernel_id, known.key, task))
            now = _Kernel(task.key, task.name, path)
            if known != now:
                self._kernels[ident] = now
                self.revision += 1
        return tuple(found)

    def dump(self) -> list[Any]:
        """The state that the next daemon restores, as plain values."""
        return codec.encode((self._kernels, self._notebooks))  # type: ignore[no-any-return]

    def load(self, value: Any) -> None:
        """
        Restore the state that `dump` returned in an earlier daemon since boot.

        If a kernel was restarted while no daemon ran, the next sample shows it.

        Raises:
            ValueError: the value is not a valid state; nothing changes.
        """
        kept = tuple[dict[tuple[int, str], _Kernel], dict[str, str]]
        kernels, notebooks = codec.decode(kept, value)
        while len(kernels) > _MOST_KERNELS:
            del kernels[next(iter(kernels))]
        self._kernels, self._notebooks = kernels, notebooks

    def journal_word(self, wanted: str | None) -> str | None:
        """
        The word to search for in the journal: for a kernel its notebook, else the word itself.

        Args:
            wanted: pid, kernel id, part of a name or path; None: all tasks.
        """
        if wanted is None:
            return None
        wanted = wanted.strip()
        for (_, kernel_id), kernel in self._kernels.items():
            if wanted == kernel_id or (wanted == str(kernel.key.pid) and kernel.path is not None):
                return kernel.path or kernel.name
        return wanted

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
        else:  # the kernel was restarted and its agent has not reported yet
            path = self._notebooks.get(kernel)
        if path is None:
            return task
        name = shortened(os.path.basename(path))
        info = replace(info, kind=TaskKind.NOTEBOOK, name=name, notebook=path)
        return replace(task, kind=TaskKind.NOTEBOOK, name=name, info=info)

    def _store_notebook(self, kernel: str, path: str) -> None:
        if self._notebooks.get(kernel) != path:
            self._notebooks.pop(kernel, None)
            while len(self._notebooks) >= _MOST_NOTEBOOKS:
                del self._notebooks[next(iter(self._notebooks))]
            self._notebooks[kernel] = path
            self.revision += 1


def _process_id(key: ProcessKey) -> str:
    return f"{key.pid}/{key.start_time}"
