"""What the frozen program runs: the command line, or one of our own parts as a child."""

from __future__ import annotations

import os
import sys

from watchdog_app.base import children


def main() -> int:
    """The exit code."""
    _leave_others_their_libraries()
    if sys.argv[1:2] == [children.CHILD]:
        children.run_module(sys.argv[2:])
    from watchdog_app.cli import main as command_line

    return command_line(["tray"] if _opened_from_a_desktop() else None)


def _opened_from_a_desktop() -> bool:
    """Whether it was opened by a double click on macOS or Windows: nobody would read the usage."""
    # Older versions of macOS add a word of their own.
    words = [word for word in sys.argv[1:] if not word.startswith("-psn_")]
    windowed = sys.stdin is None or not sys.stdin.isatty()
    return not words and windowed and sys.platform in ("darwin", "win32")


def _leave_others_their_libraries() -> None:
    """
    Give back what the loader of this program changed, for the programs that we start.

    systemctl, a terminal or the user's Python would load our libraries in the place of theirs.
    Our own children come through the loader and need no help.
    """
    for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"):
        before = os.environ.pop(f"{name}_ORIG", None)
        if before is not None:
            os.environ[name] = before
        elif getattr(sys, "frozen", False) and os.environ.get(name) == sys._MEIPASS:
            del os.environ[name]


if __name__ == "__main__":
    sys.exit(main())
