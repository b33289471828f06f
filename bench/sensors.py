"""
Measure one sample of a machine with 300 processes, 23 of them Python, compared with psutil.

Starts the missing processes itself. Then it measures the sensors at rest and psutil for the same
figures, both with the same clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import psutil

from watchdog_app.core.model.readings import readings
from watchdog_app.core.model.tasks import group_processes
from watchdog_app.machine.sensors.machine import LinuxMachine

PYTHONS = 23
PROCESSES = 300


def start_processes() -> list[subprocess.Popen[bytes]]:
    """Start idle processes until there are enough; the caller kills them."""
    pythons = sum("python" in (process.info["exe"] or "") for process in processes_with_exe())
    started = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        for _ in range(max(0, PYTHONS + 1 - pythons))  # the daemon does not watch its own process
    ]
    missing = PROCESSES - len(psutil.pids())
    started += [subprocess.Popen(["sleep", "3600"]) for _ in range(max(0, missing))]
    time.sleep(1.0)
    return started


def processes_with_exe() -> list[psutil.Process]:
    """Return all processes that psutil sees, with their executable."""
    return list(psutil.process_iter(["exe"]))


def naive() -> int:
    """Ask psutil for everything about every process, as a first version would in each tick."""
    names = ["pid", "name", "cmdline", "memory_info", "cpu_times", "status", "ppid"]
    found = [process.info for process in psutil.process_iter(names)]
    psutil.virtual_memory()
    psutil.swap_memory()
    return len(found)


def careful() -> int:
    """Use psutil as well as possible: only the Python processes, each with oneshot()."""
    found = 0
    for process in psutil.process_iter():
        if process.pid in _PYTHON_PIDS:
            with process.oneshot():
                process.memory_info()
                process.cpu_times()
                process.status()
                process.ppid()
            found += 1
    psutil.virtual_memory()
    psutil.swap_memory()
    return found


_PYTHON_PIDS: set[int] = set()


def measure(call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """
    Return the CPU time of a call in ms: median and 90th percentile.

    CPU time excludes other load on the machine.
    """
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.thread_time()
        call()
        times.append((time.thread_time() - begun) * 1e3)
    times.sort()
    return statistics.median(times), times[int(len(times) * 0.9)]


def main() -> int:
    """Print the table; return 1 if the median is above the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--target-ms", type=float, default=0.8)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each method")
    options = parser.parse_args()
    started = start_processes()
    machine = LinuxMachine()
    try:
        now_s = time.monotonic()

        def tick() -> None:
            # Advance the clock by a second a tick, as for a daemon at rest.
            nonlocal now_s
            now_s += 1.0
            machine.sample(now_s, time.time())

        for _ in range(20):  # the first ticks read more about each process
            tick()
        snapshot = machine.sample(now_s + 1, time.time())
        _PYTHON_PIDS.update(key.pid for key in snapshot.infos)
        sample = measure(tick, options.seconds)
        core = measure(
            lambda: readings(snapshot, group_processes(snapshot.processes, snapshot.infos)), 0.5
        )
        rows = {
            "one look (processes, memory, groups)": sample,
            "tasks and ceilings of it": core,
            "psutil, the Python processes alone": measure(careful, options.seconds),
            "psutil, all processes": measure(naive, options.seconds),
        }
        result = {
            "processes": len(psutil.pids()),
            "watched": len(snapshot.processes),
            "groups": len(snapshot.cgroups),
            "median_ms": {name: row[0] for name, row in rows.items()},
            "p90_ms": {name: row[1] for name, row in rows.items()},
        }
    finally:
        machine.close()
        for process in started:
            process.kill()
        for process in started:
            process.wait()
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{result['processes']} processes, {result['watched']} watched, pid {os.getpid()}")
        for name, (median, p90) in rows.items():
            ratio = median / sample[0]
            print(f"{name:40} {median:8.3f} ms   90 % under {p90:8.3f} ms   x{ratio:.1f}")
    return 0 if sample[0] <= options.target_ms else 1


if __name__ == "__main__":
    sys.exit(main())
