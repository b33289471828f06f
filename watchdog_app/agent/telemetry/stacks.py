"""
The Python stack of each thread of this program, without the values of variables.

The agent's own thread reads the stacks. It runs whenever the interpreter's lock (GIL) is free; a
training that hangs in a lock, a queue or a system call leaves the GIL free. A training inside a C
call that keeps the GIL cannot be read. For it the daemon has the kernel's facts and `current_line`:
the place where it last released the GIL, sent with every report.

Two methods that need no GIL were measured and rejected. `faulthandler.dump_traceback_later` exists
once per process, and the program may use it itself (pytest does); nothing tells whether it is set.
Each call starts a thread (62 us). It also reads stacks that change meanwhile: it crashed a program
of four busy threads with a segmentation fault within seconds. After a pause its timer is late, so
it would fire right when a paused training is resumed. `faulthandler.register` needs a signal. Both
free ones are used (Slurm, Lightning, torchrun), each interrupts the system calls of libraries, and
a signal that arrives too late kills the process.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any

from watchdog_app.rescue.identity.call_site import is_library_file

_MOST_THREADS = 64
_MOST_FRAMES = 40  # innermost frames of one thread
# of all threads: messages have a size limit, and JSON needs six bytes for some characters
_MOST_CHARS = 60_000
_PATH_CHARS = 250
_NAME_CHARS = 100

_PACKAGE = os.path.abspath(f"{__file__}/../../..")
# The parts of watchdog that run inside a training; `watchdog_app.demo.train` is a program.
AGENT_FOLDERS = tuple(
    os.path.join(_PACKAGE, folder, "")
    for folder in ("agent", "guard", "base", "client", "install", "rescue")
)

Json = dict[str, Any]


def collect(trainer: int | None) -> Json:
    """
    The stacks of every thread of the program except the agent's, see `agent.stacked`.

    Args:
        trainer: identity (`threading.get_ident`) of the thread that makes the steps; None: unknown.

    Returns:
        `threads`: the trainer's thread first; each with `name`, `native_id` (null: unknown),
        `trains`, `frames` (`file`, `line`, `function`; innermost first).
        `more`: number of threads left out.
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
        for line in map(_line, islice(callers(frames[ident]), _MOST_FRAMES)):
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
    The current line of the training in the program: `file`, `line`, `function`.

    It is the innermost line of the program's own code; without one, the innermost line of all. None
    if the thread is unknown or has ended. Takes 1 to 5 us.
    """
    if trainer is None:
        return None
    innermost = current_frames().get(trainer)
    for frame in islice(callers(innermost), 4 * _MOST_FRAMES):
        if is_program_file(frame.f_code.co_filename):
            return _line(frame)
    return None if innermost is None else _line(innermost)


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that have called it, outwards."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _line(frame: FrameType) -> Json:
    code = frame.f_code
    return {
        "file": display_name(code.co_filename)[-_PATH_CHARS:] or "?",
        "line": frame.f_lineno,
        "function": code.co_name[:_NAME_CHARS] or "?",
    }


def _is_agent_thread(frame: FrameType) -> bool:
    """
    Whether the agent started the thread: its outermost frame, except `threading`, is the agent's.
    """
    while frame.f_back is not None and frame.f_back.f_code.co_filename != threading.__file__:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(AGENT_FOLDERS)


def display_name(file: str) -> str:
    """A file name for people: "Cell In[2]" for a cell of a notebook, as in its tracebacks."""
    of_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    compiler = getattr(of_shell(), "compile", None)
    name = getattr(compiler, "format_code_name", lambda _: None)(file)  # since IPython 8
    return file if name is None else " ".join(name)


def is_program_file(file: str) -> bool:
    """Whether a file is the program's own: not of a library, not frozen, not ours."""
    return not (file.startswith((*AGENT_FOLDERS, "<frozen")) or is_library_file(file))


def current_frames() -> dict[int, FrameType]:
    """
    Like `sys._current_frames`: the innermost frame of each thread, by `threading.get_ident`.

    Up to Python 3.11 that function creates objects while it holds a lock of the interpreter. If
    that starts a garbage collection, finalizers run and may release the GIL. A thread that ends
    just then takes the GIL and waits for that lock: a deadlock. So the garbage collector is off
    during the call.

    Source: CPython issue 106883.
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
    The variables of a running function.

    Before Python 3.13, `f_locals` leaves a dict behind. That dict keeps alive what the function
    holds, even after the function deletes it. So the dict is emptied, unless the program called
    `locals()` and uses the dict.
    """
    found = frame.f_locals
    names = dict(found)
    # only the frame, `found` and the argument refer to it
    if sys.version_info < (3, 13) and sys.getrefcount(found) <= 3:
        found.clear()
    return names
