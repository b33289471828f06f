"""Processes to tasks: process trees, kernels and servers; and which task a word means."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from watchdog_app.base.errors import NOT_FOUND, SEVERAL_FIT, TaskNotFound
from watchdog_app.base.text.plain import clean
from watchdog_app.base.text.quantities import pid_in
from watchdog_app.core.model.machine import ProcessInfo, ProcessKey, ProcessSample, Task, TaskKind

_MOST_CANDIDATES = 50


def stopped(task: Task) -> bool:
    """The root is stopped; workers may be waiting for it in any state."""
    return task.members[0].state in "Tt"  # t: a debugger looks at it


def stands(task: Task, held: bool) -> bool:
    """
    Whether it does nothing more: it is stopped, or was paused (`held`) and waits in the kernel.

    Memory that is read back from swap, or a group beyond its `memory.high`, makes it wait for
    seconds, a network disk for hours; a signal that stops takes effect when that ends.

    Args:
        task: of one sample.
        held: whether watchdog has paused it.
    """
    return stopped(task) or (held and task.members[0].state == "D")


# A kernel is one thing, whoever started it: papermill, nbconvert, a test. So is a console.
_ALWAYS_ROOT = frozenset((TaskKind.NOTEBOOK, TaskKind.KERNEL, TaskKind.CONSOLE, TaskKind.SERVER))


# What a launcher put into a session of its own (a sweep's trainings, a test's programs) is no
# worker: multiprocessing, DataLoader and joblib leave theirs in the session of the script.
_ROOT_IN_OWN_SESSION = frozenset((TaskKind.SCRIPT, TaskKind.MODULE))


# They do nothing for anybody but the server that has them.
_CLERKS = frozenset(("multiprocessing resource tracker", "multiprocessing semaphore tracker"))


def group(
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
    if _one_program(info, above):
        return parent
    if info.kind in _ALWAYS_ROOT or (info.leads_session and info.kind in _ROOT_IN_OWN_SESSION):
        return None
    if above.kind is TaskKind.SERVER and info.name not in _CLERKS:
        return None
    return parent


def _one_program(info: ProcessInfo, above: ProcessInfo) -> bool:
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


def find(wanted: str, tasks: Sequence[Task]) -> Task:
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
    return f"{clean(task.name)} (pid {task.key.pid})"


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
