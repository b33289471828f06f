"""
Measure the daemon while memory runs out: its rate, its answers, its decisions, and the rescue.

    python bench/thrash.py [--arm NAME ...] [--rounds 1] [--leak-mb-s 10] [--json FILE]

Needs root (cgroup v1, and a swap file of 500 MB during the run). In each arm a program constantly
uses more memory than its group has RAM. A training in the same group leaks until group and swap are
full. The daemon is outside the group, or inside, where the kernel reclaims its pages, too:

  outside          as usual: all of its memory is locked
  inside, locked   in the thrashing group, all locked
  inside, 8 MB     in the group, as a user with a limit of 8 MB of locked memory: code first
  inside, nothing  in the group, nothing locked

Columns
  looks/s     samples of the daemon a second, from the first step of the leak to the end
  missed      late samples by the daemon's own count
  faults/s    major page faults of the daemon: each one waits for the disk
  swapped     maximum swap of the daemon, MB
  answer      answer to `status`, asked every 0.25 s: median / maximum, ms
  decided     from the moment when the group reached the usage named in a decision, to the decision
              in the journal: median / maximum, ms (usage is read every 5 ms from outside)
  saved       from that decision to the rescue on disk: median, ms
  rescue      age of the last complete rescue at the training's end, s
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "e2e"))

from harness import NO_PAUSE, World

from watchdog_app.base.errors import DaemonNotRunning
from watchdog_app.client.client import Client

TRAIN = Path(__file__).resolve().parent.parent / "tests" / "vm" / "programs" / "train.py"
WITHOUT_RIGHT = ["setpriv", "--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock"]
ARMS: dict[str, tuple[bool, list[str]]] = {
    "outside": (False, []),
    "inside, locked": (True, []),
    "inside, 8 MB": (True, ["prlimit", "--memlock=8388608", *WITHOUT_RIGHT]),
    "inside, nothing": (True, ["prlimit", "--memlock=0", *WITHOUT_RIGHT]),
}
RAM_MB, SWAP_MB, BUSY_MB = 200, 350, 230
MB = 1_000_000


class Thrashing:
    """One arm: a sandbox with swap, a group, a daemon inside or outside, and the two programs."""

    def __init__(self, folder: Path, leak_mb_s: float) -> None:
        self.world = World(folder)
        self.swap = folder / "swap"
        self.leak_mb_s = leak_mb_s

    def begin(self, inside: bool, before: list[str]) -> None:
        world = self.world
        with open(self.swap, "wb") as file:
            for _ in range(SWAP_MB + 150):
                file.write(bytes(MB))
        self.swap.chmod(0o600)
        subprocess.run(["mkswap", str(self.swap)], check=True, capture_output=True)
        subprocess.run(["swapon", str(self.swap)], check=True)
        self.group = world.group(RAM_MB, swap_mb=SWAP_MB)
        (world.folder / "config.toml").write_text(NO_PAUSE)
        argv = [*before, sys.executable, "-m", "watchdog_app", "run", "--verbose"]
        world.daemon = world._start(
            argv, self.group if inside else None, world.folder / "daemon.log"
        )
        end = time.monotonic() + 60
        while True:
            try:
                world._client = Client.connect(str(world.folder / "run" / "daemon.sock"))
                break
            except DaemonNotRunning:
                if time.monotonic() > end or world.daemon.poll() is not None:
                    raise AssertionError(world.daemon_log()) from None
                time.sleep(0.1)
        self.busy = self.train("busy", "--no-agent", "--hold-mb", str(BUSY_MB), "--touch",
                               "--step-s", "0.01", "--seconds", "300")  # fmt: skip
        self.training = self.train("leaking", "--leak-mb-s", str(self.leak_mb_s),
                                   "--leak-after-s", "4", "--seconds", "120")  # fmt: skip

    def train(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        folder = self.world.folder / name
        folder.mkdir(exist_ok=True)
        argv = [sys.executable, str(TRAIN), "--folder", str(folder), *words]
        return self.world._start(argv, self.group, self.world.folder / f"{name}.log")

    def close(self) -> None:
        self.world.close()
        subprocess.run(["swapoff", str(self.swap)], check=True)


class Sampler(threading.Thread):
    """Samples the group's usage every 5 ms, from outside."""

    def __init__(self, path: str) -> None:
        super().__init__(daemon=True)
        self.unix_s: list[float] = []
        self.used: list[int] = []
        self._fd = os.open(f"{path}/memory.memsw.usage_in_bytes", os.O_RDONLY)
        self.done = threading.Event()

    def run(self) -> None:
        highest = 0
        while not self.done.wait(0.005):
            now, used = time.time(), int(os.pread(self._fd, 32, 0))
            if used > highest:
                highest = used
                self.unix_s.append(now)
                self.used.append(used)
        os.close(self._fd)

    def first_at(self, used: float) -> float | None:
        """Return the Unix time when the usage first reached `used`; None: never."""
        index = bisect.bisect_left(self.used, used)
        return self.unix_s[index] if index < len(self.used) else None


def major_faults(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat[stat.rindex(")") + 2 :].split()[9])


def swapped_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmSwap:"):
            return int(line.split()[1]) / 1000
    return 0.0


def measure(name: str, leak_mb_s: float) -> dict[str, Any]:
    """Run one arm, from the start of the daemon to the end of the training."""
    inside, before = ARMS[name]
    with tempfile.TemporaryDirectory(prefix="watchdog-thrash-", dir="/var/tmp") as folder:
        arm = Thrashing(Path(folder), leak_mb_s)
        try:
            arm.begin(inside, before)
            return _figures(arm, name)
        finally:
            arm.close()


def _figures(arm: Thrashing, name: str) -> dict[str, Any]:
    world, client = arm.world, arm.world.client
    assert arm.group.path is not None
    pid = int(client.call("status")["daemon"]["pid"])
    sampler = Sampler(arm.group.path)
    sampler.start()
    time.sleep(4)  # both programs work, and the leak starts
    answers: list[float] = []
    swapped = rss = 0.0
    first = client.call("status")["daemon"]
    began, faults = time.monotonic(), major_faults(pid)
    last = first
    while arm.training.poll() is None and time.monotonic() - began < 120:
        asked = time.perf_counter()
        last = client.call("status", reply_timeout_s=60)["daemon"]
        answers.append(1000 * (time.perf_counter() - asked))
        ended, faulted = time.monotonic(), major_faults(pid)
        swapped = max(swapped, swapped_mb(pid))
        rss = max(rss, (last["rss_bytes"] or 0) / MB)
        time.sleep(0.25)
    died = time.time()
    sampler.done.set()
    sampler.join()
    span = ended - began
    ours = [
        e for e in client.call("history", kinds=["decision"], limit=1000)["entries"]
        if e["subject"] == arm.group.path and e["evidence"].get("used")
    ]  # fmt: skip
    decided = [
        1000 * (e["unix_s"] - at)
        for e in ours
        if (at := sampler.first_at(e["evidence"]["used"])) is not None
    ]
    outcomes = {
        e["decision"]: e
        for e in client.call("history", kinds=["outcome"], limit=1000)["entries"]
        if e["decision_kind"] == "checkpoint" and e["status"] == "done"
    }
    saved = [
        1000 * (outcomes[e["id"]]["unix_s"] - e["unix_s"]) for e in ours if e["id"] in outcomes
    ]
    rescues = sorted((world.folder / "leaking" / "rescues").glob("rescue-*/rescue.json"))
    return {
        "arm": name,
        "looks_per_s": (last["samples"] - first["samples"]) / span,
        "missed": last["missed_samples"] - first["missed_samples"],
        "faults_per_s": (faulted - faults) / span,
        "swapped_mb": swapped,
        "rss_mb": rss,
        "answer_ms": [median(answers), max(answers)],
        "decided_ms": [median(decided), max(decided)] if decided else None,
        "decisions": len(decided),
        "saved_ms": median(saved) if saved else None,
        "rescue_s": died - rescues[-1].stat().st_mtime if rescues else None,
        "seconds": span,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arm", action="append", choices=list(ARMS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--leak-mb-s", type=float, default=10)
    parser.add_argument("--json", help="write every figure there")
    options = parser.parse_args()
    print(f"{'arm':<16}{'looks/s':>8}{'missed':>7}{'faults/s':>9}{'swapped':>8}{'RSS':>6}"
          f"{'answer ms':>14}{'decided ms':>14}{'saved ms':>9}{'rescue s':>9}")  # fmt: skip
    found = []
    for _ in range(options.rounds):
        for name in options.arm or ARMS:
            row = measure(name, options.leak_mb_s)
            found.append(row)
            decided = (
                "-" if row["decided_ms"] is None else "{:.0f} / {:.0f}".format(*row["decided_ms"])
            )
            print(
                f"{name:<16}{row['looks_per_s']:>8.1f}{row['missed']:>7}{row['faults_per_s']:>9.1f}"
                f"{row['swapped_mb']:>8.1f}{row['rss_mb']:>6.1f}"
                f"{'{:.1f} / {:.0f}'.format(*row['answer_ms']):>14}{decided:>14}"
                f"{'-' if row['saved_ms'] is None else format(row['saved_ms'], '.0f'):>9}"
                f"{'-' if row['rescue_s'] is None else format(row['rescue_s'], '.1f'):>9}",
                flush=True,
            )
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
