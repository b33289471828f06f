"""
The border between the agent and the training: an error of ours stays ours.

Everything that the training calls goes through a `Guard`. It catches
`Exception` and nothing else: Ctrl-C, `sys.exit` and the kernel's signals are
the user's, and so is what a signal handler of the program raises while code of
ours happens to run (PyTorch's: a worker of a DataLoader was killed). With
WATCHDOG_AGENT_STRICT=1 (our own tests) it catches nothing.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from types import CodeType, TracebackType
from typing import Any

STRICT = "WATCHDOG_AGENT_STRICT"


class Guard:
    """
    Catches errors of the agent and prints the first one in plain words.

        guard = Guard("the rescue agent")
        with guard:
            work()

    May be used by several threads and within itself.
    """

    def __init__(self, part: str = "the rescue agent") -> None:
        self.part = part
        self.failed = False  # an error was caught
        self._printed: set[str] = set()

    def caught(self, error: Exception) -> None:
        """
        Print the first error.

        Raises:
            Exception: `error` again, where tests asked for that or it is none of ours.
        """
        if os.environ.get(STRICT) == "1" or _is_from_signal_handler(error):
            raise error
        if self.failed:
            return
        self.failed = True
        print_message(
            f"{self.part} had an error and switched itself off for this step; "
            f"your training is not affected: {describe(error)}. "
            f"It will try again at the next step. This is said once; to see where it came from, "
            f"run again with {STRICT}=1."
        )

    def print_once(self, message: str) -> None:
        """Print a message that is no error of ours, the first time that it occurs."""
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


def _is_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler raised it, which the interpreter had put between ours."""
    seen = []
    step = error.__traceback__
    while step is not None:
        seen.append(step.tb_frame.f_code)
        step = step.tb_next
    return any(_handler_code(signal.getsignal(number)) in seen for number in signal.valid_signals())


def _handler_code(handler: Any) -> CodeType | None:
    """Of a function, a method, a partial, or an object that can be called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    call = getattr(type(handler), "__call__", None)  # noqa: B004 - for its code
    found = getattr(handler, "__code__", None) or getattr(call, "__code__", None)
    return found if isinstance(found, CodeType) else None


def print_message(message: str) -> None:
    """Write one line to stderr after `watchdog: `. Never raises; escapes control characters."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in message)
    try:
        sys.stderr.write(f"watchdog: {shown}\n")
        sys.stderr.flush()
    except Exception:  # noqa: S110 - stderr may be closed, replaced or None
        pass


def describe(error: BaseException) -> str:
    """`ValueError: text`, at most 300 characters, on one line."""
    text = str(error).strip()
    name = type(error).__name__
    return " ".join((f"{name}: {text}" if text else name).split())[:300]
