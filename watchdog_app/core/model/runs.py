"""Runs of a program: their memory over time, their ends, and what earlier runs say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from watchdog_app.base.records import dataclass

_LEAST_S = 5.0  # a shorter run proves nothing
_POINTS = 32  # of a curve; then every second one is dropped
_MIB = 1024**2


class RunEnd(StrEnum):
    """How a run ended, as far as its need of memory is concerned."""

    ENDED = "ended"
    KILLED_OOM = "killed_oom"
    MEMORY_ERROR = "memory_error"
    GPU_OOM = "gpu_oom"
    STOPPED = "stopped"  # a signal, an error of its own or a person ended it
    LOST_SIGHT = "lost_sight"  # its beginning or its end was not seen


@dataclass(slots=True)
class Run:
    """One run. Amounts are in bytes, times in seconds since its beginning."""

    exact: str  # keyed hash of all that identifies the program; empty: not known yet
    started_unix_s: float = 0.0
    start_bytes: int = 0  # RAM and swap at its start: of a cell, what its kernel held before
    seconds: float = 0.0
    outcome: RunEnd = RunEnd.LOST_SIGHT
    peak_bytes: int = 0  # highest RAM and swap
    peak_s: float = 0.0
    limit_bytes: int = 0  # the least amount of memory that it could have had, at its end
    gpus: dict[str, int] = field(default_factory=dict)  # highest memory by GPU
    curve_s: float = 1.0
    curve: list[int] = field(default_factory=list)  # highest RAM and swap in MiB, every `curve_s`
    cut: bool = False  # it was paused, or its beginning was not seen

    def add(self, seconds: float, level: int, gpus: Mapping[str, int]) -> None:
        """Add a sample: the time since the beginning, RAM and swap, memory by GPU."""
        self.seconds = seconds
        if level > self.peak_bytes:
            self.peak_bytes, self.peak_s = level, seconds
        for gpu, used in gpus.items():
            self.gpus[gpu] = max(used, self.gpus.get(gpu, 0))
        while len(self.curve) * self.curve_s <= seconds:
            self.curve.append(self.peak_bytes // _MIB)
            if len(self.curve) >= _POINTS:
                self.curve, self.curve_s = self.curve[::2], 2.0 * self.curve_s

    def peak(self, gpu: str | None) -> int:
        """Highest memory on a GPU; None: RAM and swap."""
        return self.peak_bytes if gpu is None else self.gpus.get(gpu, 0)

    def ran_out(self, gpu: str | None) -> bool:
        """Whether it ended because this GPU's memory, or RAM, ran out."""
        of_ram = self.outcome in (RunEnd.KILLED_OOM, RunEnd.MEMORY_ERROR)
        return of_ram if gpu is None else self.outcome is RunEnd.GPU_OOM and gpu in self.gpus

    @property
    def proves_fit(self) -> bool:
        """Whether its peak is all that it needs."""
        return self.outcome is RunEnd.ENDED and self.seconds >= _LEAST_S and not self.cut

    def reached_s(self, level: float) -> float | None:
        """When RAM and swap first reached this level; None: never."""
        before_s = before = 0.0
        points = [(place * self.curve_s, each * _MIB) for place, each in enumerate(self.curve)]
        for at_s, now in sorted((*points, (self.peak_s, self.peak_bytes))):
            if now >= level:
                share = (level - before) / (now - before) if now > before else 0.0
                return before_s + max(0.0, share * (at_s - before_s))
            before_s, before = at_s, now
        return None


class Verdict(StrEnum):
    """What earlier runs say about the present one, the most urgent first."""

    SHORT = "short"  # it will need more than there is
    BEYOND = "beyond"  # above anything that it needed before
    KILLED = "killed"  # the last run ran out of memory, and now there is more
    FITS = "fits"  # it ended well with this much, and there is room to spare
    SILENT = "silent"  # nothing follows from them


@dataclass(frozen=True, slots=True)
class Past:
    """Earlier runs of a running task under one resource. Amounts are in bytes."""

    verdict: Verdict
    last: Run
    expected: int = 0  # highest level of earlier runs; 0: only a similar program is known
    level: int = 0  # present level
    room: int = 0  # amount that is free
    runs: int = 0  # runs that ended well
    killed: bool = False  # the last run with a clear end ran out of memory
    end_s: float | None = None  # seconds until it needs more than there is; None: unknown
    together: str = ""  # names of the tasks that will need more than there is together
    more: int = 0  # what those tasks will take in addition
