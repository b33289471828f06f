"""
Entering a guard: what `watchdog exec` does before it becomes the program.

The supervisor is started first, so that it is outside; then this process enters the guard,
the supervisor makes the limit hold, and only then the program begins. Whatever of it cannot be had,
the program runs all the same, and one line says what it runs in.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass

from watchdog_app.base.errors import ActionError, WatchdogError
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.guard import cgroup, messages, reservation, shares, sizes, starting
from watchdog_app.guard import record as records
from watchdog_app.guard.record import GuardRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from watchdog_app.guard.cgroup import Cgroup

_LIMIT_VARIABLE = "WATCHDOG_GUARD_LIMIT"  # as `agent.exhaustion.refused` has it


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a command line asks for. None: what is sensible here."""

    limit_bytes: int | None = None
    reserve_bytes: int | None = None
    swap_bytes: int = 0
    at_limit: str = "auto"
    hold_s: float | None = None
    refuse: bool = True
    notebook: bool = False
    name: str = "program"


@dataclass(frozen=True, slots=True)
class Entered:
    """What was had: a line for people, and what the program's environment gets."""

    line: str
    environment: dict[str, str]


def enter(wanted: Wanted) -> Entered:
    """
    Put this process, and all that it will start, into a guard.

    Raises:
        UsageError: the sizes are ones that no program can run in, or that are not there.
    """
    pid = os.getpid()
    start_time = _start_time(pid)
    if sys.platform != "linux" or start_time is None:
        return _softly(wanted, "this system has no memory groups")
    inside = cgroup.guard_of(pid)
    if inside is not None and wanted.limit_bytes is None and not wanted.notebook:
        return Entered("watchdog: guard: the one that is around this shell already", {})
    sizes.check(wanted.limit_bytes, wanted.reserve_bytes, wanted.swap_bytes, _free_here())
    reserve = shares.LEAST_RESERVE_BYTES if wanted.reserve_bytes is None else wanted.reserve_bytes
    limit = _default_limit(reserve) if wanted.limit_bytes is None else wanted.limit_bytes
    try:
        guard = cgroup.create(cgroup.name_of(pid, start_time), limit, wanted.swap_bytes)
    except ActionError as error:
        return _softly(wanted, str(error))
    record = GuardRecord(
        pid,
        start_time,
        wanted.name[:200],
        guard.how,
        guard.path,
        limit,
        reserve,
        follows_machine=wanted.limit_bytes is None,
        follows_state=wanted.reserve_bytes is None,
        swap_bytes=wanted.swap_bytes,
        refuse=wanted.refuse,
        notebook=wanted.notebook,
        at_limit=wanted.at_limit,
        hold_s=wanted.hold_s,
    )
    try:
        _private(record)
        records.sweep()
        return _enter(guard, record, wanted)
    except (OSError, WatchdogError) as error:
        with suppress(OSError):
            guard.release()
            guard.close()
        record.remove()
        return _softly(wanted, str(error))


def _enter(guard: Cgroup, record: GuardRecord, wanted: Wanted) -> Entered:
    to_supervisor, from_supervisor = os.pipe(), os.pipe()
    try:
        try:
            starting.begin(record.folder, to_supervisor[0], from_supervisor[1])
        finally:
            os.close(to_supervisor[0])
            os.close(from_supervisor[1])
        guard.enter(record.pid)
        record.group, record.freezer = guard.path, getattr(guard, "freezer", None)
        os.write(to_supervisor[1], json.dumps(record.to_json()).encode())
        os.close(to_supervisor[1])
        to_supervisor = (-1, -1)
        answer = starting.hear(from_supervisor[0])
    finally:
        for fd in (to_supervisor[1], from_supervisor[0]):
            if fd >= 0:
                os.close(fd)
    if answer != starting.READY:
        _leave(guard, record.pid)
        raise OSError(answer.decode(errors="replace") or "its supervisor did not start")
    if wanted.refuse:
        with suppress(OSError, ValueError):
            reservation.begin(record.limit_bytes, record.reserve_bytes)
    line = messages.begun(record)
    if not record.follows_machine:
        free = shares.free_now(guard.path).free_bytes
        told = sizes.warning(record.limit_bytes, record.reserve_bytes, free)
        line += f"\nwatchdog: {told}" if told else ""
    return Entered(line, {_page_variable(): record.pages})


def _leave(guard: Cgroup, pid: int) -> None:
    with suppress(OSError):
        guard.leave_to(pid)


def check(limit_bytes: int | None, reserve_bytes: int | None, swap_bytes: int) -> None:
    """
    Refuse sizes for later starts that can never be had here.

    Raises:
        UsageError: which, and why.
    """
    total = _free_here().total_bytes
    sizes.check(limit_bytes, reserve_bytes, swap_bytes, shares.Free(total, total))


def _default_limit(reserve_bytes: int) -> int:
    free = _free_here()
    return max(free.free_bytes - free.margin_bytes - reserve_bytes, sizes.LEAST_DEFAULT_BYTES)


def _free_here() -> shares.Free:
    own = cgroup.enclosing("memory")
    folder = f"/sys/fs/cgroup/memory{own}"
    if own is None or not os.path.isdir(folder):
        folder = f"/sys/fs/cgroup{cgroup.enclosing('') or ''}"
    # Asked for a guard that is not there yet: what lies around it begins one folder up.
    return shares.free_now(os.path.join(folder.rstrip("/"), "guard"))


def _softly(wanted: Wanted, why: str) -> Entered:
    """No group: what this process and its children may reserve is limited, each by itself."""
    limit = wanted.limit_bytes
    if limit is None:
        limit = _default_limit(0) if sys.platform == "linux" else None
    if limit is None or not wanted.refuse or sys.platform == "win32":
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
        "does not fit is refused with a MemoryError, and nothing is held",
        {_LIMIT_VARIABLE: str(soft)},
    )


def _private(record: GuardRecord) -> None:
    from watchdog_app.base import runtime_dir

    runtime_dir.private_folder(runtime_dir.make())
    records.prepare(record.pid, record.start_time)


def _page_variable() -> str:
    from watchdog_app.rescue.segment.segment_layout import ENVIRONMENT

    return ENVIRONMENT


def _start_time(pid: int) -> int | None:
    from watchdog_app.base.linux.process import start_time

    return start_time(pid) if sys.platform == "linux" else None


def is_notebook(words: Sequence[str]) -> bool:
    """Whether a command is a kernel or a Jupyter server, which somebody sits in front of."""
    names = [os.path.basename(word) for word in words[:4]]
    return any(
        name.startswith(("jupyter", "ipykernel")) or name in ("ipython", "ipython3")
        for name in names
    )


def name_of(words: Sequence[str], env: Mapping[str, str], folder: str) -> str:
    """
    What people would call a command: its script or notebook, else its program.

    Args:
        words: the command.
        env: its environment. Jupyter Server 2 names a kernel's notebook in JPY_SESSION_NAME.
        folder: where it starts, which names a kernel whose notebook nobody knows.
    """
    if any(os.path.basename(word).startswith("ipykernel") for word in words[:4]):
        notebook = os.path.basename(env.get("JPY_SESSION_NAME", ""))
        if notebook.endswith(".ipynb"):
            stem, of_vscode, _ = notebook.partition("-jvsc-")
            return f"{stem}.ipynb" if of_vscode else notebook
        return f"kernel in {os.path.basename(folder) or folder}"
    for word in words[1:]:
        if word.endswith((".py", ".ipynb", ".sh")):
            return os.path.basename(word)
    return os.path.basename(words[0])
