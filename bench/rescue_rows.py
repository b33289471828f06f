"""What `rescue.py` measures: the trainings, and what happens to each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

JUMP = 3  # times the limit
JUMP_AT = 100  # step
LEAK_FROM = 20  # step
LEAST_ROOM_MB = 40.0
ROOM_S = 6.0  # of the leak, from its first step to the limit


@dataclass(frozen=True, slots=True)
class Kind:
    """A training. `words`: of its program; `switched_on`: it names no Rescue and is found."""

    name: str
    shown: str
    program: str
    words: tuple[str, ...] = ()
    switched_on: bool = False
    told: bool = False  # it goes on with the lines that the next run is told

    @property
    def rescues(self) -> str:
        """The folder of its rescues, below that of the run."""
        return f"rescues/{self.program}" if self.switched_on else "named"


KINDS = (
    Kind("keras", "Keras, Rescue named", "fit.py"),
    Kind("keras-found", "Keras, found by itself", "fit.py", ("--no-agent",), True),
    Kind("torch-found", "PyTorch, found by itself", "torch_loop.py", ("--no-agent",), True, True),
    Kind("torch", "PyTorch, Rescue named", "torch_loop.py"),
)
USUAL = "keras,keras-found,torch-found"


@dataclass(frozen=True, slots=True)
class Row:
    """What happens to a training. `again`: without a guard it is what another row is."""

    name: str
    shown: str
    leak_mb_s: float = 0.0
    jump_in: str | None = None
    options: tuple[str, ...] = ()  # of its guard
    again: bool = False

    def limit_mb(self, base_mb: float) -> float:
        """A limit that leaves the leak `ROOM_S` seconds."""
        return base_mb + max(LEAST_ROOM_MB, ROOM_S * self.leak_mb_s)

    def words(self, limit_mb: float) -> list[str]:
        """Of the program, so that it comes about."""
        if self.jump_in is None:
            return ["--leak-mb-s", str(self.leak_mb_s), "--leak-from", str(LEAK_FROM)]
        words = ["--jump-mb", str(JUMP * limit_mb), "--jump-at", str(JUMP_AT)]
        return [*words, "--jump-in", self.jump_in]

    @property
    def generated(self) -> bool:
        """Its data is made as it is read."""
        return self.jump_in == "data"

    def seconds(self, step_s: float) -> float:
        """From its first step to its limit, at most."""
        room_s = max(LEAST_ROOM_MB / self.leak_mb_s, ROOM_S) if self.leak_mb_s else 0.0
        return room_s + (LEAK_FROM if self.leak_mb_s else JUMP_AT) * step_s


_UNREFUSED = ("--no-refuse",)
ROWS = (
    *(Row(str(rate), f"{rate} MB/s", float(rate)) for rate in (1, 5, 20, 50, 100, 500)),
    Row("jump-step", "jump between batches", jump_in="step"),
    Row("jump-data", "jump in the data generator", jump_in="data"),
    Row("jump-step-held", "the first, not refused", 0, "step", _UNREFUSED, again=True),
    Row("jump-data-held", "the second, not refused", 0, "data", _UNREFUSED, again=True),
)


Named = TypeVar("Named", Kind, Row)


def chosen(every: tuple[Named, ...], names: str) -> list[Named]:
    """
    Those with these names, in the order of the table.

    Raises:
        ValueError: a name that none of them has, and which there are.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in {each.name for each in every}]
    if unknown or not wanted:
        there = ", ".join(each.name for each in every)
        raise ValueError(f"no such name: {', '.join(unknown) or 'none given'}; there are {there}")
    return [each for each in every if each.name in wanted]
