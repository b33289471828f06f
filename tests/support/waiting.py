"""Wait for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    condition: Callable[[], T],
    why: str | Callable[[], str] = "the condition was never true",
    timeout_s: float = 60.0,
    *,
    step_s: float = 0.02,
) -> T:
    """
    The first true value of a condition.

    `why` says what did not happen; a function is called only for a failure, to add what is known.
    """
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > end:
            message = why if isinstance(why, str) else why()
            raise AssertionError(f"not within {timeout_s:g} s: {message}")
        time.sleep(step_s)
    return value
