"""
All tests, in lots side by side: half of the time a test waits for a daemon or a training.

Daemons look at every process of the user. The batches run in process namespaces of their own, where
their daemons see nothing of each other; some run outside, one after the other, since they ask the
kernel's log, which knows processes by their real pids. Their daemons see the others, and leave them
alone since their environment names another daemon's runtime folder. Where no namespace can be made,
all run outside.

Each lot takes the next batch from a list, the longest first, so that they end together.

Real kills, real desktops and daemons that look once a second meet a machine that others keep busy
too. What failed is run once more when all else has ended, by itself: what fails again has failed,
what passes then is named, for somebody to look at, and fails nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
LOTS = 2
# A batch that hangs is to be seen, not waited for.
_LIMIT_S = 2400
_APART = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child")
# A shell is process 1 in there, as pytest would be an odd one.
_SHELL = ("sh", "-c", '"$@"; exit $?', "sh")
# Real kills for memory, told by the kernel's log, and real desktops; one after the other.
_OUTSIDE = ("e2e", "tray", "examples", "enable")
# What takes minutes, the longest first; the rest follows by name.
_LONG = ("agent", "daemon", "packaging", "airbag", "jupyter", "estimate", "demo")
_NO_TESTS = ("fixtures", "gpu_stub", "vm", "__pycache__")
_SOME_FAILED = 1  # how pytest ends then
_NONE_CHOSEN = 5  # ... and where marks leave nothing over
_PIECES = 3  # of the one folder that takes as long as a whole lot
_MOST_AGAIN = 12  # tests: more than that is not the machine

Batch = tuple[str, ...]


class Failed(NamedTuple):
    """A batch that is to be run again, as far as it failed."""

    batch: Batch
    apart: bool
    cache: str  # folder in which pytest has written down what failed
    tests: tuple[str, ...]


def batches() -> tuple[list[Batch], list[Batch]]:
    """Every test, once: those for outside, and those for anywhere, the longest first."""
    folders = {each.name: each for each in sorted(TESTS.iterdir()) if each.is_dir()}
    for name in _NO_TESTS:
        folders.pop(name, None)
    outside: list[Batch] = [(str(folders.pop(name)),) for name in _OUTSIDE if name in folders]
    anywhere: list[Batch] = []
    for name in (*_LONG, *sorted(folders)):
        folder = folders.pop(name, None)
        if folder is None:
            continue
        if name != _LONG[0]:
            anywhere.append((str(folder),))
            continue
        files = [str(each) for each in sorted(folder.glob("test_*.py"))]
        size = -(-len(files) // _PIECES)
        anywhere += [tuple(files[at : at + size]) for at in range(0, len(files), size)]
    alone = tuple(str(each) for each in sorted(TESTS.glob("test_*.py")))
    return outside, [*anywhere, alone] if alone else anywhere


class Run:
    """
    What is done and what is not.

    Args:
        tell: is given each line for the person who waits.
        folder: for what is to be remembered of batches that failed.
    """

    def __init__(
        self,
        outside: Sequence[Batch],
        anywhere: Sequence[Batch],
        tell: Callable[[str], None],
        folder: str,
    ) -> None:
        self._outside = list(outside)
        self._anywhere = list(anywhere)
        self._tell = tell
        self._folder = folder
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False
        self._again: list[Failed] = []
        self.failed: list[str] = []
        self.passed_alone: list[str] = []

    def lot(self, outside: bool, namespaces: bool) -> None:
        """
        One batch after the other, until none is left for this lot.

        Args:
            outside: those for outside come first, in this lot alone.
            namespaces: whether the others have one of their own.
        """
        try:
            with tempfile.TemporaryDirectory(prefix="watchdog-tests-") as elsewhere:
                while (found := self._next(outside)) is not None:
                    batch, anywhere = found
                    self._run(batch, elsewhere if anywhere and namespaces else None)
        except Exception as error:  # what was not run has not passed
            self.failed.append(f"a lot ended: {error!r}")
            raise

    def again(self) -> None:
        """What failed, once more, now that nothing else runs."""
        again, self._again = self._again, []
        too_many = sum(len(each.tests) for each in again) > _MOST_AGAIN
        for each in again:
            if too_many or self._ended:
                self.failed += each.tests
                continue
            self._tell(f"\n=== once more, alone: {', '.join(each.tests)}")
            with tempfile.TemporaryDirectory(prefix="watchdog-tests-") as elsewhere:
                self._run(each.batch, elsewhere if each.apart else None, each)

    def end(self) -> None:
        """End what runs: nobody waits for it any more."""
        with self._lock:
            self._ended = True
            running = list(self._running)
        for process in running:
            process.terminate()

    def _next(self, outside: bool) -> tuple[Batch, bool] | None:
        """The next one, and whether it is for anywhere."""
        with self._lock:
            if self._ended:
                return None
            if self._outside and outside:
                return self._outside.pop(0), False
            return (self._anywhere.pop(0), True) if self._anywhere else None

    def _run(self, batch: Batch, elsewhere: str | None, before: Failed | None = None) -> None:
        cache = before.cache if before else tempfile.mkdtemp(dir=self._folder)
        words = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", "--durations=5"]
        if before:
            words += ["--last-failed", "--last-failed-no-failures=none"]
        words += batch
        env = dict(os.environ)
        if elsewhere is not None:
            words = [*_APART, *_SHELL, *words]
            env["WATCHDOG_RUNTIME_DIR"] = elsewhere
        began = time.monotonic()
        with tempfile.TemporaryFile() as log:
            with self._lock:
                if self._ended:
                    return
                self._tell(f"... {_name(batch)}")
                process = subprocess.Popen(
                    words, cwd=ROOT, env=env, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=subprocess.STDOUT,
                )  # fmt: skip
                self._running.add(process)
            try:
                status = process.wait(_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                status = -signal.SIGKILL
            self._running.discard(process)
            log.seek(0)
            said = log.read().decode(errors="replace")
        tests = _failed(cache) if status == _SOME_FAILED else ()
        found = Failed(batch, elsewhere is not None, cache, tests)
        self._report(found, before, status, time.monotonic() - began, said)

    def _report(
        self, found: Failed, before: Failed | None, status: int, took_s: float, said: str
    ) -> None:
        """All of what a batch printed, in one piece, as soon as it has ended."""
        name = _name(found.batch)
        good = status == 0 or (status == _NONE_CHOSEN and before is None)
        with self._lock:
            if good and before is not None:
                self.passed_alone += before.tests
            elif not good and before is None and found.tests:
                self._again.append(found)
            elif not good:
                self.failed += found.tests or [f"{name}: pytest ended with {status}"]
                if before is not None and found.tests:
                    self.passed_alone += set(before.tests) - set(found.tests)
            self._tell(f"\n=== {name}: {'passed' if good else 'FAILED'}, {took_s:.0f} s\n{said}")


def _failed(cache: str) -> tuple[str, ...]:
    """What pytest has written down: node ids; empty where it could not."""
    try:
        return tuple(json.loads(Path(cache, "v/cache/lastfailed").read_bytes()))
    except (OSError, ValueError):
        return ()


def _name(batch: Batch) -> str:
    """`tests/core`, or the first and the last of several files."""
    names = [os.path.relpath(each, ROOT) for each in batch]
    return names[0] if len(names) == 1 else f"{names[0]} ... {os.path.basename(names[-1])}"


def _tell(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    """Run them all; the status to end with."""
    # What a shell has put into the background ignores Ctrl-C, which tests send.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="watchdog-tests-") as folder:
        return _all(Run(*batches(), _tell, folder))


def _all(run: Run) -> int:
    namespaces = subprocess.run((*_APART, "true"), capture_output=True, check=False).returncode == 0
    threads = [
        threading.Thread(target=run.lot, args=(number == 0, namespaces), daemon=True)
        for number in range(LOTS if namespaces else 1)
    ]

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    began = time.monotonic()
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
        alone = threading.Thread(target=run.again, daemon=True)
        threads.append(alone)
        alone.start()
        alone.join()
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        run.end()
        for thread in threads:
            thread.join(20)
        return 130
    took_s = time.monotonic() - began
    if run.passed_alone:
        print(
            "\nFailed beside others and passed alone; look whether the machine was at fault:\n  "
            + "\n  ".join(sorted(run.passed_alone)),
            flush=True,
        )
    if run.failed:
        print("\nFailed:\n  " + "\n  ".join(run.failed), file=sys.stderr, flush=True)
        return 1
    print(f"\nAll tests passed, in {took_s / 60:.1f} min.", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
