"""
What a Python left behind as it crashed (see agent/runtime/crash_report.py): read once, removed.

Whatever is in such a file was written by a program that was about to fail: it is bounded, and
believed in what concerns that program and nothing else.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress

from watchdog_app.base.durable import open_nonblocking
from watchdog_app.base.text.plain import redact
from watchdog_app.core.model.exits import LastError
from watchdog_app.core.model.machine import ProcessKey

FOLDER = "crash-reports"
_MAX_BYTES = 16 * 1024
_MAX_FRAMES = 8
_LONGEST = 200
_FATAL = re.compile(r"^(Fatal Python error: [^\n]{1,200})", re.M)
_UNCAUGHT = re.compile(r"^Uncaught ([^\n:]{1,200}): ?([^\n]*)$", re.M)
_CURRENT = re.compile(r"^Current thread [^\n]*:\n((?:  [^\n]*\n?)*)", re.M)
_FRAME = re.compile(r'^  File "([^"\n]{1,4000})", line (\d+) in ([^\n]{1,200})$', re.M)
# What no user wrote: the standard library and what was installed.
_FOREIGN = re.compile(r"(?:^<|/lib(?:64)?/python\d|/site-packages/|/dist-packages/)")


def read(folder: str, key: ProcessKey) -> LastError | None:
    """
    What the process has left, which is removed; None where there is nothing.

    Args:
        folder: of the state, where the journal lies.
    """
    path = os.path.join(folder, FOLDER, f"{key.pid}-{key.start_time}")
    try:
        with open(path, "rb", opener=open_nonblocking) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid():
                return None
            data = file.read(_MAX_BYTES)
    except OSError:
        return None
    with suppress(OSError):
        os.unlink(path)
    return parse(data.decode("utf-8", "replace"))


def parse(text: str) -> LastError | None:
    """What such a file says; None: nothing that is understood."""
    fatal = _FATAL.search(text)
    if fatal is not None:
        current = _CURRENT.search(text, fatal.end())
        return LastError(fatal=fatal[1], frames=_frames(current[1] if current else ""))
    uncaught = _UNCAUGHT.search(text)
    if uncaught is None:
        return None
    return LastError(
        error=uncaught[1].strip(),
        message=redact(uncaught[2].strip()[:_LONGEST]) or None,
        frames=_frames(text[uncaught.end() :]),
    )


def _frames(text: str) -> tuple[str, ...]:
    found = []
    for path, line, name in _FRAME.findall(text)[:_MAX_FRAMES]:
        place = f"{_frame_file(path)}:{line} in {name.strip()}"
        found.append(place)
    return tuple(found)


def _frame_file(path: str) -> str:
    """The file's name; of what is not the program's own with its package, in brackets."""
    base = os.path.basename(path)
    if not _FOREIGN.search(path):
        return base
    package = os.path.basename(os.path.dirname(path))
    return f"<{package}/{base}>" if package else f"<{base}>"
