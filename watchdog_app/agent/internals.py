"""
The private names of frameworks that the agent relies on, and what a user loses without each.

The agent uses public names for everything else. A test checks every row on the installed versions
and refuses private names without a row. `watchdog doctor` checks the rows in the user's
environments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Internal:
    """Names that one part of a framework does not promise to keep."""

    files: str  # defining files, below site-packages or Python's library; `*` is allowed
    names: tuple[str, ...]
    lost: str  # what a user loses without the names, as the end of a sentence

    @property
    def package(self) -> str:
        """The framework, e.g. "keras", or a module of Python's own library."""
        return self.files.partition("/")[0].removesuffix(".py")


_PLACE = "the place within the epoch: its batches are trained again after a resume"

EPOCH_ITERATOR = Internal(
    "keras/src/trainers/epoch_iterator.py",
    ("_enumerate_iterator", "_current_iterator", "_steps_seen", "_get_iterator"),
    _PLACE,
)
DATA_HANDLER = Internal(
    "tf_keras/src/engine/data_adapter.py",
    (
        *("_adapter", "_dataset", "_inferred_steps", "_initial_epoch", "_initial_step"),
        *("_steps_per_epoch", "_steps_per_execution"),
    ),
    _PLACE,
)


@cache
def rows() -> tuple[Internal, ...]:
    """All rows; those of `internals.toml`, and those that the agent itself checks."""
    import tomllib

    text = Path(__file__).with_suffix(".toml").read_text("utf-8")
    table = tomllib.loads(text)["row"]
    return (
        EPOCH_ITERATOR,
        DATA_HANDLER,
        *(Internal(each["files"], tuple(each["names"]), each["lost"]) for each in table),
    )


def has_names(thing: object, row: Internal) -> bool:
    """Whether an object of the framework has all names of a row."""
    return all(hasattr(thing, name) for name in row.names)


def missing(package: str, folder: Path) -> Iterator[tuple[Internal, list[str]]]:
    """
    Rows with names that an installed version does not have.

    Args:
        package: framework, e.g. "keras".
        folder: the folder that contains the package; its files are read, nothing is imported.

    Yields:
        Rows, each with the missing names.
    """
    for row in rows():
        if row.package == package:
            texts = [path.read_text("utf-8", "replace") for path in folder.glob(row.files)]
            gone = [
                name
                for name in row.names
                if not any(re.search(rf"\b{name}\b", text) for text in texts)
            ]
            if gone:
                yield row, gone
