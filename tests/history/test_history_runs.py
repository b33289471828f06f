"""The runs of programs in the journal: bounded, replaced, found by path, deleted on request."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.records import info, process, task

from watchdog_app.base.codec import encode
from watchdog_app.base.text.terminal import Style
from watchdog_app.cli.estimate import past_runs
from watchdog_app.cli.history import render_runs
from watchdog_app.core.model.machine import Task, TaskKind
from watchdog_app.core.model.runs import Run, RunEnd
from watchdog_app.daemon.program_hash import program_hash
from watchdog_app.history.journal import Entry, Journal

MIB = 1024**2
DAY_S = 86400.0
START_S = 1.7e9


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(str(tmp_path), 14 * DAY_S, 64 * MIB)


def run(exact: str = "a" * 32, started: float = START_S, seconds: float = 100.0) -> Run:
    found = Run(exact, started, 5 * MIB, outcome=RunEnd.ENDED)
    for moment in range(int(seconds) + 1):
        found.add(moment, (5000 + moment) * MIB, {})
    return found


def add(journal: Journal, found: Run, path: str = "/home/ann/train.py", pid: int = 7) -> None:
    name = os.path.basename(path)
    data = {"text": "ended well", "notable": False, "pid": pid, "name": name, **encode(found)}
    journal.add_run(Entry(found.started_unix_s, "run", data, pid, name, path))


def test_a_run_comes_back_as_it_was(journal: Journal):
    known = replace(run(), gpus={"GPU-a": 3}, cut=True)
    add(journal, known)

    assert journal.runs("/home/ann/train.py") == [known]
    assert journal.runs("/home/ann/other.py") == []


def test_a_run_in_progress_is_replaced(journal: Journal):
    add(journal, run(seconds=10))
    add(journal, run(seconds=20))

    assert [each.seconds for each in journal.runs("/home/ann/train.py")] == [20]


def test_the_last_eight_runs_of_a_program_are_kept(journal: Journal):
    for number in range(10):
        add(journal, run(started=START_S + number))
        add(journal, run(exact="b", started=START_S + number), pid=8)

    kept = journal.runs("/home/ann/train.py")
    assert [each.started_unix_s - START_S for each in kept if each.exact == "b"] == [*range(2, 10)]
    assert len(kept) == 16


def test_all_programs_together_take_little_room(journal: Journal):
    """More than 256 programs are not kept; those take at most 1.5 MB."""
    before = journal.size_bytes()
    row = {"text": "ran out of memory at 12.3 GiB after 12 min 30 s on Tuesday, 24 November",
           "notable": False, "pid": 1234567, "name": "train_model.py"}  # fmt: skip
    rows = []
    for number in range(270):
        for turn in range(8):
            found = run(exact=f"{number:032x}", started=START_S + 60 * turn + number / 1000)
            path = f"/home/ann/projects/vision/train_model_{number}.py"
            rows.append(
                Entry(found.started_unix_s, "run", {**row, **encode(found)}, 7, row["name"], path)
            )
    journal.add(rows)
    add(journal, run(exact="last", started=START_S + 9000))
    journal._db.execute("VACUUM")

    entries = journal.history(kinds=("run",), limit=5000, all_exits=True)
    assert len({each["exact"] for each in entries}) == 256
    assert 255 * 8 < len(entries) <= 256 * 8
    assert journal.size_bytes() - before < 1.5e6


@pytest.mark.parametrize(
    ("wanted", "left"), [("train.py", 1), ("/home/ann/train.py", 1), ("rain.py", 2), (None, 0)]
)
def test_runs_are_deleted_by_name_by_path_or_all(journal: Journal, wanted: str | None, left: int):
    add(journal, run())
    add(journal, run(exact="b"), path="/home/ann/other.py", pid=8)
    journal.add([Entry(START_S, "exit", {"text": "x"}, 7, "train.py", "/home/ann/train.py")])

    assert journal.forget_runs(wanted) == 2 - left

    assert len(journal.history(kinds=("run",), all_exits=True)) == left
    assert len(journal.history(kinds=("exit",))) == 1


def test_the_history_shows_runs_only_on_request(journal: Journal):
    add(journal, run())

    assert journal.history() == []


def test_a_damaged_run_is_skipped(journal: Journal):
    add(journal, run())
    journal.add([Entry(START_S, "run", {"exact": 5}, 9, "train.py", "/home/ann/train.py")])

    assert len(journal.runs("/home/ann/train.py")) == 1


# Keys


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print(1)\n")
    return path


def program(script: Path, *arguments: str, launcher: str | None = None, cwd: str = "/") -> Task:
    words = [str(script), *arguments] if launcher is None else [launcher, str(script), *arguments]
    own = str(script) if launcher is None else launcher
    root = process(7)
    return replace(
        task(root), info=info(root, argv=("python", *words), script=own, cwd=cwd)
    )  # fmt: skip


def hashed(found: Task, folder: Path, cell: int | None = None) -> tuple[str, str] | None:
    about, secret = found.info, str(folder / "run-key")
    return program_hash(
        argv=about.argv,
        cwd=about.cwd or "",
        script=about.script,
        notebook=about.notebook,
        cell=cell,
        secret_file=secret,
    )


def key(found: Task, folder: Path, cell: int | None = None) -> str:
    result = hashed(found, folder, cell)
    assert result is not None
    return result[0]


def test_the_same_program_has_the_same_key_and_other_arguments_another(
    script: Path, tmp_path: Path
):
    first = key(program(script, "--size", "3"), tmp_path)

    assert key(program(script, "--size", "3"), tmp_path) == first
    others = [
        program(script, "--size", "4"),
        program(script, "--size", "3", "--epochs", "2"),
        program(script, "--size", "3", cwd=str(tmp_path)),
    ]
    assert first not in {key(each, tmp_path) for each in others}


def test_an_edited_script_has_another_key(script: Path, tmp_path: Path):
    launcher = tmp_path / "torchrun"
    launcher.write_text("import torch\n")
    direct, launched = program(script), program(script, launcher=str(launcher))
    before = key(direct, tmp_path), key(launched, tmp_path)
    script.write_text("print(2)\n")

    assert key(direct, tmp_path) != before[0]
    assert key(launched, tmp_path) != before[1], "the script of a launcher counts as well"


def test_a_module_is_found_in_the_folder_of_its_start(tmp_path: Path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("1\n")
    root = process(7)
    words = ("python", "-m", "pkg.train", "--size", "3")
    found = replace(
        task(root), info=info(root, kind=TaskKind.MODULE, argv=words, cwd=str(tmp_path))
    )
    before = hashed(found, tmp_path)
    (tmp_path / "pkg" / "train.py").write_text("2\n")

    assert before is not None
    assert before[1] == str(tmp_path / "pkg" / "train.py")
    assert hashed(found, tmp_path) != before


def test_a_cell_has_a_key_of_its_own(tmp_path: Path):
    root = process(7)
    kernel = replace(
        task(root), info=info(root, kind=TaskKind.NOTEBOOK, notebook="/home/ann/train.ipynb")
    )

    assert key(kernel, tmp_path, cell=1) != key(kernel, tmp_path, cell=2)
    nameless = replace(kernel, info=replace(kernel.info, notebook=None))
    assert hashed(nameless, tmp_path, 1) is None


def test_a_key_tells_nothing_without_the_users_secret(script: Path, tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    found = program(script, "--token", "hunter2")

    assert key(found, tmp_path) != key(found, other)
    assert (tmp_path / "run-key").stat().st_mode & 0o077 == 0
    assert len((tmp_path / "run-key").read_bytes()) == 32


def test_estimate_shows_what_earlier_runs_took(
    journal: Journal, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Beside what it computes; other programs do not count."""
    monkeypatch.setenv("WATCHDOG_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path / "run"))
    add(journal, run(), path=str(script))
    add(journal, run(exact="b"), path="/home/ann/other.py", pid=8)

    (found,) = past_runs(f"{script}:build_model")

    assert found["peak_bytes"] == 5100 * MIB
    assert past_runs(f"{tmp_path}/none.py:build_model") == []


def test_a_program_without_runs_is_said_to_have_none():
    (line,) = render_runs([], 80, Style())

    assert line.startswith("No run of that program is known.")
