"""Trainings and rows of `rescue.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

JUMP = 3  # factor of the limit
JUMP_AT = 100  # step of the jump
LEAK_FROM = 20  # first step of the leak
LEAST_ROOM_MB = 40.0
ROOM_S = 6.0  # seconds of leak, from its first step to the limit


@dataclass(frozen=True, slots=True)
class Kind:
    """A training. `words`: arguments of its program; `switched_on`: it names no Rescue."""

    name: str
    shown: str
    program: str
    words: tuple[str, ...] = ()
    switched_on: bool = False
    needs_suggested_code: bool = False  # a resume needs the code that the agent suggests

    @property
    def rescues(self) -> str:
        """The folder of its rescues, relative to the run's folder."""
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
    """What happens to a training. `again`: without a guard it is the same as another row."""

    name: str
    shown: str
    leak_mb_s: float = 0.0
    jump_in: str | None = None
    options: tuple[str, ...] = ()  # options of its guard
    again: bool = False

    def limit_mb(self, base_mb: float) -> float:
        """Return a limit that leaves the leak `ROOM_S` seconds."""
        return base_mb + max(LEAST_ROOM_MB, ROOM_S * self.leak_mb_s)

    def words(self, limit_mb: float) -> list[str]:
        """Return the program's arguments for this row."""
        if self.jump_in is None:
            return ["--leak-mb-s", str(self.leak_mb_s), "--leak-from", str(LEAK_FROM)]
        words = ["--jump-mb", str(JUMP * limit_mb), "--jump-at", str(JUMP_AT)]
        return [*words, "--jump-in", self.jump_in]

    @property
    def generated(self) -> bool:
        """Whether the program generates its data while reading."""
        return self.jump_in == "data"

    def seconds(self, step_s: float) -> float:
        """Return the maximum time from the first step to the limit, in seconds."""
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
    Return the entries with these names, in the order of the table.

    Raises:
        ValueError: an unknown name; the message lists the known ones.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in {each.name for each in every}]
    if unknown or not wanted:
        there = ", ".join(each.name for each in every)
        raise ValueError(f"no such name: {', '.join(unknown) or 'none given'}; there are {there}")
    return [each for each in every if each.name in wanted]
