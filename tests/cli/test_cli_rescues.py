"""`watchdog rescues`: lists rescues on disk, finds damaged ones and removes old ones."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest
from support.finished import finished

from watchdog_app.cli.rescues_text import remarks
from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.rescue.checkpoint.inventory import Search, find_rescue_folders
from watchdog_app.rescue.checkpoint.owner import Owner, this_process
from watchdog_app.rescue.checkpoint.runs import Run
from watchdog_app.rescue.checkpoint.store import RescueStore

GONE = Owner(
    this_process().pid, this_process().start_time + 1, this_process().namespace
)  # a process that has ended
# a process of another container
ELSEWHERE = Owner(this_process().pid, this_process().start_time, "00000000")


def save(folder, step, *, owner=GONE, program="/home/u/train.ipynb", run=None, lost=()):
    """Save a rescue as an ended process left it; return its path."""
    store = RescueStore(str(folder), keep=1000, run=run and Run(run, str(folder)))
    data = bytes(4000)
    entry = TensorEntry("dense/kernel", "F32", (1000,), len(data), lambda: memoryview(data))
    meta = {
        "reason": "memory runs out",
        "program_path": program,
        "position": {"epoch": 2, "next_batch": 7},
        "logs": {"loss": 0.25},
        "not_restored": list(lost),
        "environment": {"python": "3.11.7", "keras": "3.15.1", "PyTorch": "2.13.0"},
    }
    path = store.save([entry], meta, step=step).path
    store.close()
    if owner is None:
        return path
    renamed = path.replace(str(this_process()), str(owner))
    os.rename(path, renamed)
    return renamed


def spoil(path):
    """Flip one bit of a tensor."""
    with open(os.path.join(path, "state.safetensors"), "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")


def listed(watchdog, *words, **more):
    done = watchdog("rescues", *words, "--json", **more)
    assert "" == done.stderr
    return json.loads(done.stdout)["rescues"]


def test_rescues_are_listed_newest_first(watchdog, tmp_path):
    """The list covers all subfolders, with position, loss, size and completeness."""
    older = save(tmp_path / "r", 5)
    newer = save(tmp_path / "r" / "train", 9)

    found = listed(watchdog, str(tmp_path / "r"))

    assert [newer, older] == [one["path"] for one in found]
    assert (9, 2, 7, 0.25) == tuple(found[0][key] for key in ("step", "epoch", "batch", "loss"))
    assert ("complete", "unfinished") == tuple(found[0][key] for key in ("condition", "training"))
    assert found[0]["bytes"] > 4000


def test_the_table_names_the_notebook_and_folds_on_narrow_terminals(watchdog, tmp_path):
    """A cut path would be useless."""
    path = save(tmp_path / "r", 5)

    done = watchdog("rescues", str(tmp_path / "r"), env={"COLUMNS": "90"})

    assert 0 == done.returncode
    assert "train.ipynb" in done.stdout
    assert f"\n  {path}\n" in done.stdout


def test_without_words_the_folder_beside_us_is_looked_into(watchdog, tmp_path):
    """This also works without a daemon and without a journal."""
    path = save(tmp_path / "rescues", 5)

    done = watchdog("rescues", "--json", cwd=tmp_path)

    assert [path] == [one["path"] for one in json.loads(done.stdout)["rescues"]]


def test_those_of_this_folder_come_first_below_a_heading(watchdog, daemon, tmp_path):
    """Several projects may have a train.py."""
    here, far = save(tmp_path / "a" / "rescues", 5), save(tmp_path / "far", 6)
    agent = {"pid": 7, "directory": str(tmp_path / "far")}
    daemon.answers["status"] = {"tasks": [{"pid": 7, "name": "deep.ipynb", "agent": agent}]}
    daemon.answers["history"] = {"entries": []}

    said = watchdog("rescues", cwd=tmp_path / "a", env={"COLUMNS": "90"}).stdout

    heads = ["In this folder:", os.path.basename(here), "In other folders:", far]
    assert sorted(heads, key=said.index) == heads


def test_the_daemon_tells_where_else(watchdog, daemon, tmp_path):
    """The command searches the folders of the daemon's agents and finds a task by name."""
    path = save(tmp_path / "far", 5)
    agent = {"pid": 7, "directory": str(tmp_path / "far")}
    daemon.answers["status"] = {"tasks": [{"pid": 7, "name": "deep.ipynb", "agent": agent}]}
    daemon.answers["history"] = {"entries": []}

    assert [path] == [one["path"] for one in listed(watchdog)]
    assert [path] == [one["path"] for one in listed(watchdog, "deep.ipynb")]


@pytest.mark.parametrize("where", ["evidence", "rescue", "agent"])
def test_the_history_tells_where_else(watchdog, daemon, tmp_path, where):
    """The history names a rescue or an agent's folder in outcomes and deaths."""
    path = save(tmp_path / "far", 5)
    part = {"directory": str(tmp_path / "far")} if where == "agent" else {"path": path}
    entry = {"kind": "exit", "name": "deep.ipynb", "evidence": ["x"], where: part}
    daemon.answers["history"] = {"entries": [entry, {"kind": "outcome", "evidence": {}}]}

    assert [path] == [one["path"] for one in listed(watchdog, "deep.ipynb")]


def test_guards_tell_where_else_without_a_daemon(watchdog, own_folders, tmp_path):
    """A past guard names the rescue of its program, and the program is found by its name."""
    path = save(tmp_path / "scripts" / "rescues" / "train.py", 5, program=None)
    guard = {"pid": 7, "start_time": 70, "name": "train.py", "kind": "cgroup v1", "group": None}
    guard |= {"limit_bytes": 1, "reserve_bytes": 0, "ended_unix_s": 2.0}
    guard["rescues"] = [{"pid": 8, "path": path, "step": 5}]
    (own_folders / "state" / "guards").mkdir(parents=True)
    (own_folders / "state" / "guards" / "7.70.json").write_text(json.dumps(guard))

    assert [path] == [one["path"] for one in listed(watchdog, cwd=tmp_path)]
    assert [path] == [one["path"] for one in listed(watchdog, "train.py")]


def test_task_words_are_searched_for_once_and_tell_of_half_written_rescues(
    watchdog, daemon, tmp_path
):
    """The command searches only folders that hold a rescue of a named task."""
    tasks = []
    for name in ("deep", "wide", "other"):
        save(tmp_path / name, 5, program=f"/home/u/{name}.ipynb")
        (tmp_path / name / f".partial-{GONE}-1").mkdir()
        agent = {"pid": 7, "directory": str(tmp_path / name)}
        tasks.append({"pid": 7, "name": f"{name}.ipynb", "agent": agent})
    (tmp_path / "deep" / f".partial-{this_process()}-2").mkdir()
    (tmp_path / "deep" / "shut").mkdir(0o000)
    daemon.answers["status"] = {"tasks": tasks}
    daemon.answers["history"] = {"entries": []}

    told = json.loads(watchdog("rescues", "deep.ipynb", "wide.ipynb", "--json").stdout)

    left = [os.path.basename(os.path.dirname(path)) for path in told["left_half_written"]]
    assert (["deep", "wide"], 2, 1) == (left, len(told["rescues"]), len(told["being_written"]))
    assert (os.getuid() != 0) == len(told["unreadable"])


def test_a_name_that_nothing_answers_to_is_an_error(watchdog):
    """The message says what to do."""
    done = watchdog("rescues", "nosuch.ipynb")

    assert (1, "") == (done.returncode, done.stdout)
    assert "watchdog rescues FOLDER" in done.stderr


def test_verify_finds_a_flipped_bit_and_names_the_tensor(watchdog, tmp_path):
    """The exit code is 1."""
    good, bad = save(tmp_path / "r", 5), save(tmp_path / "r", 6)
    spoil(bad)

    done = watchdog("rescues", "verify", str(tmp_path / "r"))

    assert 1 == done.returncode
    assert f"{good}: whole" in done.stdout
    assert f"{bad}: DAMAGED: tensor 'dense/kernel' does not match its checksum" in done.stdout


def test_options_may_stand_between_the_verb_and_its_folder(watchdog, tmp_path):
    """Users may type `verify --json FOLDER`."""
    path = save(tmp_path / "r", 5)

    told = json.loads(watchdog("rescues", "verify", "--json", str(tmp_path)).stdout)
    assert [{"path": path, "whole": True, "problem": None}] == told["rescues"]
    pruned = watchdog("rescues", "prune", "--keep", "1", "--dry-run", str(tmp_path))
    assert (0, "") == (pruned.returncode, pruned.stderr)


@pytest.mark.parametrize("options", [["--dry-run"], ["--yes"], ["--yes", "--json"]])
def test_prune_reads_what_stays_before_it_removes_what_is_older(watchdog, tmp_path, options):
    """A damaged rescue that looks complete must not replace a good one."""
    oldest, good, bad = (save(tmp_path / "r", step) for step in (4, 5, 6))
    spoil(bad)

    done = watchdog("rescues", "prune", str(tmp_path / "r"), "--keep", "1", *options)

    assert (0, "") == (done.returncode, done.stderr)
    assert oldest in done.stdout
    assert os.path.lexists(good)
    assert os.path.lexists(oldest) == ("--dry-run" in options)


def test_show_tells_all_that_is_in_it(watchdog, tmp_path):
    """The output has tensors, position, program, versions and what a resume does not restore."""
    path = save(tmp_path / "r", 5, lost=["the order of a torch DataLoader"])

    text = watchdog("rescues", "show", path).stdout

    for part in (
        "/home/u/train.ipynb", "step 5, epoch 3, after batch 7, loss 0.25", "keras 3.15.1",
        "PyTorch 2.13.0",
        "- the order of a torch DataLoader", "dense/kernel", "F32", "1000", "3.91 KiB",
    ):  # fmt: skip
        assert part in text


@pytest.mark.parametrize(
    ("spoiled", "problem"),
    [
        (lambda path: os.unlink(f"{path}/rescue.json"), "rescue.json is missing"),
        (lambda path: os.truncate(f"{path}/state.safetensors", 99), "99 bytes long"),
        (lambda path: os.truncate(f"{path}/rescue.json", 50), "does not match its checksum"),
        (lambda path: (os.unlink(f"{path}/rescue.json"), os.mkfifo(f"{path}/rescue.json")), ""),
        (lambda path: shutil.rmtree(path) or open(path, "w").close(), None),
    ],
)
def test_a_damaged_rescue_is_listed_as_such(watchdog, tmp_path, spoiled, problem):
    """The list reports any kind of damage. A file is not a rescue."""
    path = save(tmp_path / "r", 5)
    spoiled(path)

    found = listed(watchdog, str(tmp_path / "r"))

    if problem is None:
        assert [] == found
    else:
        assert "damaged" == found[0]["condition"]
        assert problem in found[0]["problem"]


def test_names_of_files_are_never_obeyed_by_the_terminal(watchdog, tmp_path):
    """The command escapes control sequences in the program's and the folder's name."""
    save(tmp_path / "r\x1b[2J\n", 5, program="/x/\x1b]0;evil\x07.ipynb")

    done = watchdog("rescues", str(tmp_path))

    assert "\x1b" not in done.stdout
    assert "\\x1b]0;evil" in done.stdout


def test_prune_keeps_the_newest_of_each_training(watchdog, tmp_path):
    """A training is a run; without a run id it is the process that saved."""
    first = [save(tmp_path / "r", step) for step in (1, 2, 3)]
    other = [save(tmp_path / "r", step, run="0123456789ab") for step in (1, 2)]

    done = watchdog("rescues", "prune", str(tmp_path / "r"), "--keep", "1", "--yes")

    assert (0, "") == (done.returncode, done.stderr)
    left = {one["path"] for one in listed(watchdog, str(tmp_path / "r"))}
    assert {first[2], other[1]} == left


def test_prune_never_takes_the_newest_complete_one(watchdog, tmp_path):
    """It stays however old it is. Newer damaged ones go."""
    whole, cut_off = save(tmp_path / "r", 1), save(tmp_path / "r", 2)
    os.truncate(f"{cut_off}/state.safetensors", 10)

    watchdog("rescues", "prune", str(tmp_path / "r"), "--older-than", "0s", "--yes")

    assert whole in [one["path"] for one in listed(watchdog, str(tmp_path / "r"))]


@pytest.mark.parametrize("what", ["running", "elsewhere", "stranger", "link", "writing"])
def test_prune_leaves_what_is_not_its_to_take(watchdog, tmp_path, what):
    """These are running trainings, folders with other files, links and saves in progress."""
    folder = tmp_path / "r"
    owner = {"running": None, "elsewhere": ELSEWHERE}.get(what, GONE)
    path = save(folder, 1, owner=owner)
    if what == "stranger":
        with open(f"{path}/thesis.tex", "w") as file:
            file.write("three years of work")
    elif what == "link":
        os.rename(path, tmp_path / "real")
        os.symlink(tmp_path / "real", path)
    elif what == "writing":
        path = str(folder / f".partial-{this_process()}-1")
        os.mkdir(path)
    save(folder, 2)
    save(folder, 3)

    watchdog("rescues", "prune", str(folder), "--keep", "1", "--yes")

    assert os.path.lexists(path)
    assert os.listdir(path) != [] or what == "writing"


def test_prune_asks_for_a_yes_where_nobody_can_be_asked(watchdog, tmp_path):
    """A dry run removes nothing."""
    for step in (1, 2, 3):
        save(tmp_path / "r", step)

    silent = watchdog("rescues", "prune", str(tmp_path / "r"))
    dry = watchdog("rescues", "prune", str(tmp_path / "r"), "--dry-run")

    assert (2, 0) == (silent.returncode, dry.returncode)
    assert "--yes" in silent.stderr
    assert "Nothing was removed." in dry.stdout
    assert 3 == len(listed(watchdog, str(tmp_path / "r")))


def test_prune_takes_only_older_ones(watchdog, tmp_path):
    for step in (1, 2, 3):
        save(tmp_path / "r", step)

    watchdog("rescues", "prune", str(tmp_path / "r"), "--older-than", "1h", "--yes")

    assert 3 == len(listed(watchdog, str(tmp_path / "r")))


def test_prune_removes_what_a_dead_process_left_half_written(watchdog, tmp_path):
    """The process that wrote it has ended and cannot finish it."""
    left = tmp_path / "r" / f".partial-{GONE}-1"
    left.mkdir(parents=True)

    watchdog("rescues", "prune", str(tmp_path / "r"), "--yes")

    assert not left.exists()


def test_a_folder_of_very_many_folders_is_searched_in_part(tmp_path):
    """The search ends and says that it is incomplete."""
    for number in range(60):
        (tmp_path / f"d{number}").mkdir()
    search = Search(most_folders=50)

    assert [] == list(find_rescue_folders(str(tmp_path), search))

    assert search.cut_short
    assert "ended after 50 folders" in remarks(search)[0]


def test_the_command_imports_no_framework(tmp_path):
    """A listing must not use memory while memory runs out."""
    save(tmp_path / "r", 5)
    code = (
        "import sys; from watchdog_app.cli import main; "
        f"main(['rescues', 'verify', {str(tmp_path / 'r')!r}]); "
        "print({'numpy', 'keras', 'tensorflow', 'torch', 'asyncio'} & set(sys.modules))"
    )
    env = {**os.environ, "WATCHDOG_STATE_DIR": str(tmp_path / "state")}

    done = finished([sys.executable, "-c", code], check=True, env=env)

    assert "set()" == done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "words",
    [["--keep", "1"], ["show"], ["prune"], ["list", "--yes"], ["prune", ".", "--keep", "0"]],
)
def test_words_that_make_no_sense_are_usage_errors(watchdog, words):
    """The exit code is 2."""
    assert 2 == watchdog("rescues", *words).returncode
