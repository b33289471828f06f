"""The training of a program that a rescue belongs to, by the function that begins it."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import pytest
from support.finished import finished

from watchdog_app.rescue.identity import cells, program_key
from watchdog_app.rescue.identity.arguments import Arguments
from watchdog_app.rescue.identity.call_site import CallSite
from watchdog_app.rescue.identity.program_key import Program

PROGRAM = Program("script", "/train.py", Arguments({}, {}, {}), pooled=False)


def defining(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make the program define functions with these names."""
    main: Any = ModuleType("__main__")
    exec("".join(f"def {name}(): pass\n" for name in names), vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)


def training(function: str, place: int = 1) -> program_key.Training:
    return program_key.training(None, CallSite(f"__main__.{function}"), 1, place, {})


@pytest.mark.parametrize(
    ("now", "begun", "place", "same"),
    [
        (("main", "show"), "main", 1, True),
        (("run", "show"), "run", 1, True),  # renamed
        (("main", "run"), "run", 1, False),  # the other function still exists
        (("show",), "show", 1, False),  # it existed before
        (("run", "show"), "run", 2, False),  # another training began before it
        (("show",), "<module>", 1, False),
    ],
)
def test_a_renamed_function_begins_the_same_training(
    monkeypatch: pytest.MonkeyPatch, now: tuple[str, ...], begun: str, place: int, same: bool
):
    """The old function is gone and the new one is new."""
    defining(monkeypatch, "main", "show")
    saved = program_key.record(PROGRAM, training("main"), b"0" * program_key.SALT_BYTES)

    defining(monkeypatch, *now)

    assert same == (program_key.mismatch_reason(saved, PROGRAM, training(begun, place)) is None)


def test_arguments_behind_a_program_from_a_pipe_count():
    """`python - --fold 1 < train.py`, as shell loops start it."""
    code = (
        "from watchdog_app.rescue.identity import program_key\n"
        "print(program_key.program().arguments.others.get('fold'))\n"
    )
    done = finished([sys.executable, "-", "--fold", "1"], check=True, input=code)

    assert "1\n" == done.stdout


CELLS = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("from watchdog_app.rescue.identity.program_key import cell_checksum")
for constant, train in (("3", "1"), ("3", "1"), ("4", "1"), ("3", "2")):
    shell.run_cell(f"size = {constant}", store_history=True)
    shell.run_cell(f"found = cell_checksum(), {train}", store_history=True)
    print(shell.user_ns["found"][0])
"""


def test_a_cell_is_known_by_its_text_and_the_constants_of_the_notebook():
    """Outside a notebook there is no cell."""
    assert program_key.cell_checksum() is None

    env = {**os.environ, "JPY_SESSION_NAME": "/home/ann/train.ipynb"}
    shown = finished([sys.executable, "-c", CELLS], check=True, env=env).stdout.split()

    first, again, other_constant, other_text = map(int, shown)
    assert first == again
    assert len({first, other_constant, other_text}) == 3
    assert 0 <= first < 2**32


def test_the_lines_of_a_rescue_do_not_change_the_text_of_a_cell():
    """So a cell with the lines resumes what it trained without them."""
    before = """
import torch
losses = []
for epoch in range(n):
    for i, (x, y) in enumerate(loader):
        losses.append(step(x, y))
    for x in tqdm(other): step(x)
"""
    after = """
import torch
from watchdog_app.agent.torch import Rescue
losses = []
rescue = Rescue('rescues/x', model=model)
for epoch in rescue.epochs(n):
    losses = rescue.variables(losses=losses)
    for i, (x, y) in rescue.enumerate(loader):
        losses.append(step(x, y))
        rescue.step()
    for x in tqdm(rescue.data(other)): step(x)
rescue.finish()
"""

    assert cells.normalise(before) == cells.normalise(after)
    assert cells.normalise(before) != cells.normalise(after.replace("step(x, y)", "step(y, x)"))
