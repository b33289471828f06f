"""How many iterations a program's loops have, as far as its source and its variables say."""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from watchdog_app.agent.adapters.passes import LAZY, Passes
from watchdog_app.agent.identity.loop_steps import count_steps

UNKNOWN = (None, None)  # at the last step


def counted(text: str, path: Path, passes: Any = None, **scope: Any) -> tuple[int | None, ...]:
    """Run a program whose loops call `step`; return the steps left at its first and last step."""
    found: list[tuple[int | None, ...]] = []
    none_has_begun = Passes(print)

    def step() -> None:
        found.append(tuple(count_steps(passes or none_has_begun).values()))

    exec(compile(text, str(path), "exec"), {**scope, "step": step, "__name__": "program"})
    return found[0][0], *found[-1]


def ran(text: str, folder: Path, passes: Any = None, **scope: Any) -> tuple[int | None, ...]:
    (folder / "program.py").write_text(text)
    return counted(text, folder / "program.py", passes, **scope)


def test_the_numbers_of_ranges_are_read_from_the_variables(tmp_path: Path):
    text = """
for epoch in range(1, EPOCHS + 1):
    for at in range(args.steps * 2):
        step()
"""
    assert (40, 1, None) == ran(text, tmp_path, EPOCHS=4, args=argparse.Namespace(steps=5))


def test_a_loop_in_a_called_function_counts_in_each_call(tmp_path: Path):
    text = """
def train_one(rows):
    for at in range(len(rows)):
        step()

for epoch in range(3):
    train_one([1, 2, 3, 4])
"""
    assert (12, 1, None) == ran(text, tmp_path)


@pytest.mark.parametrize("things", ["tqdm(range(6), disable=True)", "trange(6, disable=True)"])
def test_a_progress_bar_around_a_range_changes_nothing(things: str, tmp_path: Path):
    tqdm = pytest.importorskip("tqdm")

    text = f"for at in {things}:\n    step()"

    assert (6, 1, None) == ran(text, tmp_path, tqdm=tqdm.tqdm, trange=tqdm.trange)


def test_a_bar_with_a_name_gives_its_own_count(tmp_path: Path):
    tqdm = pytest.importorskip("tqdm")

    with open("/dev/null", "w") as nothing:
        bar = tqdm.tqdm(iter("abcdef"), total=6, file=nothing, mininterval=0, miniters=1)
        assert (6, 1, None) == ran("for letter in bar:\n    step()", tmp_path, bar=bar)


def test_the_data_of_a_pass_gives_the_length_of_its_loop(tmp_path: Path):
    data = [1, 2, 3, 4, 5]
    batches = SimpleNamespace(count=len(data))
    now = SimpleNamespace(source=SimpleNamespace(get=lambda: data), drawn=0, batches=batches)
    text = """
for epoch in range(3):
    now.drawn = 0
    for at, batch in enumerate(data):
        now.drawn += 1
        step()
"""
    passes = SimpleNamespace(begun=True, latest=now)
    assert (14, 0, 5) == ran(text, tmp_path, passes, now=now, data=data)


def test_other_things_than_the_data_of_the_pass_are_unknown(tmp_path: Path):
    """A generator may go through the data many times."""
    data, batches = [1, 2, 3], SimpleNamespace(count=3)
    now = SimpleNamespace(source=SimpleNamespace(get=lambda: data), drawn=1, batches=batches)
    passes = SimpleNamespace(begun=True, latest=now)

    assert ran("for at in data:\n    step()", tmp_path, passes, data=data) == (2, 2, 3)
    assert ran("for at in data:\n    step()", tmp_path, passes, data=list(data))[1:] == UNKNOWN
    assert ran("for at in data:\n    step()", tmp_path, passes, data=iter(data))[1:] == UNKNOWN


@pytest.mark.parametrize(
    "text",
    [
        "while True:\n    step()\n    break",
        "for _ in iter(int, 1):\n    step()\n    break",
        "for at in range(number()):\n    step()",
        "for at in range(2):\n    while True:\n        step()\n        break",
        "go = 1\nwhile go:\n    go = 0\n    for at in range(2):\n        step()",
        "def cycle():\n    while True:\n        yield 1\nfor _ in cycle():\n    step()\n    break",
        "count = 9\nfor at in range(count):\n    count = 3\n    step()",
    ],
)
def test_a_loop_of_unknown_length_makes_all_unknown(text: str, tmp_path: Path):
    assert UNKNOWN == ran(text, tmp_path, number=lambda: 2)[1:]


def test_a_program_without_source_is_unknown(tmp_path: Path):
    text = "for at in range(3):\n    step()"

    assert (3, 1, None) == ran(text, tmp_path)
    assert UNKNOWN == counted(text, tmp_path / "missing.py")[1:]


def test_no_property_of_the_program_is_called(tmp_path: Path):
    """It could take long, or change something."""
    text = """
class Settings:
    @property
    def steps(self):
        called.append("steps")
        return 3

settings = Settings()
for at in range(settings.steps):
    step()
"""
    called: list[str] = []

    assert UNKNOWN == ran(text, tmp_path, called=called)[1:]
    assert ["steps"] == called  # by the program itself


def test_data_that_draws_random_numbers_while_it_is_counted_has_no_certain_order():
    passes = Passes(print)

    assert passes.count(row for row in (1, 2)) == 2
    assert [] == passes.lost
    assert passes.count(random.random() for _ in range(3)) == 3
    assert [LAZY] == passes.lost


class _UnknownLength(list[int]):
    def __len__(self) -> int:
        raise TypeError("as a DataLoader of an IterableDataset, and tf.data without a cardinality")


@pytest.mark.parametrize("data", [[1, 2], _UnknownLength([1, 2])])
def test_data_is_counted_by_its_length_or_by_reading_it(data: list[int]):
    assert Passes(print).count(data) == 2
