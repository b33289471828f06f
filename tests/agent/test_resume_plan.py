"""Which cells `watchdog.resume()` would run, and which it omits."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import types

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from watchdog_app.agent import resume as notebook
from watchdog_app.agent.found.resume_lines import WaitingRescue
from watchdog_app.agent.runtime import kernel_cells
from watchdog_app.agent.runtime.kernel_cells import Cells


def planned(*texts, failed=(), everything=False, skip=()):
    numbered = list(enumerate(texts, 1))
    return notebook.plan(
        numbered, len(numbered), failed,
        everything=everything, skip=skip, transform=TransformerManager().transform_cell,
        aliases=("rm", "mv"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "then"), [(None, "resumes from there"), ({}, "shows the lines that resume it")]
)
def test_a_new_kernel_says_what_resume_does(found, then):
    """A fit resumes; a loop of the user needs lines."""
    waits = WaitingRescue("/r", 5, None, 0.0, found)

    assert f"watchdog.resume() {then}, " in notebook.offer_text(waits)


@pytest.mark.parametrize(
    "text",
    [
        "x = 1",
        'css = """\n!important\n"""',
        "%matplotlib inline",
        "%cd data",
        "%%time\nmodel = 1",
        "%%time\nmodel = 1\nprint('finished !')  # at last !",
        "%%time\nprint('%s' % name, 7 %bash)",
        "%time print('finished !')",
        "a = 1 if x != 2 else 3",
        "def broken(:",
        "x = 'é\u2028'",
        "%timeit -n 1 x != 1",
        "# watchdog.resume() goes on\nx = 1",
        "async def f():\n    await g()",
        "%%javascript\nawait fetch('x')",
    ],
)
def test_what_starts_no_command_runs_as_it_was(text):
    """The cells stay unchanged."""
    (step,) = planned(text)

    assert (text, None, True) == (step.run, step.why, step.trains)


@pytest.mark.parametrize(
    "text",
    [
        "!rm -rf data",
        "%%bash\nrm -rf data",
        "%%sh\nls",
        "%%script python2\nprint 1",
        "%%writefile train.py\nx = 1",
        "!!ls",
        "%sx ls",
        "%pip install keras",
        "!ls\n!pwd",
        "files = !ls",
        "files = %sx ls",
        "%rm -rf data",
        "%mv a b",
        "%%time\n!rm -rf data",
        "%%capture out\n%%time\n%rm data",
        "%%time\n!pip install keras\nb = 2",
        "%time !rm -rf data",
        "%timeit -n1 !rm -rf data",
        "%%time\nif clean:\n    files = !rm -rf data",
        "x = %time !ls",
        "%%python3 --bg\nprint(1)",
        "%save train.py 1-3",
        "%reset -f",
    ],
)
def test_shell_commands_are_left_out_unless_asked_for(text):
    """The commands already ran once."""
    (careful,), (everything,) = planned(text), planned(text, everything=True)

    assert careful.run is None
    assert 'run="all"' in careful.why
    assert text == everything.run


def test_a_command_among_python_is_taken_out_of_its_cell():
    """Later cells need the names that the cell defines."""
    (step,) = planned("a = 1\nif a:\n    !rm x\n!rm y\nb = 2")
    names = {}

    exec(step.run, names)

    assert (1, 2) == (names["a"], names["b"])
    assert "without its shell commands" in step.why


@pytest.mark.parametrize(
    "text", ['css = """\n!important\n"""\n!ls\nb = 1', "!pip install a \\\n  b\nc = 1"]
)
def test_a_command_that_is_no_line_of_its_own_leaves_its_cell_out(text):
    """Text that only looks like a command stays."""
    (step,) = planned(text)

    assert step.run is None


def test_questions_are_asked_again_and_said_beforehand():
    """Only the user can answer."""
    (step,) = planned("name = input('who?')")

    assert ("name = input('who?')", "it asks for an answer") == (step.run, step.why)


def test_what_failed_what_was_skipped_and_what_resumed_is_left_out():
    """The cell that trained runs, although it failed."""
    steps = planned(
        "1/0", "x = 1", "watchdog.resume()", "   ", "fit()", failed=(1, 5), skip=(2,)
    )  # fmt: skip

    assert [None, None, None, "fit()"] == [step.run for step in steps]
    assert [False, False, False, True] == [step.trains for step in steps]
    everything = planned("1/0", "watchdog.resume()", "fit()", failed=(1,), everything=True)
    assert ["1/0", None, "fit()"] == [step.run for step in everything]


@pytest.fixture
def history(tmp_path):
    """A history database, and a rescue's data about its session 2."""
    path = tmp_path / "a b?.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE history (session INT, line INT, source, source_raw)")
        rows = [(1, 1, "", "other"), (2, 1, "", "a = 1"), (2, 2, "", "fit()"), (2, 3, "", "late")]
        database.executemany("INSERT INTO history VALUES (?, ?, ?, ?)", rows)
    database.close()
    return Cells(2, str(path), None, 2, ())


def test_texts_come_from_the_session_that_died(history):
    """The list ends with the cell that trained."""
    assert {1: "a = 1", 2: "fit()"} == kernel_cells.cell_texts(history, None)


def test_a_history_that_was_begun_anew_is_not_believed(history):
    """Session numbers restart, so the cell that trained must match."""
    right = dataclasses.replace(history, check=kernel_cells.text_checksum("fit()"))
    wrong = dataclasses.replace(history, check=kernel_cells.text_checksum("another()"))

    assert {1: "a = 1", 2: "fit()"} == kernel_cells.cell_texts(right, None)
    assert {} == kernel_cells.cell_texts(wrong, None)


def checked(*texts):
    return tuple(kernel_cells.text_checksum(text) & 0xFFFF for text in texts)


def test_without_history_they_come_from_the_notebook(tmp_path):
    """Only cells of the dead session count, because others keep old numbers."""
    path = tmp_path / "n.ipynb"
    numbered = [
        (1, "of an earlier session"),
        (3, ["fit(\n", ")"]),
        (1, "a = 1"),
        (2, "of an earlier session, too"),
        (None, "never"),
        (9, "later"),
        (3, "as well"),
    ]
    cells = [{"cell_type": "markdown", "source": "text"}]
    for number, source in numbered:
        cells.append({"cell_type": "code", "execution_count": number, "source": source})
    path.write_text(json.dumps({"cells": cells}))
    of_it = checked("a = 1", "changed since", "fit(\n)")

    found = kernel_cells.cell_texts(Cells(1, "", None, 3, (), None, of_it), str(path))

    assert {1: "a = 1", 3: "fit(\n)"} == found


def test_a_notebook_adds_no_cell_of_another_session_to_the_history(history, tmp_path):
    """If the history lacks a number, the notebook does not supply its cell."""
    path = tmp_path / "n.ipynb"
    cells = [{"cell_type": "code", "execution_count": 1, "source": "delete_everything()"}]
    path.write_text(json.dumps({"cells": cells}))
    with sqlite3.connect(history.history) as database:
        database.execute("DELETE FROM history WHERE line = 1")
    database.close()

    assert {2: "fit()"} == kernel_cells.cell_texts(history, str(path))


@pytest.mark.parametrize("text", ["", "[]", '{"cells": 3}', '{"cells": [3]}', "\x00"])
def test_notebooks_and_histories_that_cannot_be_read_tell_nothing(tmp_path, text):
    """The result says that the text is unknown, without an error."""
    for name in ("n.ipynb", "history.sqlite"):
        (tmp_path / name).write_text(text)
    cells = Cells(1, str(tmp_path / "history.sqlite"), None, 3, ())

    assert {} == kernel_cells.cell_texts(cells, str(tmp_path / "n.ipynb"))


@pytest.mark.parametrize(
    "told",
    [
        None,
        {},
        {"session": "x", "history": "", "kernel": None, "running": 1, "failed": []},
        {"session": 1, "history": "", "kernel": None, "running": 0, "failed": []},
        {"session": 1, "history": "", "kernel": None, "running": 10**9, "failed": []},
        {"session": 1, "history": "", "kernel": None, "running": 1, "failed": 3},
        {"session": 1, "history": "", "kernel": None, "running": 1, "failed": [], "checks": ["x"]},
        {"session": float("inf"), "history": "", "kernel": None, "running": 1, "failed": []},
    ],
)
def test_a_rescue_that_tells_no_cells_is_read_as_such(told):
    """The field may contain anything."""
    assert kernel_cells.read({kernel_cells.KEY: told}) is None


def test_outside_a_notebook_it_says_what_to_run(capsys):
    """A script has no cells."""
    import watchdog_app

    watchdog_app.resume()

    assert "watchdog exec -- python train.py" in capsys.readouterr().out
    with pytest.raises(ValueError, match="all"):
        watchdog_app.resume("everything")


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("ipython/profile_default/history.sqlite", True),
        ("ipython/profile_other/history.sqlite", True),
        ("elsewhere/mine.sqlite", True),
        ("project/rescues/history.sqlite", False),
        ("ipython/../project/history.sqlite", False),
        ("ipython-evil/history.sqlite", False),
        ("", False),
    ],
)
def test_only_histories_of_ipythons_own_are_run_from(tmp_path, file, own):
    """The rescue may have come with another user's project."""
    manager = types.SimpleNamespace(hist_file=str(tmp_path / "elsewhere/mine.sqlite"))
    shell = types.SimpleNamespace(history_manager=manager, ipython_dir=str(tmp_path / "ipython"))

    assert own == notebook._is_ipython_history(str(tmp_path / file) if file else "", shell)
