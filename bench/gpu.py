"""
Measure the cost of watching GPUs.

    python bench/gpu.py [--rounds 60] [--driver-us 0] [--real] [--json FILE]
    python bench/gpu.py --daemon [--seconds 30] [--real] [--json FILE]
    python bench/gpu.py --trees [--rounds 60] [--json FILE]

Without `--daemon`: one reading of the GPUs, compared with the libraries of gpustat and nvitop; the
tools take turns in one run. All three read the same values: memory, utilisation, temperature, power
with its limit, fan, and the processes with their memory. Watchdog's figure is the sum of its reader
process and the daemon's part.

With `--daemon`: the processor time and the memory of a whole daemon and its reader, while it reads
the GPUs once a second. A daemon on a machine without GPUs runs at the same time, for comparison. If
permitted, this runs in its own PID namespace, where no other processes start and end.

With `--trees`: the processor time of 30 readings, one a second, of 8 AMD and of 8 Intel cards with
20 processes each, from laid-out trees of /sys and /proc. Real drivers take longer to answer a read.

The others use the stub driver of the tests, with 1 and 8 GPUs (`--daemon`: 8), 20 processes each.
`--driver-us` adds this time to each driver call, because real calls take time. With `--real` they
read the cards of this machine instead. The benchmark asserts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from cost import apart  # noqa: E402
from cost_read import cpu, rss  # noqa: E402
from gpu_stub.driver_stub import FUNCTIONS, GIB, DriverStub  # noqa: E402
from gpu_stub.gpu_trees import Tree, crowded  # noqa: E402

PROCESSES = 20
SETTLE_S = 20.0  # a new daemon reads its surroundings more often
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

    def __init__(self, name: str, code: str, stub: DriverStub | None) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-c", code + SERVE],
            env=None if stub is None else stub.env(),
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

    def __init__(self, stub: DriverStub | None, **settings: object) -> None:
        from watchdog_app.machine.gpu.monitor import GpuMonitor

        env = None if stub is None else stub.env()
        self._watch = GpuMonitor(env=env, kernel_log=None, **settings)
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
        """Return the processor time of the reader's threads in seconds, in ns resolution."""
        pid = self._watch.reader_pid
        if pid is None:
            return 0.0
        threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
        return sum(int(each.read_text().split()[0]) for each in threads) / 1e9

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
    parser.add_argument("--real", action="store_true", help="the cards of this machine")
    parser.add_argument("--daemon", action="store_true", help="a whole daemon and its reader")
    parser.add_argument("--trees", action="store_true", help="cards of AMD and Intel")
    parser.add_argument("--seconds", type=float, default=30.0, help="with --daemon")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    if args.trees:
        figures = [measure_tree(driver, args.rounds) for driver in ("amdgpu", "xe")]
        for row in figures:
            print(
                f"8 cards of {row['driver']} with {PROCESSES} processes each: "
                f"{row['cpu_s_of_30']:.2f} s of processor time in 30 readings, "
                f"reader RSS {row['reader_rss_bytes'] / 1e6:.1f} MB"
            )
        if args.json:
            Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")
        return
    if args.daemon and not args.real:  # a driver names the processes by their pids outside
        apart(still=False)
    figures = []
    for cards in (8,) if args.daemon else (1, 8):
        with contextlib.ExitStack() as stack:
            stub = None if args.real else stack.enter_context(stubbed(cards, args.driver_us))
            if args.daemon:
                figures += measure_daemon(stub, args.seconds)
            else:
                figures += measure(stub, cards, args.rounds)
        if args.real:
            break
    (show_daemon if args.daemon else show)(figures)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


@contextlib.contextmanager
def stubbed(cards: int, driver_us: int) -> Iterator[DriverStub]:
    """A stub driver whose busy cards hold PROCESSES processes each."""
    crowd = [subprocess.Popen(["sleep", "1000"]) for _ in range(PROCESSES * cards)]
    try:
        with tempfile.TemporaryDirectory(prefix="watchdog-gpu-") as folder:
            stub = DriverStub(Path(folder), cards=cards)
            for card in range(cards):
                own = crowd[card * PROCESSES : (card + 1) * PROCESSES]
                stub.set(card, used=PROCESSES * GIB, utilization=80)
                stub.processes(card, [(each.pid, GIB) for each in own])
            for function in FUNCTIONS:
                stub.delay(function, driver_us)
            yield stub
    finally:
        for each in crowd:
            each.kill()
            each.wait()


def measure(stub: DriverStub | None, cards: int, rounds: int) -> list[dict[str, object]]:
    watchdog = Watchdog(stub)
    tools = [watchdog, Rival("gpustat", GPUSTAT, stub), Rival("nvitop", NVITOP, stub)]
    cpu_s_of: dict[str, list[float]] = {tool.name: [] for tool in tools}
    wall: dict[str, list[float]] = {tool.name: [] for tool in tools}
    calls: dict[str, int] = {tool.name: 0 for tool in tools}
    try:
        for _ in range(rounds):
            for tool in tools:
                if stub is not None:
                    stub.reset_calls()
                cpu_s, wall_s = tool.read()
                cpu_s_of[tool.name].append(cpu_s)
                wall[tool.name].append(wall_s)
                if stub is not None:
                    calls[tool.name] += sum(stub.calls().values())
        memory = watchdog.memory_bytes()
    finally:
        for tool in tools:
            tool.close()
    found: list[dict[str, object]] = []
    for name, spent in cpu_s_of.items():
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


def measure_tree(driver: str, rounds: int) -> dict[str, object]:
    """Measure readings of a crowded machine."""
    from watchdog_app.machine.gpu.backend import BACKENDS

    with tempfile.TemporaryDirectory(prefix="watchdog-gpu-") as folder:
        crowded(Tree(Path(folder)), driver, 8, PROCESSES)
        watchdog = Watchdog(None, root=folder, proc=f"{folder}/proc", backend=BACKENDS[1])
        try:
            spent = [watchdog.read()[0] for _ in range(rounds)]
            memory = watchdog.memory_bytes()
        finally:
            watchdog.close()
    return {
        "driver": driver,
        "cpu_s_of_30": 30 * statistics.fmean(spent),
        "reader_rss_bytes": memory,
    }


@contextlib.contextmanager
def running_daemon(env: dict[str, str]) -> Iterator[int]:
    """A daemon with folders of its own; its pid."""
    with tempfile.TemporaryDirectory(prefix="watchdog-gpu-") as folder:
        Path(folder, "config.toml").write_text("[notify]\ndesktop = false\n")
        own = {
            **env,
            "WATCHDOG_RUNTIME_DIR": f"{folder}/run",
            "WATCHDOG_STATE_DIR": f"{folder}/state",
            "WATCHDOG_CONFIG": f"{folder}/config.toml",
        }
        command = [sys.executable, "-m", "watchdog_app", "run"]
        with Path(folder, "log").open("ab") as log:
            daemon = subprocess.Popen(command, cwd=ROOT, env=own, stdout=log, stderr=log)
        try:
            yield daemon.pid
        finally:
            daemon.terminate()
            daemon.wait()


def reader_of(daemon: int) -> int | None:
    """The pid of a daemon's GPU reader."""
    for pid in Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split():
        if b"gpu.reader" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    return None


def measure_daemon(stub: DriverStub | None, seconds: float) -> list[dict[str, object]]:
    """The figures of a daemon with GPUs, its reader, and a daemon without GPUs."""
    reading = "nvmlDeviceGetMemoryInfo_v2"
    without = {**os.environ, "LD_LIBRARY_PATH": ""}
    with_cards = dict(os.environ) if stub is None else stub.env()
    with contextlib.ExitStack() as stack:
        pids = {"daemon": stack.enter_context(running_daemon(with_cards))}
        if stub is not None:
            pids["daemon, no GPU"] = stack.enter_context(running_daemon(without))
        time.sleep(SETTLE_S)
        reader = reader_of(pids["daemon"])
        if reader is None:
            raise SystemExit("the daemon has started no reader: it found no driver")
        pids["reader"] = reader
        before = {name: cpu(pid) for name, pid in pids.items()}
        if stub is not None:
            stub.reset_calls()
        began = time.monotonic()
        for second in range(round(seconds)):
            if stub is not None:
                show_use(stub, second)
            time.sleep(max(0.0, began + second + 1 - time.monotonic()))
        passed_s = time.monotonic() - began
        spent = {name: cpu(pid) - before[name] for name, pid in pids.items()}
        readings = None if stub is None else stub.calls()[reading] / 8
        if readings is not None and reader_of(pids["daemon"]) != reader:
            raise SystemExit("the reader was restarted")
        return [
            {
                "process": name,
                "cpu_s": spent[name],
                "seconds": passed_s,
                "rss_bytes": rss(pid),
                "readings": readings,
            }
            for name, pid in pids.items()
        ]


def show_use(stub: DriverStub, second: int) -> None:
    """Let each process of the cards use them, differently from second to second."""
    for card in range(8):
        running = stub.running(card)
        stub.samples(card, {pid: (second + place) % 5 for place, pid in enumerate(running)})


def show_daemon(figures: list[dict[str, object]]) -> None:
    print("process         cpu s   of a core     RSS")
    for row in figures:
        share = row["cpu_s"] / row["seconds"]
        memory = row["rss_bytes"] / 1e6
        print(f"{row['process']:14}  {row['cpu_s']:5.2f}  {share:10.2%}  {memory:4.1f} MB")
    both = sum(row["cpu_s"] for row in figures if row["process"] in ("daemon", "reader"))
    seconds, readings = figures[0]["seconds"], figures[0]["readings"]
    counted = "" if readings is None else f", {readings:.0f} readings of each GPU"
    print(f"daemon and reader: {both:.2f} s of processor time in {seconds:.0f} s{counted}")


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
