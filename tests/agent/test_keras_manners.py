"""Rescues in unusual cases: other programs, finished trainings, damaged files, callbacks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import zygote

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "programs" / "fit_manners.py"


def run(role: str, folder: Path) -> dict[str, Any]:
    env = {**os.environ, "ROLE": role, "WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon")}
    done = zygote.run(PROGRAM, folder, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """The results of the program's first run and of the next one."""
    folder = tmp_path_factory.mktemp("manners")
    return run("before", folder), run("after", folder), folder


@pytest.fixture(scope="module")
def before(runs):
    return runs[0]


@pytest.fixture(scope="module")
def after(runs):
    return runs[1]


# The messages of each run: where it resumes, why it does not, and how to start over.
SAID = {
    "plain": (["resuming from", "step 12, epoch 2, after batch 2", "resume=False"], []),
    "finished": ([], ["resuming"]),
    "anew": ([], ["resuming"]),
    # One flipped bit: the previous rescue is used.
    "damaged": (["step 12", "rescue-0000000017", "checksum"], []),
    # A callback before Rescue saved it, which has not seen the end of the batch.
    "early": (["step 15, epoch 2, after batch 5"], []),
    # The request came when half of the callbacks had seen the end of the epoch.
    "epoch_end": (["step 10, epoch 2, after batch 0"], []),
    "two_fits_second": (["step 4, epoch 1"], []),
}


@pytest.mark.parametrize("case", SAID)
def test_a_program_that_runs_again_trains_the_same_and_says_where_it_goes_on(after, case):
    """The losses equal those of an uninterrupted fit."""
    said, not_said = SAID[case]

    assert after["reference"]["losses"] == after[case]["losses"]
    assert [] == [text for text in said if text not in after[case]["said"]]
    assert [] == [text for text in not_said if text in after[case]["said"]]


def test_a_save_that_the_program_asks_for_is_of_a_moment_that_all_callbacks_have_seen(before):
    """In a batch hook the save is immediate; at the end of an epoch it waits for the next batch."""
    assert before["early"]["rescues"][0].startswith("rescue-0000000015-")
    assert [None] == before["epoch_end"]["paths"]
    assert before["epoch_end"]["rescues"][0].startswith("rescue-0000000010-")


@pytest.mark.parametrize(
    ("case", "part", "text"),
    [
        ("newest_of_finished", "said", "resuming"),
        ("nothing_newest", "error", "RescueError: There is no rescue in "),
        ("fit_of_loop", "error", "not saved by a Keras fit"),
    ],
)
def test_what_was_asked_for_is_done_or_refused(after, case, part, text):
    """resume="newest" takes a finished rescue or fails; a loop refuses the rescue of a fit."""
    assert text in after[case][part]


def test_other_callbacks_see_the_saved_weights_from_the_first_epoch_on(after):
    """A callback that reads the model in on_epoch_begin must not see fresh weights."""
    seen = after["plain"]["weights_at_epoch_begin"]

    assert after["reference"]["weights_at_epoch_begin"] != seen


def test_arrays_are_resumed_in_order_without_any_seed(before, after):
    """The batches after the save equal those after the resume."""
    whole, resumed = before["unseeded"]["batches"], after["unseeded"]["batches"]

    assert 30 == len(whole)
    assert whole[12:] == resumed
    assert "order" not in before["unseeded"]["said"]


def test_random_operations_that_keep_their_counters_are_named(before):
    """The agent inspects the step and reports unreachable random state at the save."""
    assert "draws with RandomStandardNormal" in before["noisy"]["said"]
    assert "RandomStandardNormal" not in before["memory"]["said"]


def test_nothing_of_ours_stays_in_keras_after_a_resumed_fit(after):
    """The model's hooks and the temporary first epoch are removed."""
    assert [] == after["plain"]["hooked"]
    assert after["plain"]["initial_epoch"] is None


def test_a_wider_layer_is_named_and_nothing_is_trained(after, runs):
    """The error names the layer and both shapes; the rescue stays."""
    wider = after["wider"]

    assert wider["error"].startswith("RescueMismatch: ")
    assert "kernel is float32 (4, 7) in the program, float32 (4, 6) in the rescue" in wider["error"]
    assert "momentum" not in wider["error"]
    assert "resume=False" in wider["error"]
    assert 0 == wider["iterations"]
    assert 1 == len(list((runs[2] / "wider").glob("rescue-*")))


def test_fewer_epochs_than_were_trained_train_nothing_and_keep_the_rescue(after, runs):
    """The agent prints the reason and does not mark the rescue as finished."""
    assert "nothing was trained" in after["over"]["said"]
    assert 12 == after["over"]["iterations"]
    assert not list((runs[2] / "over").glob("*/finished"))


def test_two_fits_of_a_program_keep_their_rescues_apart(after):
    """The first fit trains again, and the second resumes from its own rescue."""
    first = after["two_fits_first"]

    assert "resuming" not in first["said"]
    assert "is of a later training of" in first["said"]
    assert "force" not in first["said"]
    assert 10 == first["iterations"]


def test_a_fit_run_again_in_the_same_process_does_not_fall_back_to_its_rescue(before):
    """The state in memory is newer, so it is a separate training."""
    same = before["same_process"]

    assert 30 == same["iterations"]
    assert "resuming" not in same["said"]


def test_callbacks_get_their_memory_back_or_are_named(before, after):
    """
    The agent uses state_dict, CSV rows stay, and it reports once what is lost.

    What functions of callbacks change outside comes back as well.
    """
    said = before["memory"]["said"]

    assert 30 == after["memory"]["seen"]
    assert [30, 30, 30] == after["memory"]["found"]
    assert ["epoch,loss,val_loss", "0,", "1,", "2,"] == [
        row if row.startswith("epoch") else row[:2] for row in after["memory"]["rows"]
    ]
    assert 1 == said.count("what Forgets keeps in losses")
    assert "Remembers" not in said


def test_what_a_callback_keeps_from_its_first_epoch_on_is_named_without_a_save(before):
    assert 1 == before["averages"]["said"].count("what Averages keeps in average")


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("loop_of_fit", "RescueMismatch: "),
        ("loop_mismatch", "kernel is float32 (4, 9) in the program"),
        ("loop_names", "figures is in the program only"),
        ("loop_number", "TypeError: count is of type int"),
        ("loop_iterator", "rescue.data(dataset)"),
    ],
)
def test_a_loop_refuses_what_it_could_not_give_back(after, case, text):
    """The error comes at construction and names a remedy."""
    assert text in after[case]


def test_a_loop_that_asks_for_less_than_was_trained_keeps_its_rescue(after, runs):
    """The state is restored, the agent reports it, and the rescue is not marked as finished."""
    over = after["loop_over"]

    assert ([], [1], 1) == (over["epochs"], over["numbers"], over["step"])
    assert "nothing was trained" in over["said"]
    assert not list((runs[2] / "loop").glob("*/finished"))


def test_a_fit_does_not_take_the_rescue_of_a_loop(after):
    """Each kind of training needs its own folder."""
    assert "not saved by a Keras fit" in after["fit_of_loop"]["error"]
