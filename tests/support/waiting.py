"""Wait for another process or thread."""

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
    Return the first true value of a condition.

    `why` names the condition in the error; a function is called only for a failure, to add details.
    """
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > end:
            message = why if isinstance(why, str) else why()
            raise AssertionError(f"not within {timeout_s:g} s: {message}")
        time.sleep(step_s)
    return value
