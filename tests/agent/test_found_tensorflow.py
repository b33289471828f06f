"""TensorFlow loops without a Rescue: found, saved, and resumed with the printed lines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from support import zygote
from support.finished import finished

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

PROGRAMS = Path(__file__).parent / "programs"
CASES = ("eager", "function", "two_optimizers")


def run(folder, *words, **env):
    own = {"WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon"), "WATCHDOG_AGENT_STRICT": "1"}
    env = {**os.environ, **own, **env}
    if env.get("ROLE", "").startswith(("reference", "resumed")):  # without the hook
        return zygote.run(*words, cwd=folder, env=env)
    return finished([sys.executable, *words], cwd=folder, env=env)


def parts(text):
    """Return the output of each case."""
    found = {}
    for line in text.splitlines():
        if line.startswith("CASE "):
            lines = found[line.split()[1]] = []
        else:
            lines.append(line)
    return found


@pytest.fixture(scope="module")
def loops(tmp_path_factory):
    """The output of each case and role, the agent's messages, and each case's rescue."""
    folder = tmp_path_factory.mktemp("found")
    shutil.copy(PROGRAMS / "found_loops.py", folder / "train.py")
    reference = run(folder, "train.py", ROLE=" ".join(["reference", *CASES]))
    assert 0 == reference.returncode, reference.stderr
    said, killed, places = {}, {}, {}
    for case in CASES:
        known = set((folder / "rescues").glob("*"))
        done = run(folder, "train.py", ROLE=" ".join(["killed", case]))
        assert -signal.SIGKILL == done.returncode, done.stderr
        killed |= parts(done.stdout)
        said[case] = [one for one in done.stderr.splitlines() if one.startswith("watchdog:")]
        (places[case],) = set((folder / "rescues").glob("*")) - known
    again = run(folder, "train.py", ROLE=" ".join(["killed", "eager"]))
    env = {f"PLACE_{case}": str(place) for case, place in places.items()}
    resumed = run(folder, "train.py", ROLE=" ".join(["resumed", *CASES]), **env)
    assert 0 == resumed.returncode, resumed.stderr
    return {
        "reference": parts(reference.stdout), "killed": killed, "said": said, "places": places,
        "resumed": parts(resumed.stdout), "again": again.stderr, "folder": folder,
    }  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_killed_loop_goes_on_with_the_lines_and_repeats_every_bit(loops, case):
    """
    The losses before the rescue equal those without the agent, and those after it the uninterrupted
    run.
    """
    expected, killed, resumed = (loops[role][case] for role in ("reference", "killed", "resumed"))

    # The process ran one step past its rescue before the kill.
    assert expected[: len(killed)] == killed
    assert 13 <= len(killed) <= 15
    assert expected[-len(resumed) :] == resumed
    assert len(expected) <= len(killed) + len(resumed) <= len(expected) + 2


@pytest.mark.parametrize("case", CASES)
def test_one_line_as_it_is_found_and_one_as_it_is_first_saved(loops, case):
    found, saved = loops["said"][case]

    assert "TensorFlow trainings are saved in rescues/train.py-" in found
    assert "saved in rescues/train.py-" in saved
    assert "it says how to resume from there." in saved
    inside = "random numbers that the training step draws with RandomStandardNormal"
    assert (case == "function") == (inside in saved)
    assert (case == "eager") == ("a tf.data shuffle that an evaluation reads" in saved)
    # The list `history` is in the rescue, and `zip` leaves no loop early.
    assert (case != "two_optimizers") == ("A resume will not bring back:" in saved)


def test_the_next_run_says_which_lines_go_on(loops):
    """
    The lines name the program's variables and data sets, and the run leaves the rescue unchanged.
    """
    place = loops["places"]["eager"]
    given = "model=model, optimizer=optimizer, mean=mean, average=average"
    lines = [line for line in loops["again"].splitlines() if line.startswith("    ")]

    assert "This run has started over and leaves it alone" in loops["again"]
    assert [
        "    from watchdog_app.agent.tensorflow import Rescue",
        f"    rescue = Rescue('rescues/{place.name}', {given})",
        "    for epoch in rescue.epochs(EPOCHS):  # instead of: for epoch in range(EPOCHS)",
        "        for batch in rescue.data(dataset):",
        "            ...  # your step; EPOCHS and batch stand for your own names",
        "            rescue.step()",
    ] == lines
    assert (loops["folder"] / "rescues" / f"{place.name}-2").is_dir()
    assert 1 == len([one for one in place.iterdir() if one.name.startswith("rescue-")])


@pytest.mark.parametrize(
    ("case", "names", "data"),
    [
        (
            "function",
            {"net": "self.net", "opt": "self.opt", "seen": "self.seen", "seeds": "self.seeds"},
            ["dataset"],
        ),
        (
            "two_optimizers",
            {
                "generator": "generator", "critic": "critic", "own": "own",
                "generator_optimizer": "generator_optimizer",
                "critic_optimizer": "critic_optimizer",
            },
            ["dataset", "noise"],
        ),
    ],
)  # fmt: skip
def test_a_rescue_tells_the_names_that_the_program_has(loops, case, names, data):
    """Names can be attributes of a trainer, and there can be several data sets."""
    (rescue,) = loops["places"][case].glob("rescue-*")

    found = json.loads((rescue / "rescue.json").read_text())["rescue"]["meta"]["found"]

    assert names == found["names"]
    assert data == found["data"]


@pytest.fixture(scope="module")
def manners(tmp_path_factory):
    """The observations of one process, the agent's messages, and its folder."""
    folder = tmp_path_factory.mktemp("manners")
    shutil.copy(PROGRAMS / "found_manners.py", folder)
    done = run(folder, "found_manners.py")
    assert 0 == done.returncode, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("watchdog:")]
    return json.loads(done.stdout), said, folder


def test_fits_and_batches_trained_by_keras_are_no_loops(manners):
    """Their train_step also calls an optimizer, in eager mode in every step."""
    assert 0 == manners[0]["fit_beside"]


def test_a_loop_over_arrays_ends_its_steps_at_the_next_tape(manners):
    """The request comes in the ninth step."""
    assert 9 == manners[0]["arrays"]


def test_a_function_that_calls_a_traced_step_trains(manners):
    """
    The function's calls count as steps, after three calls of the inner step that was traced before.
    """
    assert 12 == manners[0]["nested"]


def test_a_loop_with_a_rescue_of_its_own_is_left_alone(manners):
    """Its own Rescue saves it."""
    assert manners[0]["own_rescue"] is False


def test_no_model_is_kept_alive(manners):
    """The agent watched the loop, and the model is freed with its function."""
    assert [True, True] == manners[0]["kept_alive"]


def test_what_no_name_leads_to_is_told_in_one_line(manners):
    """The message shows the two lines that name it."""
    assert manners[0]["nameless"] is False
    (line,) = [line for line in manners[1] if "no name of the program leads to" in line]
    assert "rescue = Rescue(folder, model=..., optimizer=...)" in line


def test_a_program_that_ends_well_leaves_no_folder_and_says_one_line_only(manners):
    """A folder is removed if it holds no rescue. The message covers five loops once."""
    said = [line for line in manners[1] if "TensorFlow trainings are saved in" in line]

    places = [each for each in (manners[2] / "rescues").rglob("*") if each.is_dir()]
    assert 1 == len(said)
    assert all(any(each.iterdir()) for each in places)


def test_a_step_costs_microseconds(manners):
    """A hundredth of a 5 ms step would be acceptable; the limits are wider."""
    cost = manners[0]["cost"]

    assert 20 > cost["call"]
    assert 200 > cost["boundary"]
