"""Which rescue a training goes on from: by folder, by process, by how the last one ended."""

from __future__ import annotations

import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from watchdog_app.agent.saving import chapters
from watchdog_app.agent.saving.store import RescueStore
from watchdog_app.errors import RescueError

SAVE = """
import sys
from watchdog_app.agent.saving import chapters
from watchdog_app.agent.saving.store import RescueStore
for step in map(int, sys.argv[2].split(",")):
    RescueStore(sys.argv[1]).save([], {}, step=step)
if len(sys.argv) > 3:
    chapters.finish(sys.argv[3], sys.argv[1])
"""


@pytest.fixture(autouse=True)
def script(monkeypatch):
    """As within a script, whatever other tests of this process have imported."""
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)


def left_by_another(folder: Path, *steps: int, finished: Path | None = None) -> None:
    """Rescues by a process that has ended since; `finished`: it ended well."""
    told = [str(folder), ",".join(map(str, steps)), *([str(finished)] if finished else [])]
    subprocess.run([sys.executable, "-c", SAVE, *told], check=True, timeout=60)


def choose(folder: Path, resume: bool | str = True) -> chapters.Choice:
    return chapters.choose(
        str(folder), RescueStore(chapters.chapter_directory(str(folder))), resume
    )


def test_an_empty_folder_gives_nothing_and_says_nothing(tmp_path: Path):
    """The first run of a program."""
    assert chapters.Choice(None) == choose(tmp_path / "rescues")
    assert not chapters.may_resume(str(tmp_path / "rescues"), True)


def test_the_newest_rescue_of_another_process_is_chosen(tmp_path: Path):
    """What a killed run left."""
    left_by_another(tmp_path, 10, 20)

    assert chapters.may_resume(str(tmp_path), True)
    chosen = choose(tmp_path).rescue

    assert chosen is not None
    assert 20 == chosen.step


def test_resume_false_chooses_nothing(tmp_path: Path):
    """The user wants a fresh start."""
    left_by_another(tmp_path, 10)

    assert chapters.Choice(None) == choose(tmp_path, False)
    assert not chapters.may_resume(str(tmp_path), False)


def test_rescues_of_a_training_that_ended_well_are_left_alone(tmp_path: Path):
    """Unless the newest is asked for by name."""
    left_by_another(tmp_path, 10, finished=tmp_path)

    assert chapters.Choice(None) == choose(tmp_path)
    newest = choose(tmp_path, "newest").rescue
    assert newest is not None
    assert 10 == newest.step


def test_a_rescue_after_the_finished_ones_is_chosen(tmp_path: Path):
    """A training that ended well, and another one in the folder that did not."""
    left_by_another(tmp_path, 10, finished=tmp_path)
    left_by_another(tmp_path, 3)

    chosen = choose(tmp_path).rescue

    assert chosen is not None
    assert 3 == chosen.step


def test_a_finished_rescue_is_not_chosen_because_the_newer_one_is_damaged(tmp_path: Path):
    """Falling back must not fall into a training that is over."""
    left_by_another(tmp_path, 10, finished=tmp_path)
    left_by_another(tmp_path, 3)
    newest = next(tmp_path.glob("rescue-0000000003-*"))
    (newest / "rescue.json").write_text("{}")

    assert choose(tmp_path).rescue is None


def test_a_rescue_of_this_process_is_left_alone_and_said(tmp_path: Path):
    """What is in memory is newer than what was saved."""
    store = RescueStore(str(tmp_path))
    store.save([], {}, step=5)

    choice = choose(tmp_path)

    assert choice.rescue is None
    assert choice.why is not None
    assert 'resume="newest"' in choice.why
    assert not chapters.may_resume(str(tmp_path), True)


def test_a_rescue_is_gone_on_from_once_in_a_process(tmp_path: Path):
    """The cell is run again after Ctrl-C: memory is ahead of the rescue."""
    left_by_another(tmp_path, 10)
    chosen = choose(tmp_path).rescue
    assert chosen is not None
    chapters.resumed(chosen.path)

    assert choose(tmp_path).rescue is None


def test_each_training_that_ends_well_opens_the_next_folder(tmp_path: Path):
    """The second fit never starts from the state of the first."""
    first = chapters.chapter_directory(str(tmp_path))
    chapters.finish(str(tmp_path), first)
    second = chapters.chapter_directory(str(tmp_path))

    assert str(tmp_path) == first
    assert str(tmp_path / "fit-2") == second


def test_a_rescue_that_waits_for_a_later_training_is_named(tmp_path: Path):
    """The first fit of two is trained again; nobody wonders about the rescue of the second."""
    left_by_another(tmp_path / "fit-2", 40)

    choice = choose(tmp_path)

    assert choice.rescue is None
    assert choice.why is not None
    assert str(tmp_path / "fit-2") in choice.why
    assert "waits for it" in choice.why


def test_a_broken_note_of_what_is_finished_hides_no_rescue(tmp_path: Path):
    """Garbage in the file means that nothing is known to be finished."""
    left_by_another(tmp_path, 10)
    (tmp_path / chapters.FINISHED_FILE).write_text('{"sequence": "many"}')

    assert choose(tmp_path).rescue is not None


def test_newest_looks_into_all_trainings_of_the_folder(tmp_path: Path):
    """By the time of saving, wherever it lies."""
    left_by_another(tmp_path, 10)
    left_by_another(tmp_path / "fit-2", 4)

    chosen = choose(tmp_path, "newest").rescue

    assert chosen is not None
    assert 4 == chosen.step


def test_newest_of_nothing_is_an_error(tmp_path: Path):
    """The user asked to go on; beginning anew in silence would be wrong."""
    with pytest.raises(RescueError, match="no rescue"):
        choose(tmp_path, "newest")


@pytest.mark.parametrize("resume", ["yes", None, 0, 1])
def test_other_choices_are_refused(tmp_path: Path, resume):
    """A typing error must not decide about a night's work."""
    with pytest.raises(ValueError, match="resume must be"):
        choose(tmp_path, resume)


def test_what_fails_while_a_rescue_is_given_back_is_told_with_the_way_out():
    """A fault of ours must not become a training that begins anew in silence."""
    with (
        pytest.raises(RescueError, match=r"rescues/r1 .*KeyError.*resume=False") as told,
        chapters.restoring("rescues/r1"),
    ):
        {}["position"]

    assert isinstance(told.value.__cause__, KeyError)


WAIT = """
import sys
from watchdog_app.agent.saving.store import RescueStore
store = RescueStore(sys.argv[1])
store.save([], {}, step=int(sys.argv[2]))
store.settle()
print("saved", flush=True)
sys.stdin.read()
"""


@contextmanager
def training_elsewhere(folder: Path, step: int) -> Iterator[None]:
    """Another process that has saved and still runs; killed at the end."""
    other = subprocess.Popen(
        [sys.executable, "-c", WAIT, str(folder), str(step)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"saved\n"
            yield
        finally:
            other.kill()


def test_a_rescue_of_a_process_that_still_runs_is_left_to_it(tmp_path: Path):
    """Two runs of one program: the second does not train the first one's state on."""
    with training_elsewhere(tmp_path, 30):
        assert not chapters.may_resume(str(tmp_path), True)
        choice = choose(tmp_path)

    assert choice.rescue is None
    assert choice.why is not None
    assert "still runs" in choice.why


def test_an_older_rescue_of_an_ended_process_is_chosen_beside_a_running_one(tmp_path: Path):
    """What was killed goes on, whoever else trains here."""
    left_by_another(tmp_path, 10)
    with training_elsewhere(tmp_path, 30):
        chosen = choose(tmp_path).rescue

    assert chosen is not None
    assert 10 == chosen.step


def test_ending_well_leaves_the_rescues_of_others_unfinished(tmp_path: Path):
    """A neighbour that is killed afterwards goes on from what it saved."""
    with training_elsewhere(tmp_path, 30):
        choose(tmp_path)
        RescueStore(str(tmp_path)).save([], {}, step=5)
        chapters.finish(str(tmp_path), str(tmp_path))

    assert chapters._unfinished(str(tmp_path))[0][-1].step == 30
    assert 1 == len(chapters._unfinished(str(tmp_path))[0])


def test_ending_well_finishes_what_was_gone_on_from_and_what_lay_before(tmp_path: Path):
    """Or the next run would go on from a training that is over."""
    left_by_another(tmp_path, 10, 20)
    chosen = choose(tmp_path).rescue
    assert chosen is not None
    chapters.resumed(chosen.path)

    chapters.finish(str(tmp_path), str(tmp_path))

    assert ([], []) == chapters._unfinished(str(tmp_path))


def test_rescues_that_were_removed_after_a_good_end_hide_no_later_ones(tmp_path: Path):
    """A person takes the disk space back; the next training is killed."""
    left_by_another(tmp_path, 10, finished=tmp_path)
    for rescue in tmp_path.glob("rescue-*"):
        shutil.rmtree(rescue)
    left_by_another(tmp_path, 3)

    chosen = choose(tmp_path).rescue

    assert chosen is not None
    assert 3 == chosen.step
    assert "-000002-" in chosen.path


def test_each_training_that_a_script_begins_has_a_folder_of_its_own(tmp_path: Path):
    """A trial that failed and was caught is not gone on from by the next trial."""
    root = str(tmp_path)
    assert root == chapters.chapter_directory(root)
    choose(tmp_path)  # begins, and raises somewhere

    assert str(tmp_path / "fit-2") == chapters.chapter_directory(root)
    choose(tmp_path)
    chapters.finish(root, str(tmp_path / "fit-2"))

    assert str(tmp_path / "fit-3") == chapters.chapter_directory(root)


@pytest.fixture
def notebook(monkeypatch) -> types.SimpleNamespace:
    """As within ipykernel; `execution_count` is the cell's number."""
    shell = types.SimpleNamespace(execution_count=1)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    return shell


def test_a_cell_that_is_run_again_is_the_same_training(tmp_path: Path, notebook):
    """Ctrl-C, a typing error mended, the cell again: the rescues stay in one folder."""
    choose(tmp_path)
    notebook.execution_count = 2

    assert str(tmp_path) == chapters.chapter_directory(str(tmp_path))


def test_two_trainings_of_one_cell_are_two(tmp_path: Path, notebook):
    """A loop over trials in a cell is like a script."""
    choose(tmp_path)

    assert str(tmp_path / "fit-2") == chapters.chapter_directory(str(tmp_path))


def test_a_new_kernel_goes_on_from_the_first_training(tmp_path: Path, notebook):
    """The kernel died, the same cell is run: nothing needs to be said by the user."""
    left_by_another(tmp_path, 40)

    chosen = choose(tmp_path).rescue

    assert chosen is not None
    assert 40 == chosen.step


def test_a_notebook_guesses_at_no_later_training(tmp_path: Path, notebook):
    """Equal variables are not the same fold: the rescue is named with the way to take it."""
    left_by_another(tmp_path / "fit-3", 40)

    choice = choose(tmp_path)

    assert choice.rescue is None
    assert choice.why is not None
    assert str(tmp_path / "fit-3") in choice.why
    assert 'resume="newest"' in choice.why


def test_a_rescue_of_another_chapter_that_was_asked_for_is_finished_too(tmp_path: Path):
    """resume="newest" from the third fold, and a good end."""
    left_by_another(tmp_path / "fit-3", 40)
    chosen = choose(tmp_path, "newest").rescue
    assert chosen is not None
    chapters.resumed(chosen.path)

    chapters.finish(str(tmp_path), str(tmp_path))

    assert ([], []) == chapters._unfinished(str(tmp_path / "fit-3"))
