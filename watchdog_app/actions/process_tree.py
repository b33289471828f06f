"""
Who is who among the processes, read at the moment of acting (Linux).

An action trusts no earlier sample: a pid may have passed to another program
in between. Source: proc(5), fields of /proc/PID/stat.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

from watchdog_app.base.linux.procfs import read_stat
from watchdog_app.core.model.machine import ProcessKey

_STOP = 1 << (signal.SIGSTOP - 1)  # in a set of signals
_SHELLS = frozenset(("ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh"))


class Identity(NamedTuple):
    """A process as it is right now."""

    key: ProcessKey
    ppid: int
    state: str  # one letter: R S D T t Z X I
    kernel_thread: bool
    leads_terminal: bool = False  # first of the session of a terminal, as a terminal's shell is


def identify(pid: int, proc: str = "/proc") -> Identity | None:
    """The process of that pid, None when there is none."""
    stat = read_stat(pid, proc)
    if stat is None:
        return None
    return Identity(
        ProcessKey(pid, stat.start_ticks),
        stat.ppid,
        stat.state,
        stat.is_kernel_thread,
        stat.session == pid and stat.tty != 0,
    )


def owners(pid: int, proc: str = "/proc") -> frozenset[int]:
    """
    Every user id that the process runs under: real, effective, saved; empty when it is gone.

    A set-uid program has several: it is not its user's alone, and is left alone.
    """
    try:
        with open(f"{proc}/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Uid:"):
                    return frozenset(int(word) for word in line.split()[1:4])
    except (OSError, ValueError):
        pass
    return frozenset()


def stop_pending(pid: int, proc: str = "/proc") -> bool:
    """Whether a SIGSTOP was sent to the process that it has not come to yet."""
    try:
        with open(f"{proc}/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith((b"SigPnd:", b"ShdPnd:")) and int(line.split()[1], 16) & _STOP:
                    return True
    except (OSError, ValueError, IndexError):
        pass
    return False


def everyone(proc: str = "/proc") -> list[Identity]:
    """Every process that can be seen."""
    found = (identify(int(name), proc) for name in os.listdir(proc) if name.isdigit())
    return [identity for identity in found if identity is not None]


def interactive_shell(identity: Identity, proc: str = "/proc") -> bool:
    """
    Somebody types in it: a shell that leads a terminal of its own and was given no command.

    So `pipenv shell` and its like begin. `sh -c` in a terminal of its own, as a notebook's
    `!command` runs, is work of the program that started it.
    """
    if not identity.leads_terminal:
        return False
    try:
        with open(f"{proc}/{identity.key.pid}/cmdline", "rb") as file:
            argv = file.read().decode("utf-8", "replace").split("\0")[:-1]
    except OSError:
        return False
    if not argv or os.path.basename(argv[0]).lstrip("-") not in _SHELLS:
        return False
    short = [each for each in argv[1:] if each.startswith("-") and not each.startswith("--")]
    if any("i" in each for each in short):
        return True
    return not any("c" in each for each in short) and all(each[:1] == "-" for each in argv[1:])


def with_descendants(
    roots: Iterable[ProcessKey], proc: str = "/proc", others: Collection[ProcessKey] = ()
) -> list[Identity]:
    """
    The named processes and all that descend from them, parents before children.

    Children are followed by their parent's pid, so those in sessions of their own are found too.
    Whoever is gone, or whose pid has passed to another process, is left out; so are `others` and
    interactive shells, with all that descends from them: they go their own way.
    """
    by_pid = {identity.key.pid: identity for identity in everyone(proc)}
    children: dict[int, list[Identity]] = {}
    for identity in by_pid.values():
        children.setdefault(identity.ppid, []).append(identity)
    return _below(roots, by_pid.get, lambda pid: children.get(pid, ()), others, proc)


def known_descendants(
    roots: Iterable[ProcessKey], proc: str = "/proc", others: Collection[ProcessKey] = ()
) -> list[Identity]:
    """
    The same by what the kernel lists as children: as long as the family takes, not all of /proc.

    While children begin and end the kernel may leave one out (proc(5), children): it will do where
    time counts and all of /proc is read afterwards. Kernels that list none are read whole.
    """
    roots = list(roots)
    if not any(os.path.exists(f"{proc}/{each.pid}/task/{each.pid}/children") for each in roots):
        return with_descendants(roots, proc, others)

    def children(pid: int) -> list[Identity]:
        found = (identify(child, proc) for child in _listed_children(pid, proc))
        return [each for each in found if each is not None and each.ppid == pid]

    return _below(roots, lambda pid: identify(pid, proc), children, others, proc)


def _listed_children(pid: int, proc: str) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"{proc}/{pid}/task"):
            with suppress(OSError), open(f"{proc}/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def _below(
    roots: Iterable[ProcessKey],
    read: Callable[[int], Identity | None],
    children: Callable[[int], Iterable[Identity]],
    others: Collection[ProcessKey],
    proc: str,
) -> list[Identity]:
    found: dict[int, Identity] = {}
    for root in roots:
        start = read(root.pid)
        if start is None or start.key != root or root.pid in found:
            continue
        queue = [start]
        for parent in queue:
            if parent.key.pid in found:
                continue
            found[parent.key.pid] = parent
            queue.extend(
                child
                for child in children(parent.key.pid)
                if child.key not in others and not interactive_shell(child, proc)
            )
    return list(found.values())


def below_shell(key: ProcessKey, root: ProcessKey, proc: str = "/proc") -> bool:
    """Whether an interactive shell stands between a process and the root of its task."""
    seen = {0, 1, root.pid}
    pid = key.pid
    while pid not in seen:
        seen.add(pid)
        identity = identify(pid, proc)
        if identity is None:
            return False
        if interactive_shell(identity, proc):
            return root.pid in ancestors(pid, proc)
        pid = identity.ppid
    return False


def ancestors(pid: int, proc: str = "/proc") -> frozenset[int]:
    """The process, its parent, and so on up to the first one."""
    seen: set[int] = set()
    while pid > 0 and pid not in seen:
        seen.add(pid)
        identity = identify(pid, proc)
        if identity is None:
            break
        pid = identity.ppid
    return frozenset(seen)
