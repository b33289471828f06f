"""The losses that a training wrote down, and whether two of them are the same to the bit."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loss:
    """One step: its loss as exact hexadecimal, and when it was written."""

    exact: str
    unix_s: float


def read(path: str) -> dict[int, Loss]:
    """
    Step to loss; a step that was trained again after a rescue counts as it came out last.

    A line that a kill cut short is left out; so is a file that does not exist yet.
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
    """How a rescued run compares with one that nobody interrupted."""

    compared: int
    different: tuple[int, ...]  # steps, ascending
    missing: tuple[int, ...]  # steps of the reference that the rescued run never made

    @property
    def identical(self) -> bool:
        """Every step of the reference was made, with the same loss to the bit."""
        return self.compared > 0 and not self.different and not self.missing


def compare(reference: dict[int, Loss], rescued: dict[int, Loss]) -> Comparison:
    """Step by step, over every step of the reference."""
    common = [step for step in sorted(reference) if step in rescued]
    return Comparison(
        compared=len(common),
        different=tuple(s for s in common if reference[s].exact != rescued[s].exact),
        missing=tuple(step for step in sorted(reference) if step not in rescued),
    )
