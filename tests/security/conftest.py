"""The World of tests/daemon, and a second user."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from pathlib import Path

import pytest

_WORLD = Path(__file__).parents[1] / "daemon" / "conftest.py"
_spec = importlib.util.spec_from_file_location("security_world", _WORLD)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

world, raw = _module.world, _module.raw
STRANGER = 65534  # nobody: exists on every Unix and owns nothing


@pytest.fixture
def stranger():
    """
    Run Python as another user and return its output.

    A fork drops its privileges, because other users may not be able to read the interpreter's
    files.
    """

    def run(code: str, *words: str) -> str:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([])
                os.setgid(STRANGER)
                os.setuid(STRANGER)
                sys.argv = ["-c", *words]
                with open(write, "w") as out, contextlib.redirect_stdout(out):
                    exec(code, {"__name__": "__main__"})
            finally:
                os._exit(0)
        os.close(write)
        with open(read) as said:
            text = said.read()
        os.waitpid(pid, 0)
        return text.strip()

    return run
