"""
Enter a guard: what `watchdog exec` does before it becomes the program.

It starts the supervisor first, so that the supervisor is outside the guard. Then this process
enters the guard, the supervisor enforces the limit, and the program begins. If a part of this
fails, the program still runs, and one line says under which limit.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from watchdog_app.base import runtime_dir
from watchdog_app.base.errors import ActionError, WatchdogError
from watchdog_app.base.linux.cgroups import AvailableMemory
from watchdog_app.base.text.plain import redact_argv
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.guard import backends, cgroup, limits, messages, process, reservation, slurm
from watchdog_app.guard.cgroup import Cgroup
from watchdog_app.guard.record import GuardRecord, make_folder
from watchdog_app.rescue.segment.segment import ENVIRONMENT

_CLOCK_S = 60.0  # the clock may be set, and the machine may sleep
_LONGEST_COMMAND = 2000  # in characters; scripts of transformers take 30 options
_LIMIT_VARIABLE = "WATCHDOG_GUARD_LIMIT"  # same name as in `agent.oom.refused`


@dataclass(frozen=True, slots=True)
class Entered:
    """The result: a line for the user, and variables for the program's environment."""

    line: str
    environment: dict[str, str]
    supervised: bool = False  # by a supervisor of its own, which ends it in time


def enter(
    limit_bytes: int | None,
    reserve_bytes: int | None,
    *,
    swap_bytes: int,
    refuse: bool,
    notebook: bool,
    **about: Any,
) -> Entered:
    """
    Put this process, and everything that it will start, under a guard.

    Args:
        limit_bytes: memory that it may hold; None: what is free.
        reserve_bytes: memory kept back for saving; None: the default.
        swap_bytes, refuse, notebook: as in `GuardRecord`.
        about: further fields of its `GuardRecord`.

    Raises:
        UsageError: no program can run with these sizes, or the machine does not have them.
    """
    from watchdog_app.base.linux.process import start_time

    pid = os.getpid()
    began = start_time(pid) if sys.platform == "linux" else None
    if began is None:
        return _limit_reservations(limit_bytes, refuse, "this system has no memory groups")
    inside = cgroup.guard_of_process(pid)
    if inside is not None and limit_bytes is None and not notebook:
        return Entered("watchdog: guard: the one that is around this shell already", {})
    free = _available_room()
    limits.check_sizes(limit_bytes, reserve_bytes, swap_bytes, free)
    reserve = limits.LEAST_RESERVE_BYTES if reserve_bytes is None else reserve_bytes
    limit = limits.default_limit(reserve, free) if limit_bytes is None else limit_bytes
    try:
        group = backends.create(cgroup.guard_group_name(pid, began), limit, swap_bytes)
    except ActionError as error:
        return _limit_reservations(limit_bytes, refuse, str(error))
    record = GuardRecord(
        pid=pid,
        start_time=began,
        kind=group.kind,
        group=group.path,
        limit_bytes=limit,
        reserve_bytes=reserve,
        follows_machine=limit_bytes is None and slurm.memory_bytes() is None,
        follows_state=reserve_bytes is None,
        swap_bytes=swap_bytes,
        refuse=refuse,
        notebook=notebook,
        **about,
    )
    try:
        runtime_dir.private_folder(runtime_dir.make())
        make_folder(record.pid, record.start_time)
        process.adopt_orphans()
        return _enter_group(group, record)
    except (OSError, WatchdogError) as error:
        with suppress(OSError):
            group.lift_limit()
            group.remove()
        record.remove()
        return _limit_reservations(limit_bytes, refuse, str(error))


def _enter_group(group: Cgroup, record: GuardRecord) -> Entered:
    order, to_supervisor = os.pipe()
    answer, from_supervisor = os.pipe()
    try:
        with _closing_fds(order, from_supervisor):
            process.start_supervisor(record.folder, order, from_supervisor)
        with _closing_fds(to_supervisor):
            group.enter(record.pid)
            record.group, record.freezer = group.path, group.freezer
            os.write(to_supervisor, json.dumps(record.to_json()).encode())
        answer_text = process.read_answer(answer)
    finally:
        os.close(answer)
    if answer_text != process.READY:
        group.leave(record.pid)
        raise OSError(answer_text.decode(errors="replace") or "its supervisor did not start")
    if record.refuse:
        with suppress(OSError, ValueError):
            reservation.limit_this_process(record.limit_bytes, record.reserve_bytes)
    line = messages.start_line(record)
    if not record.follows_machine:
        free = limits.room_around(group.path).free_bytes
        warning = limits.warning(record.limit_bytes, record.reserve_bytes, free)
        line += f"\nwatchdog: {warning}" if warning else ""
    return Entered(line, {ENVIRONMENT: record.folder}, supervised=True)


@contextmanager
def _closing_fds(*fds: int) -> Iterator[None]:
    """Close the descriptors at the end of a block, also after an error."""
    try:
        yield
    finally:
        for fd in fds:
            os.close(fd)


def check_sizes(limit_bytes: int | None, reserve_bytes: int | None, swap_bytes: int) -> None:
    """
    Refuse sizes for later starts that this machine can never provide.

    Raises:
        UsageError: which size, and why.
    """
    total = _available_room().total_bytes
    limits.check_sizes(limit_bytes, reserve_bytes, swap_bytes, AvailableMemory(total, total))


def _available_room() -> AvailableMemory:
    """The memory available to a new guard here, outside of the guard around us, in the job."""
    folder = f"{backends.ROOT}/memory{cgroup.enclosing_path('memory')}"
    if not os.path.isdir(folder):
        folder = f"{backends.ROOT}{cgroup.enclosing_path('') or ''}"
    room = limits.room_around(os.path.join(folder.rstrip("/"), "guard"))
    job = slurm.memory_bytes()  # Slurm kills what needs more
    if job is None:
        return room
    return AvailableMemory(min(room.free_bytes, job), min(room.total_bytes, job), room.group)


def _limit_reservations(limit: int | None, refuse: bool, why: str) -> Entered:
    """Without a group: limit how much this process and each of its children may reserve."""
    if limit is None and sys.platform == "linux":
        limit = limits.default_limit(0, _available_room())
    if limit is None or not refuse or sys.platform == "win32":
        return Entered(f"watchdog: no guard: {why}", {})
    import resource

    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    _, hard = resource.getrlimit(kind)
    soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    try:
        resource.setrlimit(kind, (soft, hard))
    except (OSError, ValueError, OverflowError) as error:
        return Entered(f"watchdog: no guard: {why}; {error}", {})
    return Entered(
        f"watchdog: guard: {why}. Instead each process may reserve {format_bytes(soft)}: what "
        "does not fit is refused with a MemoryError, and nothing is stopped",
        {_LIMIT_VARIABLE: str(soft)},
    )


def end_without_supervisor(end_unix_s: float) -> None:
    """
    Send SIGTERM at a time to this process, or what it has become, and to the group that it leads.

    Raises:
        OSError: no process can be started for that.
    """
    pid = os.getpid()
    handle = os.pidfd_open(pid)
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        os.close(handle)
        return
    try:
        os.setsid()
        if os.fork() == 0:  # no child of the program, which may wait for all of its children
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.closerange(3, handle)
            os.closerange(handle + 1, os.sysconf("SC_OPEN_MAX"))
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            while (left_s := end_unix_s - time.time()) > 0:
                if poll.poll(min(left_s, _CLOCK_S) * 1000):
                    return  # it has ended
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGTERM)
            else:
                signal.pidfd_send_signal(handle, signal.SIGTERM)
    finally:
        os._exit(0)


def is_notebook(words: Sequence[str]) -> bool:
    """Whether a command is a kernel or a Jupyter server, which a person uses."""
    names = [os.path.basename(word) for word in words[:4]]
    return any(
        name.startswith(("jupyter", "ipykernel")) or name in ("ipython", "ipython3")
        for name in names
    )


def pasteable_command(words: Sequence[str]) -> str:
    """A command for a shell, without secrets; empty: too long to be shown."""
    if len(shlex.join(words)) > _LONGEST_COMMAND:
        return ""
    return shlex.join(redact_argv(words))


def display_name(words: Sequence[str], env: Mapping[str, str], folder: str) -> str:
    """
    A short name for a command: its script, module or notebook, else its program.

    Args:
        words: the command.
        env: its environment. Jupyter Server 2 puts a kernel's notebook into JPY_SESSION_NAME.
        folder: where it starts; it names a kernel whose notebook is unknown.
    """
    if any(os.path.basename(word).startswith("ipykernel") for word in words[:4]):
        notebook = os.path.basename(env.get("JPY_SESSION_NAME", ""))
        if notebook.endswith(".ipynb"):
            stem, of_vscode, _ = notebook.partition("-jvsc-")
            return f"{stem}.ipynb" if of_vscode else notebook
        return f"kernel in {os.path.basename(folder) or folder}"
    for before, word in pairwise(words):
        if word.endswith((".py", ".ipynb", ".sh")):
            return os.path.basename(word)
        if before == "-m":
            return word
    return os.path.basename(words[0])
