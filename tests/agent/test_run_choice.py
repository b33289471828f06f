"""Which rescue a training resumes from: by folder, by process, and by the end of the last run."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from watchdog_app.agent import hook
from watchdog_app.agent import resume as resume_notebook
from watchdog_app.agent.runtime import run_choice
from watchdog_app.agent.runtime.run_choice import Beginning
from watchdog_app.base.errors import RescueError
from watchdog_app.rescue.checkpoint import inventory, names, runs
from watchdog_app.rescue.checkpoint.reader import LoadedRescue
from watchdog_app.rescue.checkpoint.store import RescueStore
from watchdog_app.rescue.identity.call_site import CallSite
from watchdog_app.rescue.identity.cells import normalise


@pytest.fixture(autouse=True)
def script(monkeypatch):
    """Behave as in a script that starts its trainings at one line, whatever a test calls."""
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(run_choice, "call_site", lambda _: CallSite("__main__.train"))


class Choice(NamedTuple):
    rescue: LoadedRescue | None
    why: list[str]
    notes: list[str]


def begin(folder: Path, resume: bool | str = True) -> Beginning:
    """Start a training of this program."""
    return run_choice.begin(str(folder), resume)


def save(beginning: Beginning, *steps: int) -> None:
    for step in steps:
        store = RescueStore(beginning.directory, run=beginning.run)
        store.save([], {runs.KEY: beginning.run.record()}, step=step)
        store.wait_idle()


def in_another_process(do: Callable[[], None]) -> None:
    """Run the same program again in a fork, which has the same command line and ends at once."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            do()
            code = 0
        finally:
            os._exit(code)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def left_by_another(folder: Path, *steps: int, **how: int) -> None:
    """
    Create rescues of a process that has ended.

    `finished`: it ended well; `training`: the number of the training that saved. `how` holds the
    arguments of the function that starts a training, which would identify it.
    """

    def run() -> None:
        for _ in range(how.get("training", 1) - 1):
            run_choice.finish(begin(folder))
        begun = begin(folder)
        save(begun, *steps)
        if how.get("finished"):
            run_choice.finish(begun)

    in_another_process(run)


def choose(folder: Path, resume: bool | str = True) -> Choice:
    begun = begin(folder, resume)
    found = run_choice.choose(begun, RescueStore(begun.directory, run=begun.run))
    return Choice(found, begun.why, begun.notes if found is not None else [])


def unfinished(folder: Path) -> list[int]:
    """Return the steps of the newest rescues of unfinished runs."""
    return [left.names[-1].step for left in runs.saved_runs(str(folder)) if not left.finished]


FINISHED = {"finished": True}
LATER = {"training": 2}


@pytest.mark.parametrize(
    ("left", "resume", "step", "why"),
    [
        ([], True, None, ""),
        ([([10, 20], {})], True, 20, ""),
        ([([10], FINISHED)], True, None, ""),
        ([([10], FINISHED)], "newest", 10, ""),
        ([([10], FINISHED), ([3], {})], True, 3, ""),
        ([([40], LATER)], True, None, "is of a later training of"),
        ([([40], LATER)], "newest", None, "is of a later training"),
        ([([40], LATER)], "force", 40, ""),
    ],
)
def test_the_newest_unfinished_rescue_of_this_training_is_chosen(
    tmp_path: Path, left: list[tuple[list[int], dict[str, int]]], resume, step, why: str
):
    """Only rescues of ended processes count; a line names the ones that it ignored."""
    for steps, how in left:
        left_by_another(tmp_path, *steps, **how)

    choice = choose(tmp_path, resume)

    assert step == (choice.rescue and choice.rescue.step)
    assert (not why and not choice.why) or (1 == len(choice.why) and why in choice.why[0])
    forced = resume == "force"
    assert forced == any("is of a later training" in note for note in choice.notes)


def test_a_loop_over_trainings_names_what_waits_once_and_its_own_rescues_never(tmp_path: Path):
    left_by_another(tmp_path, 40, training=9)
    said = []
    for _ in range(3):
        begun = begin(tmp_path)
        said += begun.why
        save(begun, 7)
        run_choice.leave(begun)

    assert 1 == len(said)
    assert "0000000040" in said[0]


def test_resume_false_chooses_nothing_and_replaces_the_rescue_later(tmp_path: Path):
    """The user wants a fresh start. The old rescue stays until a new one is complete."""
    left_by_another(tmp_path, 10)

    begun = begin(tmp_path, False)
    assert [] == begun.why
    assert run_choice.choose(begun, RescueStore(begun.directory, run=begun.run)) is None
    assert [10] == unfinished(tmp_path)
    save(begun, 1, 2)

    assert [2] == unfinished(tmp_path)
    assert 2 == len(list(tmp_path.glob("rescue-*")))


def test_a_finished_rescue_is_not_chosen_because_the_newer_one_is_damaged(tmp_path: Path):
    """The fallback must not choose a training that has finished."""
    left_by_another(tmp_path, 10, finished=True)
    left_by_another(tmp_path, 3)
    newest = next(tmp_path.glob("rescue-0000000003-*"))
    (newest / "rescue.json").write_text("{}")

    assert choose(tmp_path).rescue is None


def test_another_training_of_this_process_does_not_take_its_rescue(tmp_path: Path):
    """The second of two trainings of a script must not take it."""
    save(begin(tmp_path), 5)

    assert Choice(None, [], []) == choose(tmp_path)


def test_a_rescue_is_gone_on_from_once_in_a_process(tmp_path: Path, notebook):
    """The user runs the cell again after Ctrl-C: memory is newer than the rescue."""
    left_by_another(tmp_path, 10)
    assert choose(tmp_path).rescue is not None
    notebook.execution_count = 2

    choice = choose(tmp_path)

    assert choice.rescue is None
    assert "is of this process, whose variables are newer" in choice.why[0]
    assert 'resume="newest"' in choice.why[0]


def test_newest_goes_back_to_a_rescue_of_this_process(tmp_path: Path, notebook):
    """The user runs it after a cell that spoilt the model."""
    save(begin(tmp_path), 5)
    notebook.execution_count = 2

    chosen = choose(tmp_path, "newest").rescue

    assert chosen is not None
    assert 5 == chosen.step


def test_the_second_training_goes_on_when_its_turn_comes(tmp_path: Path):
    """The first had ended and the second was killed: the first trains from the start."""
    left_by_another(tmp_path, 40, training=2)
    run_choice.finish(begin(tmp_path))

    chosen = choose(tmp_path).rescue

    assert chosen is not None
    assert 40 == chosen.step


def test_newest_of_nothing_is_an_error(tmp_path: Path):
    """The user asked to resume; a silent fresh start would be wrong."""
    with pytest.raises(RescueError, match="no rescue"):
        choose(tmp_path, "newest")


@pytest.mark.parametrize("resume", ["yes", None, 0, 1])
def test_other_choices_are_refused(resume):
    """A typing error must not decide about hours of work."""
    with pytest.raises(ValueError, match="resume must be"):
        run_choice.check_arguments(resume)


@pytest.mark.parametrize("name", ["", 7, "x" * 101])
def test_a_name_is_a_short_text(name):
    with pytest.raises(ValueError, match="name must be"):
        run_choice.check_arguments(True, name)


def test_what_fails_while_a_rescue_is_given_back_is_told_with_the_way_out(tmp_path: Path):
    """An error of watchdog must not silently restart the training."""
    with (
        pytest.raises(RescueError, match=r"rescues/r1 .*KeyError.*resume=False") as told,
        run_choice.restoring(begin(tmp_path), "rescues/r1"),
    ):
        {}["position"]

    assert isinstance(told.value.__cause__, KeyError)


@contextmanager
def training_elsewhere(folder: Path, steps: int) -> Iterator[None]:
    """The same program in a process that saved and still runs; the test kills it at the end."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            save(begin(folder), steps)
            os.write(write, b"saved")
            os.close(write)
            signal.pause()
        finally:
            os._exit(1)
    os.close(write)
    try:
        assert b"saved" == os.read(read, 5)
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)


@pytest.mark.parametrize("resume", [True, "force", "newest"])
def test_what_still_runs_is_not_taken_whatever_is_asked_for(tmp_path: Path, resume: bool | str):
    """Its process would continue to write the same run."""
    with training_elsewhere(tmp_path, 30):
        choice = choose(tmp_path, resume)

    assert choice.rescue is None
    assert "still runs" in choice.why[0]


def test_the_run_of_an_ended_process_is_chosen_beside_a_running_one(tmp_path: Path):
    """The killed run resumes, and the line about the running one does not say that it restarts."""
    with training_elsewhere(tmp_path, 30):
        left_by_another(tmp_path, 10)
        resumed = choose(tmp_path)

    assert resumed.rescue is not None
    assert 10 == resumed.rescue.step
    assert "it is left alone. To resume from it, end that process first." in resumed.why[0]


def test_a_rescue_that_was_touched_is_no_newer(tmp_path: Path):
    """A copy or `touch` gives the older of two unfinished runs a later time."""
    with training_elsewhere(tmp_path, 30):
        left_by_another(tmp_path, 10)
    (older,) = tmp_path.glob("rescue-0000000030-*")
    later_s = time.time() + 60
    os.utime(older, (later_s, later_s))

    chosen = choose(tmp_path).rescue

    assert chosen is not None
    assert 10 == chosen.step


def test_a_loop_that_was_found_names_another_training_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`--data a/x` and `--data b/x` share a folder."""
    folder = str(tmp_path / "train.py")
    in_another_process(lambda: save(run_choice.begin(folder, False, found=True), 5))
    same = run_choice.begin(folder, False, found=True).why
    for name in ("argv", "orig_argv"):  # an xdist worker has another command line
        monkeypatch.setattr(sys, name, [*getattr(sys, name), "--data", "b/x"])

    other = run_choice.begin(folder, False, found=True).why

    assert [] == same
    assert 1 == len(other)
    assert "another value of --data" in other[0]


def test_a_rescue_that_is_a_link_is_ignored_until_it_is_moved_back(tmp_path: Path):
    """A user moved it to a larger disk."""
    folder = tmp_path / "rescues"
    left_by_another(folder, 10)
    (path,) = folder.glob("rescue-*")
    elsewhere = path.rename(tmp_path / "elsewhere")
    path.symlink_to(elsewhere)

    def start_over() -> None:
        assert choose(folder).rescue is None

    in_another_process(start_over)
    path.unlink()
    elsewhere.rename(path)
    assert choose(folder).rescue is not None


@pytest.mark.parametrize("kind", ["pipe", "stranger"])
def test_a_lock_that_is_no_file_of_this_user_is_named_where_its_process_has_ended(
    tmp_path: Path, kind: str
):
    """The message must not claim that the process still runs."""
    if kind == "stranger" and os.geteuid() != 0:
        pytest.skip("giving files away needs root")
    left_by_another(tmp_path, 10)
    (lock,) = tmp_path.glob("run-*.lock")
    if kind == "pipe":
        lock.unlink()
        os.mkfifo(lock)
    else:
        os.chown(lock, 65534, 65534)

    def start_over() -> None:
        choice = choose(tmp_path)
        assert choice.rescue is None
        (line,) = choice.why
        assert "still runs" not in line
        assert "has a lock that is no file of this user: it is left alone." in line
        assert f"To resume from it, remove {lock}." in line

    in_another_process(start_over)
    lock.unlink()
    assert choose(tmp_path).rescue is not None


def test_a_finished_rescue_of_a_container_is_neither_running_nor_kept_for_it(tmp_path: Path):
    """Its process is in another PID namespace, but has marked the rescue as finished."""
    (tmp_path / "rescue-0000000010-000001-7.7.00000000-0123456789ab").mkdir()
    (name,) = names.complete_rescues(str(tmp_path))
    states = []
    for _ in range(2):
        states.append(
            (names.is_in_use(str(tmp_path), name), names.is_prunable(str(tmp_path), name))
        )
        names.mark_finished(str(tmp_path / str(name)))

    assert [(True, False), (False, True)] == states


def test_ending_well_leaves_the_rescues_of_others_unfinished(tmp_path: Path):
    """Another training that is killed later resumes from its own rescue."""
    with training_elsewhere(tmp_path, 30):
        begun = begin(tmp_path)
        save(begun, 5)
        run_choice.finish(begun)

    assert [30] == unfinished(tmp_path)


@pytest.mark.parametrize(("training", "resume"), [(1, True), (3, "force")])
def test_ending_well_finishes_what_was_gone_on_from_and_what_lay_before(
    tmp_path: Path, training: int, resume: bool | str
):
    """Also a rescue of another training that was taken: the next run must not resume from it."""
    left_by_another(tmp_path, 10, 20, training=training)
    begun = begin(tmp_path, resume)

    run_choice.finish(begun)

    assert [] == unfinished(tmp_path)


def test_a_read_only_folder_ends_no_training_with_an_error(tmp_path, monkeypatch, capfd):
    """The rescues cannot be marked as finished; the user hears what the next run does."""
    left_by_another(tmp_path, 10)
    begun = begin(tmp_path)

    def refuse(_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(names, "mark_finished", refuse)
    run_choice.finish(begun)

    assert "could not be marked as finished (Read-only file system)" in capfd.readouterr().err
    assert [10] == unfinished(tmp_path)


def test_rescues_that_were_removed_after_a_good_end_hide_no_later_ones(tmp_path: Path):
    """A user frees disk space; the next training is killed and must be resumable."""
    left_by_another(tmp_path, 10, finished=True)
    for rescue in tmp_path.glob("rescue-*"):
        shutil.rmtree(rescue)
    left_by_another(tmp_path, 3)

    chosen = choose(tmp_path).rescue

    assert chosen is not None
    assert 3 == chosen.step


def test_each_training_that_a_script_begins_is_a_run_of_its_own(tmp_path: Path):
    """A trial that failed and was caught must not be resumed by the next trial."""
    first = begin(tmp_path)  # and then raises
    second = begin(tmp_path)
    run_choice.finish(second)
    third = begin(tmp_path)

    assert 3 == len({each.run.id for each in (first, second, third)})


@pytest.fixture
def notebook(monkeypatch) -> types.SimpleNamespace:
    """Behave as in ipykernel; `execution_count` is the cell's number."""
    names = {f"_i{number}": "train()" for number in range(1, 9)}
    shell = types.SimpleNamespace(execution_count=1, user_ns=names, transform_cell=str)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setenv("JPY_SESSION_NAME", "/somewhere/train.ipynb")
    return shell


def test_a_cell_that_is_run_again_is_the_same_training(tmp_path: Path, notebook):
    """After Ctrl-C and a corrected error the agent names and prunes its own rescue."""
    first = begin(tmp_path)
    save(first, 1)
    notebook.execution_count = 2

    second = begin(tmp_path)

    assert first.run.id == second.run.id
    assert "is of this process" in second.why[0]


def test_two_trainings_of_one_cell_are_two(tmp_path: Path, notebook):
    """A loop over trials in a cell is like a script."""
    first = begin(tmp_path)
    save(first, 1)

    assert first.run.id != begin(tmp_path).run.id


def test_a_new_kernel_goes_on_from_the_first_training(tmp_path: Path, notebook):
    """The kernel died and the same cell runs: the user need not pass an option."""
    left_by_another(tmp_path, 40)

    chosen = choose(tmp_path).rescue

    assert chosen is not None
    assert 40 == chosen.step


@pytest.mark.parametrize(
    "cell", ["train( )  # again", "print('now')\ntrain()", "epochs = 30\ntrain(epochs=20)"]
)
def test_an_edit_that_makes_no_other_training_is_none(tmp_path: Path, notebook, cell: str):
    """Such edits change comments, prints and the number of epochs."""
    left_by_another(tmp_path, 40)
    notebook.user_ns["_i1"] = cell

    assert choose(tmp_path).rescue is not None


@pytest.mark.parametrize("cell", ["train(fold=2)", "train_other()", "fold = 3\ntrain()"])
def test_another_cell_is_another_training(tmp_path: Path, notebook, cell: str):
    """The message names its rescue and how to use it."""
    left_by_another(tmp_path, 40)
    notebook.user_ns["_i1"] = cell

    choice = choose(tmp_path)

    assert choice.rescue is None
    assert "is of another cell of train.ipynb, or of this cell before an edit" in choice.why[0]
    assert 'resume="force"' in choice.why[0]


def test_another_cell_does_not_take_the_rescue_that_resume_lets_a_rewritten_one_take(
    tmp_path: Path, notebook
):
    """Feature extraction and fine-tuning by one function: the first is run again in that kernel."""
    left_by_another(tmp_path, 40)
    rescue = tmp_path / str(names.complete_rescues(str(tmp_path))[0])
    run_choice.allow_resume_from(str(rescue), [normalise("train(first)")])
    try:
        notebook.user_ns["_i1"] = "train(first)"
        first = choose(tmp_path)
        notebook.user_ns["_i1"], notebook.execution_count = "with_lines(second)", 2
        notebook.user_ns["_i2"] = "with_lines(second)"
        second = choose(tmp_path)
    finally:
        run_choice.allow_resume_from(None)

    assert (first.rescue, first.why) == (None, [])
    assert second.rescue is not None


@pytest.mark.parametrize("first", ["train(first)", "train(40, epochs=1)"])
def test_resume_says_nothing_of_the_rescue_in_the_cells_before(
    tmp_path: Path, notebook, monkeypatch, first: str
):
    """Feature extraction does not claim the rescue of fine-tuning, which resumes from it."""
    notebook.user_ns["_i1"] = last = "train(40, epochs=9)"
    left_by_another(tmp_path, 40)
    rescue = tmp_path / str(names.complete_rescues(str(tmp_path))[0])
    steps = [
        resume_notebook.Step(1, first, first, None),
        resume_notebook.Step(2, last, last, None, trains=True),
    ]
    chosen = {}

    def run_cell(text: str, **_: object) -> types.SimpleNamespace:
        notebook.user_ns[f"_i{notebook.execution_count}"] = text
        chosen[text] = choose(tmp_path)
        return types.SimpleNamespace(success=True)

    monkeypatch.setattr(hook, "switch_on", lambda: None)
    monkeypatch.setattr(notebook, "run_cell", run_cell, raising=False)
    what: Any = types.SimpleNamespace(path=str(rescue), found=None)
    resume_notebook._run_cells(what, notebook, steps)

    resumed = [text for text, each in chosen.items() if each.rescue is not None]
    assert resumed == ([last] if first == "train(first)" else [first])
    assert chosen[first].why == []


def test_a_constant_that_an_earlier_cell_sets_is_like_an_argument(tmp_path: Path, notebook):
    """One cell sets FOLD = 1, and the next one trains."""
    notebook.user_ns["_i1"] = "FOLD = 1\nEPOCHS = 10"
    notebook.execution_count = 2
    left_by_another(tmp_path, 40)
    notebook.user_ns["_i1"] = "FOLD = 2\nEPOCHS = 10"
    other = choose(tmp_path)
    notebook.user_ns["_i1"] = "FOLD = 1\nEPOCHS = 20"
    notebook.execution_count = 3

    same = choose(tmp_path)

    assert other.rescue is None
    assert "another value of FOLD" in other.why[0]
    assert same.rescue is not None
    assert any("EPOCHS 20 (was 10)" in note for note in same.notes)


@pytest.mark.parametrize(
    "constant",
    [
        "FOLD: int = {}",
        "SEED, FOLD = 1, {}",
        "FOLD = K = {}",
        "class CFG:\n    fold = {}",
        "def made(data, fold={}):\n    pass",
        "def made(data, *, fold={}):\n    pass",
    ],
)
def test_a_constant_counts_however_it_is_written(tmp_path: Path, notebook, constant: str):
    """The constant is in an earlier cell."""
    notebook.user_ns["_i1"] = constant.replace("{}", "1")
    notebook.execution_count = 2
    left_by_another(tmp_path, 40)
    notebook.user_ns["_i1"] = constant.replace("{}", "2")

    assert "another value of" in choose(tmp_path).why[0]


def test_only_what_rescue_is_told_of_resuming_does_not_count(tmp_path: Path, notebook):
    """Another function's `keep=` may be a share of the data."""
    notebook.user_ns["_i1"] = "train(subset(keep=1), Rescue('r', keep=2, resume='newest'))"
    left_by_another(tmp_path, 40)
    notebook.user_ns["_i1"] = "train(subset(keep=2), Rescue('r', keep=2, resume='newest'))"
    other = choose(tmp_path)
    notebook.user_ns["_i1"] = "train(subset(keep=1), Rescue('r', keep=3))"
    notebook.execution_count = 2
    notebook.user_ns["_i2"] = notebook.user_ns["_i1"]

    assert "is of another cell of" in other.why[0]
    assert choose(tmp_path).rescue is not None


def test_a_notebook_guesses_at_no_later_training(tmp_path: Path, notebook):
    """Equal variables do not prove the same fold, so the agent only names the rescue."""
    left_by_another(tmp_path, 40, training=3)

    choice = choose(tmp_path)

    assert choice.rescue is None
    assert "is of a later training of" in choice.why[0]


def test_a_copied_folder_of_a_run_that_has_finished_is_not_offered(tmp_path: Path, monkeypatch):
    """`watchdog.resume()` searches below the notebook's folder, which may hold a backup."""
    here = tmp_path / "work"
    left_by_another(here / "rescues", 10)
    shutil.copytree(here / "rescues", here / "backup")
    (original,) = inventory.rescues_in(str(here / "rescues"))
    monkeypatch.chdir(here)
    cells = types.SimpleNamespace(kernel="this one")
    monkeypatch.setattr(resume_notebook.kernel_cells, "read", lambda _meta: cells)
    monkeypatch.setattr(resume_notebook.kernel_cells, "kernel_id", lambda: cells.kernel)

    waiting = resume_notebook.unfinished(thorough=True)
    names.mark_finished(original.path)

    assert waiting is not None
    assert 10 == waiting.step
    assert resume_notebook.unfinished(thorough=True) is None


def test_a_training_that_could_not_be_restored_leaves_its_place_to_the_next_one(tmp_path: Path):
    """The user catches the error, mends the model and tries again in the same process."""
    left_by_another(tmp_path, 40)
    begun = begin(tmp_path)
    with pytest.raises(RescueError), run_choice.restoring(begun, "rescues/r1"):
        raise RescueError("it does not fit")

    again = choose(tmp_path).rescue

    assert again is not None
    assert 40 == again.step
