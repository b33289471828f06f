"""
Explain memory that the guard refused, in a line below the error that leaves the program.

A refusal is an ordinary MemoryError. It does not tell the user that the guard refused, what the
limit is, or which command helps. No line appears for an error that the program catches. No line
appears either if the guard did not refuse: the size alone was too large, a `raise` in Python made
the error, or `ulimit -v` refused.

Every Python process under a guard imports this module at its start. So it imports at the top only
modules that are loaded already.
"""

from __future__ import annotations

import os
import sys

from watchdog_app.base.linux.process import read_statm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType, TracebackType
    from typing import Any

    from watchdog_app.guard.record import GuardRecord

FOLDER = "WATCHDOG_GUARD"  # see `rescue.segment.segment`: the folder of the guard
LIMIT = "WATCHDOG_GUARD_LIMIT"  # bytes; set if no cgroup exists and only reservations are limited
_NEAR_SHARE = 0.85  # of the limit, from which the guard saves in advance
_RUN_AGAIN = "Run it again with more: "

# Another module that shows errors to the user, with an attribute that exists once the module is
# complete. The agent's import hook waits for that attribute.
WATCHED_MODULES = {"IPython.core.interactiveshell": ("InteractiveShellABC", __name__)}

_main_hook: Any = None  # the hook before ours
_init_events: Any = None


def install() -> None:
    """Install the excepthook that explains refusals below tracebacks; may be called again."""
    global _main_hook
    if _main_hook is None:
        _main_hook, sys.excepthook = sys.excepthook, _excepthook


def attach(module: ModuleType) -> None:
    """Hook the module that shows errors of cells, after its import."""
    global _init_events
    held: Any = module
    if _init_events is None:
        _init_events = held.InteractiveShell.init_events
        held.InteractiveShell.init_events = _init_events_and_register


def detach() -> None:
    """Restore the previous hooks, unless others were installed after ours."""
    global _main_hook, _init_events
    if sys.excepthook is _excepthook:
        sys.excepthook, _main_hook = _main_hook, None
    shell: Any = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
    if shell is not None and shell.init_events is _init_events_and_register:
        shell.init_events, _init_events = _init_events, None


def _excepthook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    (_main_hook or sys.__excepthook__)(kind, error, trace)
    _print_explanation(error, continues=hasattr(sys, "ps1"))


def _init_events_and_register(shell: Any) -> None:
    _init_events(shell)
    shell.events.register("post_run_cell", _cell_ended)


def _cell_ended(result: Any = None) -> None:
    # IPython has shown the error before this event.
    _print_explanation(getattr(result, "error_in_exec", None), continues=True)


def _print_explanation(error: BaseException | None, *, continues: bool) -> None:
    """
    Print the explanation of an error, if it has one.

    Never raises: our code must not replace the error of the program.
    """
    try:
        if not isinstance(error, Exception):
            return
        line = explanation(error, continues=continues)
        if line is not None:
            from watchdog_app.agent.contain import print_message

            print_message(line)
    except Exception:  # noqa: S110
        pass


def explanation(error: Exception, *, continues: bool) -> str | None:
    """
    The explanation of an error that leaves the program; None: the guard did not refuse.

    Args:
        error: an error of any kind.
        continues: whether the process continues, as in a notebook.
    """
    from watchdog_app.agent.oom import watch

    if not watch.is_out_of_memory(error) or _raised_in_python(error) or _is_of_gpu(error):
        return None
    wanted, room, guard = wanted_bytes(error), _room_bytes(), _current_guard()
    is_full = guard is not None and guard.was_just_refused
    # The supervisor adapts the limit to the program, so the room may be larger now than at the
    # refusal: allow for half of it.
    if room is None or (wanted is not None and wanted < room // 2 and not is_full):
        return None
    from watchdog_app.base.text.quantities import format_bytes, limit_above

    what = "what does not fit" if wanted is None else f"these {format_bytes(wanted)}"
    if guard is None:
        limit = os.environ.get(LIMIT, "")
        if not limit.isdigit():
            return None
        more = limit_above(int(limit), int(limit) + (wanted or 0))
        return (
            f"its guard refused {what}: each process may reserve {format_bytes(int(limit))} here. "
            f"{_unknown_size_text(wanted)}{_RUN_AGAIN}watchdog exec --limit {more} -- ..."
        )
    used = max(guard.used_bytes, held_bytes())
    why = f"the limit is {format_bytes(guard.limit_bytes)}, and {format_bytes(used)} are held"
    if is_full:  # by less than what was asked for, or other memory has become free since
        why = (
            f"its limit of {format_bytes(guard.limit_bytes)} was reached, and since then "
            "everything further is refused"
        )
    remedy = _remedy(guard, used, wanted, continues=continues)
    return f"its guard refused {what}: {why}. {remedy}"


def stop_text(*, at_limit: bool, saved_step: int | None) -> str | None:
    """
    For a notebook, whose cell shows nothing once it is stopped: at which limit, and what to do.

    Args:
        at_limit: whether the limit is reached; else there is a text only if it is near.
        saved_step: of the rescue that was saved for the limit; None: its guard may have one.
    """
    guard = _current_guard()
    if guard is None or not guard.notebook or guard.at_limit not in ("auto", "hold"):
        return None
    if not at_limit and guard.used_bytes < _NEAR_SHARE * guard.limit_bytes:
        return None
    from watchdog_app.base.text.plain import shell_argument
    from watchdog_app.base.text.quantities import format_bytes, limit_above

    more = limit_above(guard.limit_bytes, guard.used_bytes)
    steps = [each.step for each in guard.rescues if each.pid == os.getpid()]
    step = steps[-1] if saved_step is None and steps else saved_step
    when = "when" if step is None else f"the work is saved up to step {step}. When"
    return (
        f"{when} this notebook reaches its memory limit of {format_bytes(guard.limit_bytes)}, "
        "it is stopped, and loses nothing. To continue it then, from a terminal: watchdog limit "
        f"{shell_argument(guard.name, guard.pid)} {more}"
    )


def is_ended_at_limit() -> bool:
    """Whether the guard of this process ends it now, at its memory limit."""
    guard = _current_guard()
    if guard is None or guard.state != "ending":
        return False
    from watchdog_app.guard import messages

    return messages.was_full(guard)


def _remedy(guard: GuardRecord, used: int, wanted: int | None, *, continues: bool) -> str:
    from watchdog_app.base.text.quantities import format_bytes, limit_above
    from watchdog_app.guard import limits, messages

    # The same size as at the limit, unless a larger one is known to be needed.
    limit = limit_above(guard.limit_bytes, used + (wanted or 0))
    free = limits.room_around(guard.group)
    # No limit helps with a request above the free memory, whichever process holds the rest.
    if (wanted or 0) > free.free_bytes or guard.follows_machine:
        return (
            f"Only {format_bytes(free.free_bytes)} are free here, so a higher limit does not help: "
            "ask for less (a smaller batch, chunks, a smaller type), or end something else first."
        )
    if not continues:
        return f"{_unknown_size_text(wanted)}{_RUN_AGAIN}{messages.start_command(guard, limit)}"
    return (
        f"{_unknown_size_text(wanted)}Give it more from a terminal, and run that again: "
        f"watchdog limit {guard.pid} {limit}"
    )


def _unknown_size_text(wanted: int | None) -> str:
    return "How much it asked for is not known. " if wanted is None else ""


def wanted_bytes(error: BaseException) -> int | None:
    """Bytes that the failed allocation requested, as NumPy and PyTorch say; None: unknown."""
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
    if isinstance(shape, tuple) and isinstance(getattr(dtype, "itemsize", None), int):
        found = int(dtype.itemsize)  # type: ignore[union-attr]
        for each in shape:
            found *= int(each)
        return found
    import re

    said = re.search(r"tried to allocate (\d+) bytes", str(error)[:4000])
    return None if said is None else int(said[1])


def _raised_in_python(error: BaseException) -> bool:
    """Whether a `raise` statement in Python made the error, so that no allocation failed."""
    if type(error) is not MemoryError:
        return False
    import re
    import traceback

    places = traceback.extract_tb(error.__traceback__)
    return not places or re.search(r"\braise\b", places[-1].line or "") is not None


def _is_of_gpu(error: BaseException) -> bool:
    """Whether the memory of a GPU ran out, which no guard limits."""
    from watchdog_app.base.oom_text import out_of_memory

    text = str(error)[:4000].partition("\n")[0]
    found = out_of_memory(type(error).__name__, text)
    return found is not None and found.gpu


def _room_bytes() -> int | None:
    """
    Bytes that this process may still reserve under the guard's limit.

    Returns:
        None if the guard's limit does not apply, or another limit is nearer.
    """
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    statm = read_statm()
    if soft == resource.RLIM_INFINITY or statm is None:
        return None
    room = max(0, soft - statm.data_bytes)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY and space - statm.size_bytes < room:
        return None
    return room


def held_bytes() -> int:
    """Bytes that this process holds, without pages of files and libraries: no limit counts them."""
    statm = read_statm()
    return 0 if statm is None else statm.resident_bytes - statm.shared_bytes


def _current_guard() -> GuardRecord | None:
    """The record that the supervisor wrote of the guard of this process; None: unknown."""
    name = os.path.basename(os.environ.get(FOLDER, "").rstrip("/"))
    if not name:
        return None
    from watchdog_app.guard import cgroup, record

    found = record.read(os.path.join(record.guards_folder(), name))
    if found is None or cgroup.guard_of_process(os.getpid()) != cgroup.guard_group_name(
        found.pid, found.start_time
    ):
        return None
    return found
