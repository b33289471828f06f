"""
Record where Python crashed, or which uncaught exception ended the program.

Python's faulthandler writes the stack into a small file in the state folder. If the program has
enabled faulthandler itself, the agent does not touch it. For an exception the report contains type,
first line and place; the previous excepthook runs too. The daemon reads the file after the end,
shows it with the cause of death, and removes it. A process that ends well removes its file.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys

from watchdog_app.base import paths
from watchdog_app.base.linux import process

# This runs at the start of every kernel and script: do not import anything that starts slowly.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

FOLDER = "crash-reports"
_MOST_FILES = 200  # reports that no daemon has read
_MOST_FRAMES = 4
_LONGEST = 200
_INSTALLED = ("/lib/python3", "/lib64/python3", "/site-packages/", "/dist-packages/", "<frozen ")

_file: int | None = None
_path: str | None = None
_enabled_faulthandler = False  # whether we enabled faulthandler
_previous_excepthook: Any = None  # sys.excepthook before ours
_exit_handlers_registered = False
_failed = False  # an uncaught exception occurred


def install() -> bool:
    """
    Install the handlers that record how this process ends. Never raises; may be called again.

    Returns:
        Whether the handlers are installed.
    """
    global _file, _path, _enabled_faulthandler, _previous_excepthook, _exit_handlers_registered
    if _file is not None:
        return True
    start = process.start_time("self")  # None outside Linux, where no daemon reads the report
    if start is None:
        return False
    folder = os.path.join(paths.state_dir(), FOLDER)
    path = os.path.join(folder, f"{os.getpid()}-{start}")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _remove_old_reports(folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(path, flags, 0o600)
        if _is_foreign_file(os.fstat(file)):
            os.close(file)
            return False
        _file = file
    except OSError:
        return False  # full disk or read-only home: continue without a report
    _path = path
    if not faulthandler.is_enabled():
        faulthandler.enable(_file)
        _enabled_faulthandler = True
    if _previous_excepthook is None:  # else another hook calls ours already
        _previous_excepthook, sys.excepthook = sys.excepthook, _excepthook
    if not _exit_handlers_registered:
        _exit_handlers_registered = True
        atexit.register(uninstall)
        os.register_at_fork(after_in_child=_close_in_child)
    return True


def _is_foreign_file(found: os.stat_result) -> bool:
    """
    Whether the file is not a plain file of this user with a single name.

    Another user may have put it there, or it may be a hard link to an important file.
    """
    regular = found.st_mode & 0o170000 == 0o100000  # S_ISREG; do not import stat at the start
    return not regular or found.st_nlink != 1 or paths.is_foreign(found)


def uninstall() -> None:
    """Restore the previous handlers. Keep a written report for the daemon, remove an empty one."""
    file, path = _file, _path
    if file is None:
        return
    _restore_handlers()
    try:
        if path is not None and os.fstat(file).st_size == 0:
            os.unlink(path)
        os.close(file)
    except OSError:
        pass


def failed() -> bool:
    """
    Whether an uncaught exception is ending the program; for use while Python exits.

    In IPython, errors of cells end nothing and do not reach `sys.excepthook`.
    """
    if _failed or "IPython" in sys.modules:
        return _failed
    last = getattr(sys, "last_type", None)
    return isinstance(last, type) and issubclass(last, Exception)


def _restore_handlers() -> None:
    """Restore the previous handlers, unless others were installed after ours."""
    global _file, _path, _enabled_faulthandler, _previous_excepthook
    _file = _path = None
    if _enabled_faulthandler:
        _enabled_faulthandler = False
        faulthandler.disable()
    if sys.excepthook is _excepthook:
        sys.excepthook = _previous_excepthook
        _previous_excepthook = None


def _close_in_child() -> None:
    """In a forked child: restore the handlers and close the parent's file."""
    file = _file
    if file is None:
        return
    _restore_handlers()
    try:
        os.close(file)
    except OSError:
        pass


def _excepthook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Replacement of `sys.excepthook`: record the final exception and call the previous hook."""
    global _failed
    # Programs also call the hook to print an error and then continue; a prompt continues too.
    ends = getattr(sys, "last_value", None) is error and not hasattr(sys, "ps1")
    if ends and issubclass(kind, Exception):
        _failed = True
    if ends and _file is not None and issubclass(kind, Exception):
        try:
            os.write(_file, _format_exception(kind, error, trace))
        except Exception:  # noqa: S110 - the program must see its own error
            pass
    (_previous_excepthook or sys.__excepthook__)(kind, error, trace)


def _format_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> bytes:
    """Type, first line of the message, and the innermost frames; no values of variables."""
    try:
        message = str(error).strip().partition("\n")[0][:_LONGEST]
    except Exception:
        message = ""
    lines = [f"Uncaught {kind.__name__[:_LONGEST]}: {message}"]
    frames: list[str] = []
    own: str | None = None  # the innermost frame outside libraries; often far from the error
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append(f'  File "{code.co_filename}", line {trace.tb_lineno} in {code.co_name}')
        del frames[: max(0, len(frames) - _MOST_FRAMES)]
        if not any(part in code.co_filename for part in _INSTALLED):
            own = frames[-1]
        trace = trace.tb_next
    if own is not None and own not in frames:
        frames.insert(0, own)
    return "\n".join([*lines, *reversed(frames), ""]).encode("utf-8", "backslashreplace")


def _remove_old_reports(folder: str) -> None:
    """Remove the oldest reports that no daemon has read."""
    with os.scandir(folder) as entries:
        found = sorted((one.stat(follow_symlinks=False).st_mtime, one.path) for one in entries)
    for _, path in found[:-_MOST_FILES]:
        os.unlink(path)
