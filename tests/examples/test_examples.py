"""Each of the five situations of examples/ fails, is rescued and resumes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from support.finished import finished

EXAMPLES = Path(__file__).parents[2] / "examples"

# the notice during the failure, and the advice of `watchdog explain`
SITUATIONS = {
    "leaking_loop": ("saved step", r"more tensors of|keep float\(loss\)"),
    "shuffle_buffer": ("it will not fit", r"[Ss]huffle"),
    "multiprocess_training": ("was killed by the kernel for memory", r"worker"),
    "oversized_batch": ("saved", r"[Bb]atch"),
    "swap_thrash": ("Memory limit reached", r"group swaps|grow"),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.cgroup,
                pytest.mark.torch if name == "multiprocess_training" else pytest.mark.tensorflow,
                *([] if name == "leaking_loop" else [pytest.mark.slow]),
            ],
        )
        for name in SITUATIONS
    ],
)
def test_a_situation_ends_with_a_rescue_advice_and_the_finished_training(name):
    """
    The test starts it as the README says.

    The second start resumes from the rescue of the first.
    """
    told, advice = SITUATIONS[name]

    done = finished(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        timeout=850,
        env={**os.environ, "WATCHDOG_AGENT_STRICT": ""},
    )

    story = " ".join(done.stdout.split())
    assert 0 == done.returncode, done.stdout + done.stderr
    assert told in story
    for notice in story.split("WATCHDOG")[1:]:
        if "group watchdog-demo-" in notice:  # the training is alone in its group
            assert "programs that watchdog does not watch" not in notice
    first, _, second = story.partition("What to change:")
    assert re.search(r"saved step \d+", first)
    assert re.search(advice, second)
    assert "resuming from" in second
    assert "FINISHED" in second


def test_an_example_whose_framework_does_not_start_says_what_to_install(tmp_path):
    """The error shows the last line of the framework's own message, not a traceback."""
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch_cpu.so: no such file')")

    done = finished(
        [sys.executable, str(EXAMPLES / "multiprocess_training.py")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )

    assert (1, "") == (done.returncode, done.stdout)
    assert "ImportError: libtorch_cpu.so: no such file" in done.stderr
    assert "pip install 'watchdog-app[torch]'" in done.stderr
    assert "Traceback" not in done.stderr
