"""A name that holds a line end makes no line of its own: nobody can put words into our mouth."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORGED = "FORGED 4711 all is well"
NAME = f"a\n{FORGED}\n.py"


@pytest.fixture
def said(world):
    """What a command prints, both ways together."""

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "watchdog_app", *words],
            env={**world.env, "COLUMNS": "300"}, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False, timeout=60,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    return run


def test_a_name_with_a_line_end_makes_no_line(world, said):
    """In no table, sentence, error, list of candidates or history."""
    world.start()
    pid = world.script("import time\ntime.sleep(120)\n", NAME)
    world.seen(pid)

    told = {
        number: said(*words)
        for number, words in enumerate((
            ("pause", "nobody"), ("trace", str(pid)), ("stacks", str(pid)), ("pause", str(pid)),
            ("pause", str(pid)), ("status", "--all"), ("explain", str(pid)), ("history",),
        ))
    }  # fmt: skip

    assert any("FORGED" in text for text in told.values())
    assert [] == [
        text
        for text in told.values()
        if any(line.strip().startswith("FORGED") for line in text.splitlines())
    ]
