"""
The note in a folder of rescues of which of them belong to trainings that ended well.

    {"sequence": 7, "rescues": ["rescue-0000001234-000007-PID.START.NAMESPACE"]}

The rescues are listed one by one: others in the folder may be of a training
that still runs. `sequence` outlives rescues that a person removes, so that no
number is given out twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass

from watchdog_app.agent.identity import own

FINISHED_FILE = "finished.json"


@dataclass(frozen=True, slots=True)
class Finished:
    """What is noted; nothing where there is no note or it cannot be understood."""

    sequence: int = 0  # the highest that was ever finished
    rescues: frozenset[str] = frozenset()


def read(directory: str) -> Finished:
    """The note in `directory`; never raises."""
    try:
        with open(os.path.join(directory, FINISHED_FILE), encoding="utf-8") as file:
            body = json.load(file)
        return Finished(int(body["sequence"]), frozenset(map(str, body["rescues"])))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return Finished()


def add(directory: str, sequence: int, rescues: Iterable[str]) -> None:
    """
    Note further rescues as finished.

    Args:
        directory: the folder that holds them.
        sequence: the highest in the folder.
        rescues: names of folders; those that are gone are forgotten.

    Raises:
        OSError: the note cannot be written; the one before stands.
    """
    before = read(directory)
    names = {
        name
        for name in before.rescues.union(rescues)
        if os.path.lexists(os.path.join(directory, name))
    }
    path = os.path.join(directory, FINISHED_FILE)
    temporary = f"{path}.{own()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"sequence": max(sequence, before.sequence), "rescues": sorted(names)}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
