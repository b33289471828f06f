"""The functions and expressions that a loop computes its losses with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from watchdog_app.agent.identity import loop_code
from watchdog_app.rescue.identity.compare import changed_functions

PROGRAM = """
class Loss:
    def __rmul__(self, factor):
        return self

    def mean(self):
        return self

    def backward(self):
        pass


class Rows:
    shape = 4, 1

    def stacked(self):
        return Rows()


class Net:
    def __call__(self, rows):
        return Loss()


class Rescue:
    def variables(self, rows):
        return rows


net, rescue = Net(), Rescue()


def update(rows):
    scale = 3
    LINE
    for _ in range(2):
        loss = FACTOR * net(rows).mean()
        loss.backward()
        inner()


def train():
    for _ in range(2):
        update(Rows())
        outer()


train()
"""


def losses(
    folder: Path, *, line: str = "rows = rows.stacked()", factor: str = "scale"
) -> list[Any]:
    """The losses as seen from the function that trains, and from the one that calls it."""
    text = PROGRAM.replace("LINE", line).replace("FACTOR", factor)
    (folder / "program.py").write_text(text)
    found: dict[str, Any] = {}
    scope: dict[str, Any] = {"__name__": "program"}

    def read(name: str) -> None:
        rescue, named = scope["rescue"], {"net": scope["net"]}
        frame = sys._getframe(2)
        found[name] = loop_code.functions(frame, rescue, named, of_library=False)

    scope |= {"inner": lambda: read("inner"), "outer": lambda: read("outer")}
    exec(compile(text, str(folder / "program.py"), "exec"), scope)
    return [found["inner"], found["outer"]]


def test_a_line_that_restores_a_variable_changes_no_loss(tmp_path: Path):
    before, _ = losses(tmp_path)
    after, _ = losses(
        tmp_path, line="rows = rows.stacked()\n    rows = rescue.variables(rows=rows)"
    )

    assert [] == list(changed_functions(before, after))


@pytest.mark.parametrize("factor", ["scale", "2 * scale"])
def test_a_loss_is_compared_where_it_was_seen_from_the_same_function(tmp_path: Path, factor: str):
    """The lines may count the steps of a caller, who knows other variables."""
    inner, _ = losses(tmp_path)
    again, outer = losses(tmp_path, factor=factor)

    assert [] == list(changed_functions(inner, outer))
    assert (factor != "scale") == bool([*changed_functions(inner, again)])
