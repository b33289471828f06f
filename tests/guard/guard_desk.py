"""Programs in real guards: start them, read their records, and end them after the test."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.finished import finished
from support.waiting import until

WATCHDOG = [sys.executable, "-m", "watchdog_app"]
MEMORY = "/sys/fs/cgroup/memory"
PATIENCE_S = 30.0
MIB = 1 << 20

HOG = """
import sys, time
total, mib_per_s = int(sys.argv[1]), float(sys.argv[2])
held, began = [], time.monotonic()
while len(held) < total:
    held.append(bytearray(b"x") * (1 << 20))
    if mib_per_s:
        time.sleep(max(0.0, len(held) / mib_per_s - (time.monotonic() - began)))
print("all of it", flush=True)
"""
# Endless forks, each of which holds 2 MiB.
STORM = """
import os, time
while True:
    try:
        if os.fork() == 0:
            held = bytearray(b"x") * (2 << 20)
            time.sleep(600)
        time.sleep(0.005)
    except (OSError, MemoryError):
        pass
"""


class Desk:
    """A separate runtime folder, and every program that was started with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            **os.environ,
            "WATCHDOG_RUNTIME_DIR": str(folder / "run"),
            "WATCHDOG_STATE_DIR": str(folder / "state"),
            "WATCHDOG_CONFIG": str(folder / "config.toml"),
        }
        self.env.pop("WATCHDOG_GUARD", None)
        self._processes: list[subprocess.Popen[str]] = []
        self._groups: list[str] = []

    def start(
        self,
        *words: str,
        options: tuple[str, ...] = (),
        group: str | None = None,
        front: tuple[str, ...] = (),
        **more: Any,
    ) -> subprocess.Popen[str]:
        """
        Start `watchdog exec OPTIONS -- WORDS`, in an enclosing group if given.

        `front` is a command that ends by executing the watchdog command.
        """
        argv = [*front, *WATCHDOG, "exec", *options, "--", *words]
        if group is not None:
            argv = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *argv]
        errors = open(self.folder / f"stderr-{len(self._processes)}", "w+")
        process = subprocess.Popen(
            argv,
            env={**self.env, **more.pop("env", {})},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            **({} if more.get("start_new_session") else {"process_group": 0}),
            **more,
        )
        process.output = Path(errors.name).read_text  # type: ignore[attr-defined]
        errors.close()
        self._processes.append(process)
        return process

    def hog(
        self,
        total: int,
        rate: float = 0,
        limit: str = "100M",
        options: tuple[str, ...] = (),
        **more: Any,
    ) -> subprocess.Popen[str]:
        """Start a program without an agent that takes `total` MiB at `rate` MiB/s (0: at once)."""
        words = (sys.executable, "-S", "-c", HOG, str(total), str(rate))
        return self.start(*words, options=("--limit", limit, *options), **more)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run another watchdog command."""
        return finished([*WATCHDOG, *words], env=self.env)

    def record(self, process: subprocess.Popen[str]) -> dict[str, Any] | None:
        """The supervisor's record of a program's guard."""
        with suppress(OSError, ValueError):
            for path in (self.folder / "run" / "guard").glob(f"{process.pid}.*/guard.json"):
                return dict(json.loads(path.read_text()))
        return None

    def until(self, what: Callable[[], Any], why: str, patience_s: float = PATIENCE_S) -> Any:
        """Wait for something to be true and return it."""
        return until(
            what, lambda: f"{why}; {[each.output() for each in self._processes]}", patience_s
        )

    def stage(self, process: subprocess.Popen[str], *stages: str) -> dict[str, Any]:
        """Wait until a guard is in one of these states; return its record."""

        def read() -> dict[str, Any] | None:
            record = self.record(process)
            return record if record and record["state"] in stages else None

        return dict(self.until(read, f"never {stages}: {self.record(process)}"))

    def line(self, process: subprocess.Popen[str]) -> str:
        """The next line of a program's output."""
        assert process.stdout is not None
        ready = select.select([process.stdout], [], [], PATIENCE_S)[0]
        assert ready, process.output()  # type: ignore[attr-defined]
        return process.stdout.readline()

    def end(self, process: subprocess.Popen[str]) -> int:
        """Wait for the program's end; return the exit code."""
        return process.wait(PATIENCE_S)

    def group(self, limit_mib: int) -> str:
        """Create a limited group around the guards, as a container has one."""
        path = f"{MEMORY}{own_group()}/watchdog-test-{os.getpid()}-{len(self._groups)}"
        os.mkdir(path)
        self._groups.append(path)
        for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
            Path(path, name).write_text(str(limit_mib * MIB))
        return path

    def close(self) -> None:
        """End every program, frozen or not, and remove the groups."""
        for process in self._processes:
            record = self.record(process) or {}
            folders = {guard_folder(process.pid, "memory"), record.get("group")} - {None}
            freezer = (
                f"/sys/fs/cgroup/freezer/watchdog-guard-{process.pid}-{record.get('start_time')}"
            )
            with suppress(OSError):
                Path(guard_folder(process.pid, "freezer") or freezer, "freezer.state").write_text(
                    "THAWED"
                )
            if process.poll() is None:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
            for folder in folders:
                for pid in pids_in(folder):
                    with suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
            process.wait(PATIENCE_S)
            for stream in (process.stdout, process.stdin):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
        try:
            self.until(lambda: not leftovers(self.folder / "run"), "guards are left over", 15)
        finally:
            for path in self._groups:
                self.until(lambda path=path: removed(path), f"{path} is in use", 10)


def own_group() -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return "" if path == "/" else path
    return ""


def guard_folder(pid: int, controller: str) -> str | None:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == controller and "watchdog-guard-" in path:
                return f"/sys/fs/cgroup/{controller}{path}"
    return None


def pids_in(folder: str) -> list[int]:
    with suppress(OSError):
        return [int(line) for line in Path(folder, "cgroup.procs").read_text().split()]
    return []


def leftovers(run: Path) -> list[Path]:
    return list((run / "guard").glob("*")) if (run / "guard").is_dir() else []


def removed(path: str) -> bool:
    with suppress(OSError):
        os.rmdir(path)
    return not os.path.exists(path)


def state(pid: int) -> str:
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat[stat.rindex(")") + 2]
    return ""
