"""
Run situations other than a leak of one program under a guard: exits, kills and saves.

    python bench/guard_situations.py [NAME ...]

Needs a memory group (root, cgroup v1). All programs are real: trainings of `guard_programs.py` and
tests/e2e/programs, without a daemon. The benchmark ends a held program, because no user decides.

Columns
  way      states of the guard
  ended    exit code, signal, or held to the end
  killed   processes that the kernel killed, in the group and around it
  saved    step of the newest rescue, of the number of finished steps; -: nothing to save
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "guard"))

from guard_desk import HOG, STORM, Desk

ROOT = Path(__file__).resolve().parent.parent
_PATIENCE_S = 120.0
_STOPPED_S = 2.0  # a program stopped for this long counts as held
_PROGRAMS = ROOT / "bench" / "guard_programs.py"
_LOOP = ROOT / "tests" / "e2e" / "programs" / "torch_loop.py"
_LIMITS = {"loader-keeps": "900M", "worker-leaks": "900M", "worker-jumps": "900M",
           "shm-written": "420M", "shm-mapped": "420M", "cache": "340M"}  # fmt: skip


class Watched:
    """One program under its guard, observed through the guard's record."""

    def __init__(self, desk: Desk, name: str, *words: str, **more: Any) -> None:
        self.desk, self.name = desk, name
        self.out, self.rescues = desk.folder / f"{name}.out", desk.folder / f"{name}.rescues"
        words = tuple(word.format(out=self.out, rescues=self.rescues) for word in words)
        self.process = desk.start(*words, cwd=desk.folder, env={"OMP_NUM_THREADS": "1"}, **more)
        self.stages: list[str] = []
        self.killed = 0
        self.stopped_since: float | None = None
        self.asked_to_end = False

    def poll(self) -> bool:
        """Read the record; return whether the program runs and is not held."""
        record = self.desk.record(self.process)
        if record is not None:
            if self.stages[-1:] != [record["state"]]:
                self.stages.append(record["state"])
                self.stopped_since = time.monotonic() if record["state"] == "stopped" else None
            self.killed = max(self.killed, kills(record["group"] or ""))
        return self.process.poll() is None and not self.is_stopped

    @property
    def is_stopped(self) -> bool:
        """Whether the program has been stopped for long enough."""
        return self.stopped_since is not None and time.monotonic() - self.stopped_since > _STOPPED_S

    def end(self) -> None:
        """End the held program, as the user would."""
        self.asked_to_end = True
        self.desk.run("limit", str(self.process.pid), "--end")
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(30)

    def table_row(self) -> str:
        """Return the table row."""
        steps = self.out.read_text().split() if self.out.exists() else []
        saved = sorted(int(each.name.split("-")[1]) for each in self.rescues.glob("rescue-*"))
        of = int(steps[-1].split(",")[0]) if steps else 0
        code = "held, then told to end" if self.asked_to_end else f"exit {self.process.poll()}"
        what = f"{saved[-1] if saved else 'nothing'} of {of}" if steps else "-"
        return f"{self.name:14} {' > '.join(self.stages):84} {code:24} {self.killed:6d}  {what}"


def kills(group: str) -> int:
    """Return the number of processes that the kernel has killed in a group."""
    with suppress(OSError):
        for line in Path(group, "memory.oom_control").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def follow(watched: list[Watched], around: str = "") -> None:
    """Wait until each program has ended or is held; print their rows."""
    end = time.monotonic() + _PATIENCE_S
    killed = 0
    while sum(each.poll() for each in watched) and time.monotonic() < end:
        killed = max(killed, kills(around))
        time.sleep(0.02)
    for each in watched:
        if each.process.poll() is None:
            each.end()
        each.killed += killed
        print(each.table_row(), flush=True)


def alone(way: str) -> None:
    """Run a training of `guard_programs.py`, or the fork storm."""
    with tempfile.TemporaryDirectory(prefix="bench-guard-") as folder:
        desk = Desk(Path(folder))
        try:
            if way == "fork-storm":
                words = (sys.executable, "-S", "-c", STORM.replace("{", "{{").replace("}", "}}"))
                one = Watched(desk, way, *words, options=("--limit", "120M"))
            else:
                words = (sys.executable, str(_PROGRAMS), way, "{out}", "{rescues}")
                one = Watched(desk, way, *words, options=("--limit", _LIMITS[way]))
            follow([one])
        finally:
            desk.close()


def race() -> None:
    """Run two leaking trainings and a program without an agent in a container of 1.5 GB."""
    with tempfile.TemporaryDirectory(prefix="bench-guard-") as folder:
        desk = Desk(Path(folder))
        try:
            group = desk.group(1500)
            more = {"group": group, "options": ("--reserve", "64M")}
            words = (sys.executable, str(_LOOP), "--out", "{out}", "--rescues", "{rescues}",
                     "--state-mb", "8", "--epochs", "30", "--leak-mb-s", "60",
                     "--leak-from", "5")  # fmt: skip
            watched = [Watched(desk, f"race: train {number}", *words, **more) for number in (1, 2)]
            hog = (sys.executable, "-S", "-c", HOG, "2000", "30")
            watched.append(Watched(desk, "race: other", *hog, **more))
            follow(watched, group)
        finally:
            desk.close()


def main() -> None:
    names = [*_LIMITS, "fork-storm", "race"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    wanted = parser.parse_args().names or names
    print(f"{'situation':14} {'way':84} {'ended':24} killed  saved, of steps")
    for name in wanted:
        if name == "race":
            race()
        elif name in names:
            alone(name)
        else:
            parser.error(f"there is no {name}")


if __name__ == "__main__":
    main()
