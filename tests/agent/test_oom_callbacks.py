"""Memory runs out in a callback of a fit, outside its steps: what the agent saves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import zygote

from watchdog_app.agent.adapters.keras import callbacks as callback_state
from watchdog_app.agent.adapters.keras.rescue import FitRescue
from watchdog_app.agent.adapters.report import Report
from watchdog_app.agent.oom import fit
from watchdog_app.rescue.checkpoint.store import SavedRescue

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "programs" / "fit_callback_exhausted.py"
# The moment, the callback's position, and the saved step: five batches per epoch, and
# memory runs out in the second epoch.
CASES = {
    "on_train_batch_end:2 before": 8,
    "on_train_batch_end:2 after": 8,
    "on_train_batch_end:4 before": 10,
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


@pytest.mark.parametrize("caller", ["on_train_batch_end", "_call_batch_hook_helper"])
def test_the_callback_that_failed_is_known_with_keras_3_and_keras_2(caller: str):
    """It is not among those that had still to handle the moment; neither is the agent's own."""

    class Greedy:
        def on_train_batch_end(self) -> None:
            raise MemoryError

    def call(self: Any, callback: Any) -> None:
        callback.on_train_batch_end()

    module = {"__module__": "tf_keras.src.callbacks"}
    call.__code__ = call.__code__.replace(co_name=caller)
    greedy = Greedy()

    with pytest.raises(MemoryError) as raised:
        type("CallbackList", (), {**module, "call": call})().call(greedy)

    assert greedy is fit._failing_callback(raised.value)
    assert callback_state.implements_hook(greedy, "on_train_batch_end")
    ours = type("AutomaticRescue", (Greedy,), {})()
    assert not callback_state.implements_hook(ours, "on_train_batch_end")


@pytest.mark.parametrize("missing", [(), ("metrics",)])
def test_what_is_told_after_a_save_is_what_the_rescue_lacks(capsys, missing: tuple[str, ...]):
    """The capture that ran out of memory may lack more than the better rescue that is kept."""
    fit: Any = SimpleNamespace(_report=Report(), _state=SimpleNamespace(lost=["metrics", "slots"]))

    FitRescue._report_saved(fit, SavedRescue("rescue", 3, 10, 0.1, missing))

    said = capsys.readouterr().err
    assert bool(missing) == ("will not bring back: metrics." in said)
    assert "slots" not in said
