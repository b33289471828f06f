"""Losses that a training wrote to a file, and their bit-for-bit comparison."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of one step, as exact hexadecimal, and the time it was written."""

    exact: str
    unix_s: float


def read(path: str) -> dict[int, Loss]:
    """
    Read the losses by step; a step that ran again after a rescue has its last loss.

    Leaves out a last line that a kill cut off. A missing file has no losses.
    """
    found: dict[int, Loss] = {}
    with suppress(FileNotFoundError), open(path) as file:
        for line in file:
            if not line.endswith("\n"):
                continue
            step, exact, _, unix_s = line.split(",")
            found[int(step)] = Loss(exact, float(unix_s))
    return found


def different_steps(reference: dict[int, Loss], rescued: dict[int, Loss]) -> list[int]:
    """Return the steps of an uninterrupted run that a rescued run lacks or computed otherwise."""
    return [
        step
        for step, loss in sorted(reference.items())
        if step not in rescued or rescued[step].exact != loss.exact
    ]
