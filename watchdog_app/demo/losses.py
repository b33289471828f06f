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


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a rescued run with an uninterrupted run."""

    compared: int
    different: tuple[int, ...]  # steps, ascending
    missing: tuple[int, ...]  # steps of the reference that the rescued run lacks

    @property
    def identical(self) -> bool:
        """True: every step of the reference exists, with the same loss to the bit."""
        return self.compared > 0 and not self.different and not self.missing


def compare(reference: dict[int, Loss], rescued: dict[int, Loss]) -> Comparison:
    """Compare the losses of every step of the reference."""
    common = [step for step in sorted(reference) if step in rescued]
    return Comparison(
        compared=len(common),
        different=tuple(s for s in common if reference[s].exact != rescued[s].exact),
        missing=tuple(step for step in sorted(reference) if step not in rescued),
    )
