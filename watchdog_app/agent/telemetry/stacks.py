"""
What each thread of this program does: its Python stack, and never the value of a variable.

Told by the agent's own thread, which runs whenever the interpreter's lock (GIL) is free: a
training that hangs in a lock, a queue or a system call leaves it free. One that is inside a C
call which keeps it cannot be asked. Of such a one the daemon knows what the kernel says, and
`current_line`: where it was when it last let go, told with every report.

Two ways around the lock were measured and left. `faulthandler.dump_traceback_later` needs no
lock, but there is one of it in a process, which may be the program's own (pytest sets it) and
cannot be asked about; each re-arming starts a thread (62 us); and it reads stacks that change
while it reads: it ended a program of four busy threads with a segmentation fault within seconds.
A pause makes it late, so it would strike right when a paused training is resumed.
`faulthandler.register` needs a signal: both free ones are used (Slurm, Lightning, torchrun), each
interrupts the system calls of libraries, and one that comes too late kills.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from watchdog_app.rescue.identity.call_site import LIBRARY_FOLDERS

_MOST_THREADS = 64
_MOST_FRAMES = 40  # of one thread: the innermost ones
_MOST_CHARS = 60_000  # of all: a message has a size, and JSON makes six bytes of some of them
_PATH_CHARS = 250
_NAME_CHARS = 100

_PACKAGE = os.path.abspath(f"{__file__}/../../..")
# What of watchdog is loaded into a training; `watchdog_app.demo.train` is a program of its own.
AGENT_FOLDERS = tuple(
    os.path.join(_PACKAGE, folder, "")
    for folder in ("agent", "guard", "base", "client", "install", "rescue")
)

Json = dict[str, Any]


def collect(trainer: int | None) -> Json:
    """
    The stacks of every thread of the program, as in `agent.stacked`: threads of the agent are not.

    Args:
        trainer: identity (`threading.get_ident`) of the thread that makes the steps; None: not
            known.

    Returns:
        `threads`: that one first; each with `name`, `native_id` (null: not known), `trains`,
        `frames` (`file`, `line`, `function`; innermost first); `more`: those that were left out.
    """
    frames = current_frames()
    mine = threading.get_ident()
    # Not threading.enumerate(), which takes a lock that a forked or hanging program may hold.
    known = dict(threading._active)  # type: ignore[attr-defined]
    main = threading.main_thread().ident
    order = sorted(
        (ident for ident, frame in frames.items() if ident != mine and not _is_agent_thread(frame)),
        key=lambda ident: (ident != trainer, ident != main),
    )
    found: list[Json] = []
    left = _MOST_CHARS
    for ident in order[:_MOST_THREADS]:
        thread = known.get(ident)
        stack = []
        for line in _stack(frames[ident], _MOST_FRAMES):
            left -= len(line["file"]) + len(line["function"])
            if left < 0:
                break
            stack.append(line)
        found.append(
            {
                "name": str(getattr(thread, "name", None) or "a thread of a library")[:_NAME_CHARS],
                "native_id": getattr(thread, "native_id", None),
                "trains": ident == trainer,
                "frames": stack,
            }
        )
    return {"threads": found, "more": max(0, len(order) - _MOST_THREADS)}


def current_line(trainer: int | None) -> Json | None:
    """
    Where in the program the training is now: `file`, `line`, `function`.

    The innermost line that is the program's own; of a program without one the innermost at all.
    None where that thread is not known or has ended. Takes 1 to 5 us.
    """
    if trainer is None:
        return None
    frame = current_frames().get(trainer)
    innermost = frame
    for _ in range(4 * _MOST_FRAMES):
        if frame is None:
            break
        if is_program_file(frame.f_code.co_filename):
            return _line(frame)
        frame = frame.f_back
    return None if innermost is None else _line(innermost)


def _stack(frame: FrameType | None, most: int) -> Iterator[Json]:
    while frame is not None and most > 0:
        yield _line(frame)
        frame = frame.f_back
        most -= 1


def _line(frame: FrameType) -> Json:
    code = frame.f_code
    return {
        "file": display_name(code.co_filename)[-_PATH_CHARS:] or "?",
        "line": frame.f_lineno,
        "function": code.co_name[:_NAME_CHARS] or "?",
    }


def _is_agent_thread(frame: FrameType) -> bool:
    """Whether the agent has started it: the outermost frame, but for `threading`, is ours."""
    while frame.f_back is not None and frame.f_back.f_code.co_filename != threading.__file__:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(AGENT_FOLDERS)


def display_name(file: str) -> str:
    """A file as people know it: "Cell In[2]" for a cell of a notebook, as in its tracebacks."""
    of_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    compiler = getattr(of_shell(), "compile", None)
    name = getattr(compiler, "format_code_name", lambda _: None)(file)  # since IPython 8
    return file if name is None else " ".join(name)


def is_program_file(file: str) -> bool:
    """Whether a file is the program's own: of no library, not frozen, not ours."""
    return not file.startswith((*LIBRARY_FOLDERS, *AGENT_FOLDERS, "<frozen"))


def current_frames() -> dict[int, FrameType]:
    """
    As `sys._current_frames`: the innermost frame of each thread, by `threading.get_ident`.

    Up to Python 3.11 that function makes objects while it holds a lock of the interpreter's. If
    one of them begins a garbage collection, finalizers run and may let go of the GIL; a thread
    that ends just then takes the GIL and waits for that lock, and nothing runs any more, for
    ever. So no collection begins in there (CPython issue 106883).
    """
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return sys._current_frames()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()


def frame_locals(frame: FrameType) -> dict[str, Any]:
    """
    The variables of a function that runs.

    Before Python 3.13 the look leaves a dict behind that keeps alive what the function holds,
    also after it deleted it: it is emptied, unless the program has called `locals()` and has it.
    """
    found = frame.f_locals
    names = dict(found)
    # The frame, `found` and the argument: nobody else.
    if sys.version_info < (3, 13) and sys.getrefcount(found) <= 3:
        found.clear()
    return names
