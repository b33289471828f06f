"""
A terminal taken over for a live view and given back as it was, whatever happens.

The view lives on the alternate screen, so that the scrollback keeps what was
there. Keys are read without echo. Ctrl-Z, a change of size and SIGTERM do what
a person expects. Sequences as in xterm's ctlseqs; 2026 (one frame at a time)
is ignored by terminals that do not know it.
"""

from __future__ import annotations

import os
import select
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Literal, Self

    Happened = Literal["", "quit", "resize", "a", "s"]

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # alternate screen, no cursor, no line wrapping
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_KEYS: dict[bytes, Happened] = {b"q": "quit", b"Q": "quit", b"\x04": "quit", b"a": "a", b"s": "s"}


class Screen:
    """A context manager around the live view."""

    def __init__(self) -> None:
        self._keys: int | None = None  # standard input, when keys can be read from it
        self._saved_mode: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._wake_read, self._wake_write, self._wake_before = -1, -1, -1
        self._quit = False
        self._resized = False
        self._stopped = False

    def __enter__(self) -> Self:
        """Take the terminal over."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        # Python runs no handler for a signal that comes just before `select` waits. The wakeup
        # descriptor is written by the signal itself.
        self._wake_before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for name, handler in (
            ("SIGINT", self._on_quit),
            ("SIGTERM", self._on_quit),
            ("SIGHUP", self._on_quit),
            ("SIGWINCH", self._on_resize),
            ("SIGTSTP", self._on_stop),
        ):
            if hasattr(signal, name):
                number = getattr(signal, name)
                self._handlers[number] = signal.signal(number, handler)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wake_before)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def draw(self, lines: list[str]) -> None:
        """Show a frame in place of the one before, without clearing in between."""
        # Each line is erased before it is written: afterwards, the cursor of a full line still
        # stands on its last character, which would go.
        body = "\r\n".join(f"\x1b[K{line}" for line in lines)
        sys.stdout.write(f"\x1b[?2026h\x1b[H{body}\x1b[J\x1b[?2026l")
        sys.stdout.flush()

    def wait(self, seconds: float) -> Happened:
        """What happened within `seconds`: a key, a change of size, the wish to end, or ""."""
        if not (self._quit or self._resized or self._stopped):
            sources = [self._wake_read] + ([] if self._keys is None else [self._keys])
            ready, _, _ = select.select(sources, [], [], seconds)
            if self._wake_read in ready:
                os.read(self._wake_read, 64)
            elif ready and self._keys is not None:
                return self._key(self._keys)
        if self._quit:
            return "quit"
        if self._stopped:
            self._stop()
            return "resize"
        if self._resized:
            self._resized = False
            return "resize"
        return ""

    def _key(self, source: int) -> Happened:
        key = os.read(source, 64)
        if not key:  # the other end of the terminal is gone
            self._keys = None
            return "quit"
        return _KEYS.get(key[:1], "")

    def _take(self) -> None:
        try:
            import termios
            import tty

            if sys.stdin is not None and sys.stdin.isatty():
                self._keys = sys.stdin.fileno()
                self._saved_mode = termios.tcgetattr(self._keys)
                tty.setcbreak(self._keys)
        except (ImportError, OSError, ValueError):
            self._keys = None  # Windows, or a terminal that takes no settings: no keys then
        sys.stdout.write(_ENTER)
        sys.stdout.flush()

    def _give_back(self) -> None:
        try:
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()
        except OSError:
            pass  # the terminal was closed
        if self._saved_mode is not None and self._keys is not None:
            import termios

            try:
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._saved_mode)
            except (OSError, termios.error):
                pass

    def _on_quit(self, _number: int, _frame: FrameType | None) -> None:
        self._quit = True

    def _on_resize(self, _number: int, _frame: FrameType | None) -> None:
        self._resized = True

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopped = True

    def _stop(self) -> None:
        """Ctrl-Z: give the terminal to the shell, and take it again after `fg`."""
        self._stopped = False
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._on_stop)  # from here on after SIGCONT
        self._take()
