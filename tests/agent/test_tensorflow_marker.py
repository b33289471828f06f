"""The counter of Keras steps changes no result, and moves before a step changes anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import zygote

pytestmark = pytest.mark.tensorflow

PROGRAM = Path(__file__).parent / "programs" / "counted_steps.py"


def test_counted_steps_have_the_same_last_digits_and_no_write_comes_before():
    done = zygote.run(PROGRAM, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout == 3 * "the same bits: True\nsteps counted: 12\n" + "early writes: []\n"
