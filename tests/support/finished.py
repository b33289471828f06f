"""A program that a test runs to its end."""

from __future__ import annotations

import subprocess
from typing import Any


def finished(words: Any, *, check: bool = False, **more: Any) -> subprocess.CompletedProcess[str]:
    """
    Run a program to its end; the finished process, with its output as text.

    Args:
        words: as `subprocess.run` takes them.
        check: whether another exit status than 0 is an error.
        more: as `subprocess.run` takes it; it may run for a minute.
    """
    more = {"capture_output": True, "text": True, "timeout": 60, **more}
    return subprocess.run(words, check=check, **more)
