"""
Cut short at every write: everything of ours that writes files, killed, without power, refused.

    python bench/crash_cuts.py [WORKLOAD ...]

Each workload runs once under a shim that writes down what it does to its files. Every prefix of
that is laid out as a folder, with nothing, some or all of what was not synced lost and writes torn,
and judged; then the workload is killed with SIGKILL in the place of each operation, and the disk
refuses (full, broken, read-only) from each operation on. Takes some minutes; tests/crash takes
samples of the same.
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

CHANCES = 6  # losses drawn after each operation, beside the plain ones
MEMORY = "/dev/shm"


def main(names: list[str]) -> int:
    """A line a workload; 1 where anything was wrong."""
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
