"""Programs in guards, for the tests of the guard in the virtual machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from guest import PATIENCE_S, PROGRAMS, PYTHON, RUNTIME, UID, Session, as_me, ordinary, until

from watchdog_app.base import paths

WATCHDOG = [PYTHON, "-m", "watchdog_app"]
MIB = 1 << 20
HOG = """
import sys, time
held = []
while len(held) < int(sys.argv[1]):
    held.append(bytearray(b"x") * (1 << 20))
    time.sleep(float(sys.argv[2]))
print("all of it", flush=True)
"""


class Guarded:
    """A program in a guard of the user or of root."""

    def __init__(
        self, me: Session, *words: str, options: tuple[str, ...] = (), root: bool = False
    ) -> None:
        self.root = root
        self.errors = me.folder / f"errors-{time.monotonic_ns()}"
        front = [] if root else as_me()
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                [*front, *WATCHDOG, "exec", *options, "--", *words],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                preexec_fn=ordinary, start_new_session=True, cwd=me.folder,
            )  # fmt: skip

    def record(self) -> dict[str, Any]:
        """Its supervisor's record; empty while there is none."""
        session = Path("/run/user/0")
        runtime = session if session.is_dir() else Path(paths.runtime_dir())
        run = (runtime if self.root else RUNTIME) / "watchdog"
        for path in [*run.glob("guard/*/guard.json"), *runtime.glob("guard/*/guard.json")]:
            with contextlib.suppress(OSError, ValueError):
                found = json.loads(path.read_text())
                if Path(found["group"]).is_dir():
                    return dict(found)
        return {}

    def stage(self, *stages: str) -> dict[str, Any]:
        """Wait until it is in one of these states; return its record."""

        def read() -> dict[str, Any] | None:
            found = self.record()
            return found if found.get("state") in stages else None

        try:
            return dict(until(read, f"{stages}"))
        except AssertionError:
            raise AssertionError(f"{self.record()} {self.process.poll()} {self.output()}") from None

    def output(self) -> str:
        """Its stderr, including watchdog's messages."""
        return self.errors.read_text()

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for its end; return the exit status."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there: {self.record()} {self.output()}") from None

    def close(self) -> None:
        """End all its processes, frozen or not."""
        group = self.record().get("group")
        if group:
            with contextlib.suppress(OSError):
                Path(group, "cgroup.kill").write_text("1")
            with contextlib.suppress(OSError):
                Path(group, "cgroup.freeze").write_text("0")
        self.process.kill()
        self.process.wait(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


class GuardedTraining(Guarded):
    """`programs/train.py`, which publishes its state, in a guard of the user."""

    def __init__(self, me: Session, *words: str, options: tuple[str, ...] = ()) -> None:
        self.folder = me.folder / f"guarded-{time.monotonic_ns()}"
        self.folder.mkdir()
        os.chown(self.folder, UID, UID)
        program = [PYTHON, str(PROGRAMS / "train.py"), "--folder", str(self.folder), "--publish"]
        super().__init__(me, *program, *words, options=options)

    def steps(self) -> int:
        """The number of its steps."""
        with contextlib.suppress(OSError):
            lines = (self.folder / "steps").read_text().splitlines()
            return int(lines[-1].split()[0]) if lines else 0
        return 0

    def until_steps(self, more: int = 8) -> None:
        """Wait until it has made this many more steps."""
        target = self.steps() + more
        try:
            until(lambda: self.steps() >= target or self.process.poll() is not None, "steps")
        finally:
            assert self.process.poll() is None, self.output()

    def jump(self) -> None:
        """Make it allocate its whole jump at once."""
        (self.folder / "jump").touch()


def kills(group: str) -> int:
    """The number of the kernel's kills for memory in the group."""
    for line in Path(group, "memory.events").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return -1
