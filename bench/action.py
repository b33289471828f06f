"""
Measure the delay from a crossing to the action: to the first file of a rescue, and to SIGSTOP.

    python bench/action.py [--rounds 5] [--leak-mb-s 40] [--json FILE]

Needs root (cgroup v1). A training with an agent leaks in a group of 500 MB. Every millisecond the
benchmark reads the group's usage, the training's state and its folder of rescues. Columns in ms,
with median and maximum over the rounds:

  look        from the moment when the group reached the usage named in a decision, to that decision
  save begun  from the decision for a checkpoint to the first file of the rescue (one step included)
  stopped     from the decision for a pause to state T
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "e2e"))

from harness import World

from watchdog_app.base.linux.cgroups import flat_value

TRAIN = Path(__file__).resolve().parent.parent / "tests" / "vm" / "programs" / "train.py"
CONFIG = """
[actions]
pause = false
[notify]
desktop = false
[[rule]]
task = "train.py"
pause = true
"""
GROUP_MB = 500


class Witness(threading.Thread):
    """Samples the group, the process and the folder of rescues every millisecond."""

    def __init__(self, group: str, pid: int, rescues: Path) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        # (increasing usage in bytes, Unix time when first reached)
        self.usage: list[tuple[int, float]] = []
        self.begun: list[float] = []  # Unix times when a new rescue folder appeared
        self.stopped: list[float] = []
        self._usage = os.open(f"{group}/memory.usage_in_bytes", os.O_RDONLY)
        self._parts = os.open(f"{group}/memory.stat", os.O_RDONLY)
        self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        self._rescues = rescues

    def run(self) -> None:
        known: set[str] = set()
        halted = False
        while not self.done.wait(0.001):
            now = time.time()
            stat = os.pread(self._parts, 8192, 0)
            used = int(os.pread(self._usage, 32, 0))
            for name in (b"total_inactive_file", b"total_active_file"):
                used -= flat_value(stat, name) or 0
            if not self.usage or used > self.usage[-1][0]:
                self.usage.append((used, now))
            try:
                state = os.pread(self._stat, 512, 0).rpartition(b")")[2].split()[0]
            except OSError:
                return
            if (state == b"T") != halted:
                halted = not halted
                if halted:
                    self.stopped.append(now)
            with suppress(OSError):
                found = set(os.listdir(self._rescues))
                if found - known:
                    self.begun.append(now)
                known = found

    def first_at(self, used: float) -> float | None:
        """Return the Unix time when the usage first reached `used`; None: never."""
        index = bisect.bisect_left(self.usage, (used, 0.0))
        return self.usage[index][1] if index < len(self.usage) else None


def after(moment: float, times: list[float], within_s: float = 5.0) -> float | None:
    """
    Return the milliseconds from a moment to the next of these times; None: later than `within_s`.
    """
    index = bisect.bisect_left(times, moment)
    late = times[index] - moment if index < len(times) else within_s
    return 1000 * late if late < within_s else None


def measure(leak_mb_s: float) -> dict[str, list[float]]:
    """Run one training from its start to its pause; return the delays by column, in ms."""
    with tempfile.TemporaryDirectory(prefix="watchdog-action-") as name:
        world = World(Path(name))
        try:
            client = world.start_daemon(CONFIG)
            group = world.group(GROUP_MB)
            folder = Path(name) / "train"
            folder.mkdir()
            argv = [sys.executable, str(TRAIN), "--folder", str(folder), "--leak-mb-s",
                    str(leak_mb_s), "--step-s", "0.005", "--seconds", "60"]  # fmt: skip
            training = world._start(argv, group, Path(name) / "train.log")
            witness = Witness(str(group.path), training.pid, folder / "rescues")
            witness.start()
            end = time.monotonic() + 60
            while time.monotonic() < end and not witness.stopped and training.poll() is None:
                time.sleep(0.05)
            time.sleep(0.5)
            witness.done.set()
            witness.join()
            decisions = [
                each
                for each in client.call("history", kinds=["decision"], limit=1000)["entries"]
                if each["subject"] == group.path
            ]
        finally:
            world.close()
    found: dict[str, list[float]] = {"look": [], "save begun": [], "stopped": []}
    for each in decisions:
        at, kind = each["unix_s"], each["decision_kind"]
        crossed = witness.first_at(each["evidence"].get("used") or 0)
        if crossed is not None and at >= crossed:
            found["look"].append(1000 * (at - crossed))
        column = {"checkpoint": "save begun", "pause": "stopped"}.get(kind)
        if column is not None:
            late = after(at, witness.begun if kind == "checkpoint" else witness.stopped)
            found[column] += [] if late is None else [late]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--leak-mb-s", type=float, default=40.0)
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    every: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        for column, times in measure(args.leak_mb_s).items():
            every.setdefault(column, []).extend(times)
    print("| | median ms | longest ms | times |\n|---|---|---|---|")
    for column, times in every.items():
        if times:
            print(f"| {column} | {median(times):.0f} | {max(times):.0f} | {len(times)} |")
    if args.json:
        Path(args.json).write_text(json.dumps(every, indent=2) + "\n")


if __name__ == "__main__":
    main()
