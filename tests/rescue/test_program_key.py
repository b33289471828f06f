"""Which training of a program a rescue belongs to, by the function that begins it."""

from __future__ import annotations

import subprocess
import sys


def test_arguments_behind_a_program_from_a_pipe_count():
    """`python - --fold 1 < train.py`, as loops in a shell start it."""
    code = (
        "from watchdog_app.rescue.identity import program_key\n"
        "print(program_key.program().arguments.others.get('fold'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-", "--fold", "1"], input=code, capture_output=True, text=True, check=True
    )

    assert "1\n" == done.stdout
