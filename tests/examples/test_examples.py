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
    assert "pip install torch" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(300)
def test_an_elastic_restart_resumes_from_the_rescue_of_all_ranks(tmp_path):
    """torchrun starts all ranks again after one was killed."""
    env = {**os.environ, "RESCUES": str(tmp_path / "rescues"), "OMP_NUM_THREADS": "1"}
    env |= {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "WATCHDOG_RUNTIME_DIR": str(tmp_path / "run"),
    }
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

    done = finished(
        [*run, "--max-restarts", "2", str(EXAMPLES / "elastic.py")], env=env, timeout=280
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "start 0: 0 steps are done" in done.stdout
    assert "start 1: 20 steps are done" in done.stdout
    assert "finished after 48 steps" in done.stdout
