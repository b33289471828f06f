"""Trainings that really run out of memory: what is saved, what continues, and how exact it is."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support import zygote
from support.finished import finished

from watchdog_app.agent.adapters.passes import Passes
from watchdog_app.agent.oom.loop import LastPosition

pytestmark = pytest.mark.timeout(900)

PROGRAMS = Path(__file__).parent / "programs"
TOLERANCE = 1e-5  # of a loss, over 54 steps in float32; measured: 3e-7 to 4e-7


def run(program: str, folder: Path, *cases: str, code: int = 0) -> dict[str, Any]:
    words = [PROGRAMS / program, folder, *cases]
    env = {**os.environ, "WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon")}
    if program.startswith("torch"):
        done = finished([sys.executable, *map(str, words)], env=env, timeout=850)
    else:
        done = zygote.run(*words, env=env, timeout_s=850)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = {"stderr": done.stderr}
    for line in done.stdout.splitlines():
        found.update(json.loads(line))
    return found


def apart(runs: dict[str, Any]) -> float:
    """Return the largest relative difference of the losses from those of whole batches."""
    pairs = list(zip(runs["parts"]["losses"], runs["reference"]["losses"], strict=True))
    assert len(pairs) >= 50
    return max(
        abs(float.fromhex(one) - float.fromhex(other)) / abs(float.fromhex(other))
        for one, other in ((each, to) for each, to in map(_losses, pairs))
    )


def _losses(pair: tuple[Any, Any]) -> tuple[str, str]:
    one, other = (each["loss"] if isinstance(each, dict) else each for each in pair)
    return one, other


@pytest.fixture(scope="module")
def torch_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = ("saved", "shrunk", "shrunk_noisy", "remembered", "torn")
    cases += ("placed_first", "placed_later", "between")
    return run("torch_exhausted.py", tmp_path_factory.mktemp("torch"), *cases)


@pytest.mark.tensorflow
def test_a_fit_that_ran_out_is_saved_as_before_that_batch_and_resumes_bit_for_bit(tmp_path):
    """The failed step had changed BatchNormalization, Dropout, metrics and a schedule."""
    runs = run("fit_exhausted.py", tmp_path, "saved")["saved"]

    assert "ResourceExhaustedError" == runs["stopped"]["error"]
    assert 3 == len(runs["stopped"]["losses"])
    assert "The training is saved: " in runs["stopped"]["notes"][0]
    assert 'on_oom="shrink"' in runs["stopped"]["notes"][0]
    assert "step 3, epoch 1, after batch 3" in runs["resumed"]["said"]
    assert runs["reference"]["losses"] == runs["resumed"]["losses"]  # as its callback kept them
    assert runs["stopped"]["step_is_its_own"]


@pytest.mark.tensorflow
def test_a_fit_whose_data_ran_out_of_memory_says_what_its_rescue_lacks(tmp_path):
    """Dropout drew for the failed batch, and the step was counted."""
    runs = run("fit_exhausted.py", tmp_path, "fetched")["fetched"]

    assert 20 == len(runs["stopped"]["losses"])
    assert "statistics, metrics and counters" in runs["stopped"]["said"]
    assert "statistics, metrics and counters" in runs["resumed"]["said"]
    assert "step 20, epoch 4, after batch 2" in runs["resumed"]["said"]
    assert len(runs["reference"]["losses"]) == len(runs["resumed"]["losses"])


@pytest.mark.tensorflow
def test_a_fit_that_shrinks_loses_no_batch_and_stays_close(tmp_path):
    """The losses equal those of whole batches within rounding. The agent reports the sizes once."""
    runs = run("fit_exhausted.py", tmp_path, "shrunk")["shrunk"]

    assert runs["parts"]["error"] is None
    assert "batches of 64 go through in" in runs["parts"]["said"]
    assert runs["reference"]["iterations"] == runs["parts"]["iterations"]
    assert TOLERANCE > apart(runs)
    assert runs["parts"]["step_is_its_own"]


@pytest.mark.tensorflow
def test_a_loss_that_compares_the_samples_of_a_batch_is_not_trained_in_parts(tmp_path):
    """Parts would compute another loss, so the agent saves and raises the error."""
    stopped = run("fit_exhausted.py", tmp_path, "coupled")["coupled"]["stopped"]

    assert "ResourceExhaustedError" == stopped["error"]
    assert "compares the samples of a batch with each other" in stopped["said"]
    assert "Use a smaller batch_size" in stopped["notes"][0]
    assert 3 == len(stopped["losses"])
    assert 1 == len(stopped["rescues"])


@pytest.mark.tensorflow
def test_weights_that_were_half_applied_are_not_saved(tmp_path):
    """The error's note says so, and the model has its own step function again."""
    stopped = run("fit_exhausted.py", tmp_path, "torn")["torn"]["stopped"]

    assert "MemoryError" in stopped["error"]
    assert "half of this step" in stopped["notes"][0]
    assert [] == stopped["rescues"]
    assert stopped["step_is_its_own"]


@pytest.mark.tensorflow
def test_parts_of_a_batch_train_as_the_whole_for_every_loss_and_optimizer():
    """
    The test compares weights, slots and metrics.

    An indivisible loss is refused with a reason.
    """
    done = zygote.run(PROGRAMS / "keras_parts.py", env=os.environ, timeout_s=850)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])

    far = found["apart"]
    half = far.pop("half")
    assert 14 == len(far)
    assert {} == {name: each for name, each in far.items() if max(each.values()) > 1e-5}
    assert 2e-3 > half["logs"]  # float16 has three digits
    assert {"contrastive", "circle", "sum over the batch"} == {
        name for name, coupled in found["coupled"].items() if coupled
    }
    assert [] == [name for name, coupled in found["alone"].items() if coupled]
    assert [] == [name for name, why in found["refused"].items() if not why]


@pytest.mark.tensorflow
def test_a_tensorflow_loop_that_ran_out_resumes_bit_for_bit(tmp_path):
    """The run draws the failed batch again."""
    runs = run("tensorflow_exhausted.py", tmp_path, "saved")["saved"]

    assert 3 == len(runs["stopped"]["losses"])
    assert "step 3, epoch 1" in runs["resumed"]["said"]
    assert runs["reference"]["losses"][3:] == runs["resumed"]["losses"]


@pytest.mark.tensorflow
def test_a_tensorflow_loop_that_shrinks_stays_close(tmp_path):
    """`rescue.gradients` returns the gradients of the whole batch."""
    runs = run("tensorflow_exhausted.py", tmp_path, "shrunk")["shrunk"]

    assert "batches of 64 go through in" in runs["parts"]["said"]
    assert TOLERANCE > apart(runs)


@pytest.mark.torch
def test_a_torch_loop_that_ran_out_resumes_bit_for_bit(torch_runs):
    """The epoch is shuffled, with running statistics, dropout and a module that counts calls."""
    runs = torch_runs["saved"]

    assert "RuntimeError" == runs["stopped"]["error"]
    assert "The training is saved: " in runs["stopped"]["notes"][0]
    assert "step 7, epoch 2" in runs["resumed"]["said"]
    assert runs["reference"]["losses"][7:] == runs["resumed"]["losses"]
    assert runs["reference"]["calls"] == runs["resumed"]["calls"]  # an attribute, and a buffer


@pytest.mark.torch
@pytest.mark.parametrize("case", ["placed_first", "placed_later"])
def test_the_first_batch_of_an_epoch_that_does_not_fit_is_trained_again(torch_runs, case):
    """The scheduler's step and the random numbers between the epochs count once."""
    runs = torch_runs[case]

    stopped = runs["stopped"]["had"]
    assert 0 < len(stopped) < len(runs["reference"]["had"])
    assert stopped[-1][0] + 1 == runs["resumed"]["had"][0][0]
    assert runs["reference"]["had"] == stopped + runs["resumed"]["had"]


@pytest.mark.torch
def test_data_that_is_read_within_an_epoch_does_not_undo_steps_after_a_resume(torch_runs):
    """A validation that the rescue already had runs again at its position."""
    runs = torch_runs["between"]

    assert 4 == len(runs["stopped"])
    assert runs["reference"] == runs["stopped"] + runs["resumed"]


@pytest.mark.torch
def test_a_torch_loop_that_shrinks_stays_close(torch_runs):
    """Without batch statistics only the order of additions differs."""
    assert "batches of 32 go through in" in torch_runs["shrunk"]["parts"]["said"]
    assert TOLERANCE > apart(torch_runs["shrunk"])


@pytest.mark.torch
def test_batch_statistics_and_dropout_are_close_in_the_end(torch_runs):
    """
    They see parts of batches, so single losses differ, but those of the last epoch have the same
    size.
    """
    runs = torch_runs["shrunk_noisy"]

    ends = [
        sum(float.fromhex(each) for each in runs[name]["losses"][-6:])
        for name in ("parts", "reference")
    ]

    assert ends[1] == pytest.approx(ends[0], rel=0.5)
    assert runs["parts"]["losses"] != runs["reference"]["losses"]


@pytest.mark.torch
def test_the_size_that_fits_is_remembered_in_the_rescue(torch_runs):
    """The resume must not fail again with the same size."""
    first, learnt, resumed = torch_runs["remembered"]["sizes"]

    assert first is None
    assert learnt < 32
    assert learnt == resumed


@pytest.mark.torch
def test_an_optimizer_at_work_leaves_nothing_to_save(torch_runs):
    """The optimizer has already changed weights since the last step."""
    torn = torch_runs["torn"]

    assert "not those of a whole step" in torn["notes"][0]
    assert [] == torn["rescues"]


@pytest.mark.torch
def test_an_error_that_nobody_catches_is_saved_on_its_way_out(tmp_path):
    """The loop has no `with`: the traceback ends the program as usual, and the rescue exists."""
    found = run("torch_exhausted.py", tmp_path, "uncaught", code=1)

    assert "can't allocate memory" in found["stderr"]
    assert 1 == found["stderr"].count("The training is saved: ")
    assert 1 == len(list((tmp_path / "uncaught").glob("rescue-0000000004-*")))


@pytest.mark.torch
def test_a_loop_that_was_found_by_itself_is_saved_as_the_error_leaves_it(tmp_path):
    """The rescue lists as not restored what the failed step may have changed."""
    program = shutil.copy(PROGRAMS / "torch_found_exhausted.py", tmp_path)
    done = finished(
        [sys.executable, str(program)],
        env={**os.environ, "WATCHDOG_RUNTIME_DIR": str(tmp_path / "no-daemon")},
        cwd=tmp_path,
    )

    assert done.returncode == 1
    assert "can't allocate memory" in done.stderr
    assert "the batch that ran out of memory" in done.stderr
    assert 1 == len(list((tmp_path / "rescues").rglob("rescue.json")))


def test_a_pass_that_began_again_within_its_epoch_has_its_own_position():
    """Two iterators that begin again when they end, as in semi-supervised training."""
    passes = Passes(print)
    last = LastPosition(passes)
    short, long = [1, 2], [1, 2, 3, 4]
    reads, other = iter(passes.run(short, lambda: None)), iter(passes.run(long, lambda: None))
    for _ in range(3):
        batch = next(reads, None)
        if batch is None:
            reads = iter(passes.run(short, lambda: None))
            next(reads)
        next(other)
        last.record_position(own=False)

    next(reads)  # in the step that runs out of memory
    last.restore()

    places = passes.position()
    assert (1, 1, False) == tuple(places["0"][name] for name in ("passes", "drawn", "finished"))
    assert (0, 3, False) == tuple(places["1"][name] for name in ("passes", "drawn", "finished"))
