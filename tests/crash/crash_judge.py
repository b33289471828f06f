"""
Cuts a workload short in every way and collects the errors.

Used by the tests, which take samples, and by bench/crash_cuts.py, which takes all.
"""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path

from crash.crash_disk import Record, compiled, read
from crash.crash_workloads import WORKLOADS

_RUN = str(Path(__file__).with_name("crash_run.py"))
NO_SPACE, BROKEN, READ_ONLY = errno.ENOSPC, errno.EIO, errno.EROFS


class Bench:
    """A folder with the tools to run and judge workloads in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._root = str(folder / "root")

    def record(self, name: str) -> Record:
        """Run the workload once and return its record."""
        trace, before = self._folder / "trace", self._folder / "before"
        done = self._run(name, "record", str(trace), str(before))
        assert 0 == done.returncode, done.stdout + done.stderr
        return Record(read(str(trace)), pickle.loads(before.read_bytes()))

    def power(
        self, record: Record, name: str, *, chances: int, every: int
    ) -> tuple[int, list[str]]:
        """
        Simulate a power failure after every n-th operation; return the number of states and the
        errors.
        """
        found: list[str] = []
        count = 0
        for state in record.states(chances=chances, every=every):
            count += 1
            state.lay_out(self._root)
            try:
                problems = WORKLOADS[name].check(self._root, state.marks, state.how)
            except Exception as error:
                problems = [repr(error)]
            found += [
                f"{name}, after {state.done} operations and {state.marks}, {state.how}: {problem}"
                for problem in problems
            ]
        return count, found

    def kills(self, name: str, places: list[int]) -> tuple[int, list[str]]:
        """
        Kill the workload at each of these operations; return the number of kills and the errors.
        """
        return self._in_places(name, "kill", ",".join(map(str, places)))

    def refused(self, name: str, number: int, places: list[int]) -> list[str]:
        """Let the disk refuse every operation from each of these on; return the errors."""
        _, found = self._in_places(name, "fail", str(number), ",".join(map(str, places)))
        return found

    def _in_places(self, name: str, *words: str) -> tuple[int, list[str]]:
        done = self._run(name, *words)
        *lines, last = done.stdout.splitlines() or [""]
        if done.returncode or not last.startswith("killed "):
            return 0, [done.stdout + done.stderr]
        return int(last.split()[1]), lines

    def _run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "LD_PRELOAD": compiled(), "CRASH_ROOT": self._root}
        return subprocess.run(
            [sys.executable, _RUN, self._root, name, *words],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
