"""
Measure the cost of one reading of the GPUs, compared with the libraries of gpustat and nvitop.

    python bench/gpu.py [--rounds 60] [--driver-us 0] [--json FILE]

Uses the stub driver of the tests, with 1 and 8 GPUs and 20 processes each; the tools take turns in
one run. All three read the same values: memory, utilisation, temperature, power with its limit,
fan, and the processes with their memory. Watchdog's figure is the sum of its reader process and the
daemon's part. `--driver-us` adds this time to each driver call, because real calls take time. The
benchmark asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from gpu_stub.driver_stub import FUNCTIONS, GIB, DriverStub  # noqa: E402

PROCESSES = 20
# gpustat sleeps 0.1 s per GPU to measure the CPU use of its processes. This is not a cost, so
# leave it out.
GPUSTAT = """
import sys, time
time.sleep = lambda s: None
from gpustat.core import GPUStatCollection as G
def read(): G.new_query()
"""
NVITOP = """
import sys, time
from nvitop import Device
devices = Device.all()
def read():
    for d in devices:
        d.memory_used(), d.memory_total(), d.gpu_utilization(), d.temperature(), d.fan_speed()
        d.power_usage(), d.power_limit(), d.name(), d.uuid()
        for p in d.processes().values(): p.gpu_memory()
"""
SERVE = """
read(); read()
print("ready", flush=True)
for line in sys.stdin:
    cpu, wall = time.process_time(), time.perf_counter()
    read()
    print(time.process_time() - cpu, time.perf_counter() - wall, flush=True)
"""


class Rival:
    """Another tool's library in its own process, asked for one reading at a time."""

    def __init__(self, name: str, code: str, stub: DriverStub) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-c", code + SERVE],
            env=stub.env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        if self._process.stdout.readline() != "ready\n":
            raise SystemExit(f"{name} does not start")

    def read(self) -> tuple[float, float]:
        self._process.stdin.write("\n")
        cpu_s, wall_s = self._process.stdout.readline().split()
        return float(cpu_s), float(wall_s)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Watchdog:
    """The reader and the daemon's part, called as the daemon does: one reading a second."""

    name = "watchdog"

    def __init__(self, stub: DriverStub) -> None:
        from watchdog_app.machine.gpu.monitor import GpuMonitor

        self._watch = GpuMonitor(env=stub.env(), kernel_log=None)
        self._now = 1000.0
        for _ in range(2):
            self.read()

    def read(self) -> tuple[float, float]:
        self._now += 1.0
        own = time.process_time()
        others = self._reader_cpu_s()
        wall = time.perf_counter()
        sample = self._watch.read(self._now, busy=True)
        while sample.read_mono_s != self._now:
            time.sleep(0.002)  # the daemon's tick has the same cost as this call
            sample = self._watch.read(self._now, busy=True)
        wall_s = time.perf_counter() - wall
        return time.process_time() - own + self._reader_cpu_s() - others, wall_s

    def _reader_cpu_s(self) -> float:
        """Return the processor time of the reader in seconds, in ns resolution."""
        pid = self._watch.reader_pid
        if pid is None:
            return 0.0
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9

    def memory_bytes(self) -> int:
        """Return the reader's RSS."""
        pages = Path(f"/proc/{self._watch.reader_pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        self._watch.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--driver-us", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    figures = []
    crowd = [subprocess.Popen(["sleep", "1000"]) for _ in range(PROCESSES)]
    try:
        for cards in (1, 8):
            with tempfile.TemporaryDirectory(prefix="watchdog-gpu-") as folder:
                stub = DriverStub(Path(folder), cards=cards)
                for card in range(cards):
                    stub.set(card, used=PROCESSES * GIB, utilization=80)
                    stub.processes(card, [(each.pid, GIB) for each in crowd])
                for function in FUNCTIONS:
                    stub.delay(function, args.driver_us)
                figures += measure(stub, cards, args.rounds)
    finally:
        for each in crowd:
            each.kill()
            each.wait()
    show(figures)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def measure(stub: DriverStub, cards: int, rounds: int) -> list[dict[str, object]]:
    watchdog = Watchdog(stub)
    tools = [watchdog, Rival("gpustat", GPUSTAT, stub), Rival("nvitop", NVITOP, stub)]
    cpu: dict[str, list[float]] = {tool.name: [] for tool in tools}
    wall: dict[str, list[float]] = {tool.name: [] for tool in tools}
    calls: dict[str, int] = {tool.name: 0 for tool in tools}
    try:
        for _ in range(rounds):
            for tool in tools:
                stub.reset_calls()
                cpu_s, wall_s = tool.read()
                cpu[tool.name].append(cpu_s)
                wall[tool.name].append(wall_s)
                calls[tool.name] += sum(stub.calls().values())
        memory = watchdog.memory_bytes()
    finally:
        for tool in tools:
            tool.close()
    found: list[dict[str, object]] = []
    for name, spent in cpu.items():
        row: dict[str, object] = {
            "cards": cards,
            "tool": name,
            # The mean: process lists, fans and others are read only every few seconds, and count.
            "cpu_ms": statistics.fmean(spent) * 1e3,
            "cpu_median_ms": statistics.median(spent) * 1e3,
            "wall_ms": statistics.fmean(wall[name]) * 1e3,
            "calls": calls[name] / rounds,
        }
        if name == "watchdog":
            row["reader_rss_bytes"] = memory
        found.append(row)
    return found


def show(figures: list[dict[str, object]]) -> None:
    print("cards  tool      cpu ms  median  wall ms  driver calls  of gpustat's cpu")
    for row in figures:
        base = next(
            other["cpu_ms"]
            for other in figures
            if other["cards"] == row["cards"] and other["tool"] == "gpustat"
        )
        print(
            f"{row['cards']:5}  {row['tool']:8}  {row['cpu_ms']:6.2f}  {row['cpu_median_ms']:6.2f}"
            f"  {row['wall_ms']:7.2f}  {row['calls']:12.1f}  {row['cpu_ms'] / base:8.2f}"
        )
    for row in figures:
        if "reader_rss_bytes" in row:
            print(f"reader with {row['cards']} cards: RSS {row['reader_rss_bytes'] / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
