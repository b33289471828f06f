"""
To which watched process another one belongs, through the shells between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from watchdog_app.base.errors import SensorError
from watchdog_app.core.model.machine import ProcessInfo, ProcessKey
from watchdog_app.machine.sensors.process_files import read_stat
from watchdog_app.machine.sensors.watched import Watched

_MAX_DEPTH = 64  # deeper is a loop made of reused pids


def tell(
    proc: str,
    watched: Iterable[Watched],
    info_of: Callable[[int], ProcessInfo | None],
    argv_of: Callable[[int], tuple[str, ...] | None],
) -> bool:
    """Tell each of them which one it belongs to, as `nearest` finds it; whether one has another."""
    changed = False
    for each in watched:
        info = each.description.info
        ancestor = nearest(proc, info, each.files.stat.ppid, info_of, argv_of)
        if ancestor != info.ancestor:
            each.description = replace(each.description, info=replace(info, ancestor=ancestor))
            changed = True
    return changed


def nearest(
    proc: str,
    info: ProcessInfo,
    ppid: int,
    watched: Callable[[int], ProcessInfo | None],
    argv_of: Callable[[int], tuple[str, ...] | None],
) -> ProcessKey | None:
    """
    The nearest watched process above one, of the same user; None: there is none.

    Args:
        proc: where the proc file system is mounted.
        info: of the process below.
        ppid: its parent now.
        watched: the watched process that has a pid.
        argv_of: the command line of a pid; None: not known yet.
    """
    pid = ppid
    for _ in range(_MAX_DEPTH):
        if pid <= 1:
            return None
        above = watched(pid)
        if above is not None:
            return above.key if above.uid == info.uid and above.key != info.key else None
        try:
            between = read_stat(proc, pid)
        except SensorError:
            return None
        # A terminal's shell leads a session of its own: what is typed there is a task of its
        # own, even when the terminal is a Python program. `sh -c` is no such shell, although a
        # notebook's `!command` gives it a terminal.
        leads_terminal = between.session == pid and between.tty != 0
        if leads_terminal and "-c" not in (argv_of(pid) or ())[1:2]:
            return None
        pid = between.ppid
    return None
