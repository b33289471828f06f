"""Memory runs out in a callback of a fit, outside its steps: what the agent saves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import zygote

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "programs" / "fit_callback_exhausted.py"
# The moment, the callback's position, and the saved step: five batches per epoch, and
# memory runs out in the second epoch.
CASES = {
    "on_epoch_begin:0 before": 5,
    "on_train_batch_begin:2 before": 7,
    "on_train_batch_begin:2 after": 7,
    "on_train_batch_end:2 before": 8,
    "on_train_batch_end:2 after": 8,
    "on_train_batch_end:4 before": 10,
    "on_test_batch_begin:0 before": 10,
    "on_epoch_end:0 before": 10,
    "on_epoch_end:0 after": 10,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("callbacks")
    done = zygote.run(
        PROGRAM,
        folder,
        *CASES,
        env={**os.environ, "WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon")},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        found.update(json.loads(line))
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_fit_whose_callback_ran_out_of_memory_goes_on_bit_for_bit(runs, case):
    """At any position in the list no batch is trained twice, and the weights are equal."""
    reference, both = runs["reference"], runs[case]
    stopped, resumed = both["stopped"], both["resumed"]

    assert "MemoryError" == stopped["error"]
    assert "memory ran out in a callback" in stopped["notes"][0]
    assert f"step {CASES[case]}, " in resumed["said"]
    assert reference["weights"] == resumed["weights"]
    # This includes a resume in an epoch whose batches are all done.
    assert [10, 15][-len(resumed["steps"]) :] == resumed["steps"]
    missed = [each for each in reference["seen"] if each not in stopped["seen"] + resumed["seen"]]
    assert len(reference["seen"]) == len(stopped["seen"]) + len(resumed["seen"]) + len(missed)
    # The message names only callbacks that had not yet seen the batch or epoch.
    named = [part for part in resumed["said"].splitlines() if "had still to do" in part]
    assert bool(missed) == any("Log" in part for part in named)
    assert not any("Greedy" in part for part in named)
