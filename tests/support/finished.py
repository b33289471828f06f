"""A program that a test runs to its end."""

from __future__ import annotations

import subprocess
from typing import Any


def finished(words: Any, *, check: bool = False, **more: Any) -> subprocess.CompletedProcess[str]:
    """
    Run a program to its end and return the finished process, with its output as text.

    Args:
        words: the command, as for `subprocess.run`.
        check: whether an exit status other than 0 is an error.
        more: keyword arguments for `subprocess.run`; the default timeout is five minutes, and the
            output is captured unless it goes somewhere else.
    """
    captured = not {"stdout", "stderr"} & more.keys()
    more = {"capture_output": captured, "text": True, "timeout": 300, **more}
    return subprocess.run(words, check=check, **more)
