"""
Who is who among the processes, read at the moment of acting (Linux).

An action trusts no earlier sample: a pid may have passed to another program
in between. Source: proc(5), fields of /proc/PID/stat.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from watchdog_app.core.records import ProcessKey

_PF_KTHREAD = 0x00200000  # include/linux/sched.h


class Identity(NamedTuple):
    """A process as it is right now."""

    key: ProcessKey
    ppid: int
    state: str  # one letter: R S D T t Z X I
    kernel_thread: bool


def identify(pid: int, proc: str = "/proc") -> Identity | None:
    """The process of that pid, None when there is none."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return None
    # The name stands in parentheses and may hold any byte; nothing after it holds one.
    rest = data[data.rfind(b")") + 2 :].split()
    if len(rest) < 20:
        return None
    return Identity(
        ProcessKey(pid, int(rest[19])),
        int(rest[1]),
        rest[0].decode("ascii", "replace"),
        bool(int(rest[6]) & _PF_KTHREAD),
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


def everyone(proc: str = "/proc") -> list[Identity]:
    """Every process that can be seen."""
    found = (identify(int(name), proc) for name in os.listdir(proc) if name.isdigit())
    return [identity for identity in found if identity is not None]


def with_descendants(roots: Iterable[ProcessKey], proc: str = "/proc") -> list[Identity]:
    """
    The named processes and all that descend from them, parents before children.

    Children are followed by their parent's pid, so those in sessions of their own are found too.
    Whoever is gone, or whose pid has passed to another process, is left out.
    """
    by_pid = {identity.key.pid: identity for identity in everyone(proc)}
    children: dict[int, list[Identity]] = {}
    for identity in by_pid.values():
        children.setdefault(identity.ppid, []).append(identity)
    found: dict[int, Identity] = {}
    for root in roots:
        start = by_pid.get(root.pid)
        if start is None or start.key != root or root.pid in found:
            continue
        queue = [start]
        for parent in queue:
            if parent.key.pid in found:
                continue
            found[parent.key.pid] = parent
            queue.extend(children.get(parent.key.pid, ()))
    return list(found.values())


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
