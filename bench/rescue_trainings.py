"""One training of `rescue.py`: its folder and arguments, the reference run, the resume."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "e2e"))

from harness import PROGRAMS, World
from rescue_rows import Kind, Row

from watchdog_app.demo.story import Loss, different_steps, read_losses

MB = 1_000_000
STEPS = 25  # steps of an epoch; a resumed run passes two ends of an epoch
FOLLOWED = 50  # number of steps compared after a resume
_MARGIN_MB = 25.0  # the reference run has no agent, so add its memory
_REST_S = 240.0
WATCHDOG = [sys.executable, "-m", "watchdog_app"]


@dataclass(frozen=True, slots=True)
class Reference:
    """A run without an agent and without interruption."""

    losses: dict[int, Loss]
    base_mb: float  # maximum memory without page cache


@dataclass(frozen=True, slots=True)
class Length:
    """Length and size of the trainings of this table."""

    step_s: float
    epochs: int
    state_mb: float = 20.0

    @classmethod
    def over(cls, rows: list[Row], step_s: float, state_mb: float = 20.0) -> Length:
        """Return a length that is enough for all rows and for the steps after a resume."""
        steps = 1.3 * max(row.seconds(step_s) for row in rows) / step_s + 2 * FOLLOWED
        return cls(step_s, int(steps / STEPS) + 2, state_mb)


class Place:
    """A folder with a copy of a program, so that the agent puts its rescues next to the copy."""

    def __init__(self, folder: Path, kind: Kind, length: Length, generated: bool) -> None:
        self.folder = folder
        self.kind = kind
        self.length = length
        for name in (kind.program, "manners.py"):
            shutil.copy(PROGRAMS / name, folder / name)
        self.world = World(folder)  # for its environment: one thread, its own daemon
        self.world.env.pop("WATCHDOG_GUARD", None)
        self._generated = ["--generator"] if generated else []
        self.out = folder / "out.csv"

    def environment(self, *words: str, step_s: float, out: Path | None = None) -> dict[str, str]:
        """Pass all arguments in a variable: other arguments would make another training."""
        all_words = ["--out", str(out or self.out), "--rescues", str(self.rescues)]
        all_words += ["--epochs", str(self.length.epochs), "--steps", str(STEPS)]
        all_words += ["--state-mb", str(self.length.state_mb), "--step-s", str(step_s)]
        all_words += [*self._generated, *words]
        return {**self.world.env, "TRAINING_WORDS": shlex.join(all_words)}

    @property
    def rescues(self) -> Path:
        """The folder of its rescues, named by the program or chosen by the agent."""
        return self.folder / self.kind.rescues

    @property
    def program(self) -> list[str]:
        """The command line."""
        return [sys.executable, str(self.folder / self.kind.program)]

    def _descriptions(self) -> list[Path]:
        """
        Return rescue.json of every rescue. Unlike pathlib's glob, os.walk ignores removed folders.
        """
        return sorted(
            Path(folder, "rescue.json")
            for folder, _, files in os.walk(self.rescues)
            if "rescue.json" in files and Path(folder).name.startswith("rescue-")
        )

    def complete_rescues(self) -> dict[Path, float]:
        """Return the complete rescues and when they were written, oldest first."""
        found = {}
        for path in self._descriptions():
            try:
                found[path.parent] = path.stat().st_mtime
            except OSError:  # a newer rescue has replaced it
                continue
        return found

    def start(self, argv: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start a program; its output goes to a file."""
        with open(self.folder / "said", "ab") as output:
            return subprocess.Popen(
                argv, env=env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, start_new_session=True,
            )  # fmt: skip

    def output(self) -> str:
        """Return the end of its output."""
        path = self.folder / "said"
        return path.read_text(errors="replace")[-1500:] if path.exists() else ""


def reference(folder: Path, kind: Kind, length: Length, generated: bool) -> Reference:
    """Run it from its first step to its last, in a group used only to measure memory."""
    place = Place(folder, kind, length, generated)
    group = place.world.group(12_000)
    try:
        env = place.environment("--no-agent", step_s=0)
        process = place.start(group.command(place.program), env)
        most, end = 0, time.monotonic() + _REST_S
        while process.poll() is None and time.monotonic() < end:
            most = max(most, _held_bytes(group.path))
            time.sleep(0.05)
        if process.poll() != 0:
            raise RuntimeError(f"the run without any trouble ended so: {place.output()}")
        return Reference(read_losses(str(place.out)), most / MB + _MARGIN_MB)
    finally:
        place.world.close()


def _held_bytes(group: str | None) -> int:
    """Return the memory without page cache, which the kernel can reclaim."""
    try:
        lines = Path(str(group), "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split() for line in lines)
    return int(values.get("total_rss") or values.get("anon") or 0)


def resumed(place: Place, rescue: Path, reference: Reference) -> str:
    """
    Resume from a rescue as a user would, without a limit.

    Returns:
        "" if it resumed at the step after the rescue with the losses of the reference run, else the
        difference. A fit's callbacks may get the last step again.
    """
    step = int(rescue.name.split("-")[1])
    again = place.folder / "again.csv"
    words = () if place.kind.needs_suggested_code else place.kind.words
    env = place.environment(*words, "--until", str(step + FOLLOWED), step_s=0, out=again)
    argv = place.program
    if place.kind.switched_on and not place.kind.needs_suggested_code:
        argv = [*WATCHDOG, "exec", "--no-guard", "--", *argv]
    process = place.start(argv, env)
    try:
        code = process.wait(_REST_S)
    except subprocess.TimeoutExpired:
        return "the run that went on from it was not over in time"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    made = read_losses(str(again))
    expected = {s: loss for s, loss in reference.losses.items() if step < s <= step + FOLLOWED}
    if code != 0 or not made:
        return f"the run that went on from it ended with {code}: {place.output()}"
    if min(made) not in (step, step + 1):
        return f"it went on at step {min(made)} instead of {step + 1}"
    wrong = different_steps({**expected, min(made): reference.losses[min(made)]}, made)
    if wrong or len(expected) != FOLLOWED:
        return f"losses differ or are missing at {wrong[:5]}"
    return ""
