"""
Error boundary between the agent and the training: errors of the agent never reach the training.

Every call from the training into the agent goes through a `Guard`. It catches `Exception` and
nothing else. Ctrl-C, `sys.exit` and the kernel's signals belong to the user. So do errors that a
signal handler of the program raises while agent code runs. PyTorch has such a handler: it raises
when a DataLoader worker was killed. With WATCHDOG_AGENT_STRICT=1 (set by our own tests) the guard
catches nothing.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from traceback import walk_tb
from types import CodeType, TracebackType
from typing import Any

STRICT = "WATCHDOG_AGENT_STRICT"


class Guard:
    """
    Catches errors of the agent and prints the first one in plain words.

        guard = Guard("the rescue agent")
        with guard:
            work()

    Thread-safe and reentrant.
    """

    def __init__(self, part: str = "the rescue agent") -> None:
        self.part = part
        self.failed = False  # an error was caught
        self._printed: set[str] = set()

    def caught(self, error: Exception) -> None:
        """
        Print the first error.

        Raises:
            Exception: `error` again, if the tests asked for it or a signal handler raised it.
        """
        if os.environ.get(STRICT) == "1" or _is_from_signal_handler(error):
            raise error
        if self.failed:
            return
        self.failed = True
        from watchdog_app.base.oom_text import mentions_memory

        if isinstance(error, MemoryError) or mentions_memory(str(error)[:4000]):  # as of JAX
            _errors.print_once(
                f"{self.part} found no memory for its work in this step; your training is not "
                "affected. It will try again at the next step."
            )
            return
        _errors.print_once(
            f"{self.part} had an error and switched itself off for this step; "
            f"your training is not affected: {describe(error)}. "
            f"It will try again at the next step. This is said once; to see where it came from, "
            f"run again with {STRICT}=1."
        )

    def print_once(self, message: str) -> None:
        """Print a message that does not report an agent error, the first time it occurs."""
        if message not in self._printed:
            self._printed.add(message)
            print_message(message)

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self.caught(error)
            return True
        return False


_errors = Guard("errors of all parts")  # two guards may report the same error


def _is_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler of the program raised the error during agent code."""
    seen = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    return any(_handler_code(signal.getsignal(number)) in seen for number in signal.valid_signals())


def _handler_code(handler: Any) -> CodeType | None:
    """The code of a function, a method, a partial or a callable object."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    call = getattr(type(handler), "__call__", None)  # noqa: B004 - for its code
    found = getattr(handler, "__code__", None) or getattr(call, "__code__", None)
    return found if isinstance(found, CodeType) else None


def print_message(message: str) -> None:
    """Write one line to stderr after `watchdog: `. Never raises; escapes control characters."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in message)
    try:
        from watchdog_app.base.text.plain import line_start

        is_plain = sys.stderr is sys.__stderr__
        first = line_start(sys.stderr.fileno()) if is_plain else ""
        sys.stderr.write(f"{first}watchdog: {shown}\n")
        sys.stderr.flush()
    except Exception:  # noqa: S110 - stderr may be closed, replaced or None
        pass


def describe(error: BaseException) -> str:
    """`ValueError: text`, at most 300 characters, on one line."""
    text = str(error).strip()
    name = type(error).__name__
    return " ".join((f"{name}: {text}" if text else name).split())[:300]
