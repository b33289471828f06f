"""
Crash tests at every write: kill, power loss and refused writes, for all code that writes files.

    python bench/crash_cuts.py [WORKLOAD ...]

Each workload runs once under a shim that records its file operations. Every prefix of the record is
written as a folder and checked: with none, some or all unsynced data lost, and with torn writes.
Then SIGKILL replaces each operation in turn, and the disk refuses operations (full, broken,
read-only) from each operation on. Takes some minutes; tests/crash runs samples of the same.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from crash.crash_judge import BROKEN, NO_SPACE, READ_ONLY, Bench
from crash.crash_workloads import WORKLOADS

CHANCES = 6  # random losses after each operation, in addition to the fixed ones
MEMORY = "/dev/shm"


def main(names: list[str]) -> int:
    """Print a line for each workload; return 1 if a check failed."""
    wrong: list[str] = []
    print(
        f"{'workload':14} {'operations':>10} {'folders':>8} {'kills':>6} {'refusals':>8}  seconds"
    )
    for name in names or [each for each in WORKLOADS if each != "careless"]:
        began = time.monotonic()
        place = MEMORY if os.access(MEMORY, os.W_OK) else None
        with tempfile.TemporaryDirectory(dir=place) as folder:
            bench = Bench(Path(folder))
            record = bench.record(name)
            places = list(range(1, len(record) + 1))
            folders, problems = bench.power(record, name, chances=CHANCES, every=1)
            kills, more = bench.kills(name, places)
            problems += more
            for number in (NO_SPACE, BROKEN, READ_ONLY):
                problems += bench.refused(name, number, places)
        seconds = time.monotonic() - began
        print(
            f"{name:14} {len(record):10} {folders:8} {kills:6} {3 * len(places):8}  {seconds:7.0f}",
            flush=True,
        )
        wrong += problems
    print("\n".join(wrong) if wrong else "Nothing that was promised was lost, or not whole.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
