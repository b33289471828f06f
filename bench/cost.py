"""
What watching costs: the daemon at rest, and `watchdog status` beside its kind.

    python bench/cost.py [--seconds 60] [--processes 300] [--python 23] [--json FILE]

Starts as many idle processes as it takes to have that many on the machine, 23
of them Python, watches the daemon for a while, then starts each command in
turn, the same number of times, round after round: what else the machine does
meanwhile hits all of them alike. Nothing here asserts; the figures are read by people.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

ROUNDS = 7
SETTLE_S = 12.0  # newcomers are looked at more closely in their first seconds
BUDGET_RSS_BYTES = 25e6
BUDGET_CPU_PERCENT = 0.3
IDLE = "import time\nwhile True: time.sleep(30)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=300)
    parser.add_argument("--python", type=int, default=23)
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="watchdog-cost-"))
    crowd: list[int] = []
    daemon: subprocess.Popen[bytes] | None = None
    figures: dict[str, object] = {}
    try:
        crowd = start_crowd(args.processes, args.python)
        env = environment(folder)
        daemon = start_daemon(env)
        figures["daemon"] = watch_daemon(daemon, env, args.seconds)
        figures["commands"] = time_commands(env)
    finally:
        if daemon is not None:
            daemon.terminate()
            daemon.wait()
        for pid in crowd:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
    show(figures)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def start_crowd(processes: int, pythons: int) -> list[int]:
    """Idle processes until there are that many on the machine, nobody's children. Their pids."""
    crowd = spawn(pythons, [sys.executable, "-c", IDLE])
    missing = processes - count_processes()
    return crowd + spawn(max(0, missing), [shutil.which("sleep") or "sleep", "100000"])


def spawn(count: int, argv: list[str]) -> list[int]:
    """Each a task of its own: orphans in sessions of their own, as kernels and jobs are."""
    loop = f'for i in $(seq {count}); do setsid "$@" </dev/null >/dev/null 2>&1 & echo $!; done'
    done = subprocess.run(["sh", "-c", loop, "sh", *argv], capture_output=True, check=True)
    return [int(word) for word in done.stdout.split()]


def count_processes() -> int:
    return sum(name.isdigit() for name in os.listdir("/proc"))


def environment(folder: Path) -> dict[str, str]:
    (folder / "config.toml").write_text(
        "[actions]\nnotify = false\ncheckpoint = false\npause = false\n"
    )
    return {
        **os.environ,
        "WATCHDOG_RUNTIME_DIR": str(folder / "run"),
        "WATCHDOG_STATE_DIR": str(folder / "state"),
        "WATCHDOG_CONFIG": str(folder / "config.toml"),
    }


def start_daemon(env: dict[str, str]) -> subprocess.Popen[bytes]:
    path = Path(env["WATCHDOG_STATE_DIR"] + ".log")
    with path.open("wb") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "watchdog_app", "run"], env=env, stdout=log, stderr=log
        )
    while not os.path.exists(os.path.join(env["WATCHDOG_RUNTIME_DIR"], "daemon.sock")):
        if daemon.poll() is not None:
            sys.exit(path.read_text())
        time.sleep(0.05)
    return daemon


def watch_daemon(
    daemon: subprocess.Popen[bytes], env: dict[str, str], seconds: float
) -> dict[str, float]:
    """Memory and processor time over `seconds` at rest, read from outside."""
    time.sleep(SETTLE_S)
    cpu_s, wakes, ticks = cpu(daemon.pid), switches(daemon.pid), status(env)["daemon"]["ticks"]
    began = time.monotonic()
    highest = 0
    while time.monotonic() - began < seconds:
        time.sleep(1.0)
        highest = max(highest, rss(daemon.pid))
    took = time.monotonic() - began
    found = status(env)
    return {
        "seconds": took,
        "processes": count_processes(),
        "tasks": len(found["processes"]),
        "ticks_per_s": (found["daemon"]["ticks"] - ticks) / took,
        "rss_bytes": highest,
        "pss_bytes": pss(daemon.pid),
        "cpu_percent": 100 * (cpu(daemon.pid) - cpu_s) / took,
        "voluntary_switches_per_s": (switches(daemon.pid) - wakes) / took,
        "threads": len(os.listdir(f"/proc/{daemon.pid}/task")),
    }


def status(env: dict[str, str]) -> dict:
    out = subprocess.run(
        [*watchdog(), "status", "--json"], env=env, capture_output=True, check=False
    ).stdout
    return json.loads(out)


def watchdog() -> list[str]:
    """The command as it is installed beside this Python."""
    return [os.path.join(os.path.dirname(sys.executable), "watchdog")]


def cpu(pid: int) -> float:
    """Processor time of all threads, to the nanosecond where the kernel tells it."""
    try:
        total = 0
        for thread in os.listdir(f"/proc/{pid}/task"):
            total += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
    except (OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total / 1e9


def switches(pid: int) -> int:
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        for line in Path(f"/proc/{pid}/task/{thread}/status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                total += int(line.split()[1])
    return total


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def time_commands(env: dict[str, str]) -> dict[str, dict[str, float | str]]:
    """Wall time of each command, start to end; those that are not installed are left out."""
    folder = os.path.dirname(sys.executable)
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "watchdog status": [*watchdog(), "status"],
        "watchdog status --json": [*watchdog(), "status", "--json"],
        "nvitop -1": [os.path.join(folder, "nvitop"), "-1"],
        "gpustat --json": [os.path.join(folder, "gpustat"), "--json"],
        "glances --stdout": [
            os.path.join(folder, "glances"),
            "--stdout", "cpu.user,mem.used,load", "--stop-after", "1",
        ],
    }  # fmt: skip
    commands = {name: argv for name, argv in commands.items() if os.path.exists(argv[0])}
    times: dict[str, list[float]] = {name: [] for name in commands}
    codes: dict[str, int] = {}
    for _ in range(ROUNDS):
        for name, argv in commands.items():
            began = time.perf_counter()
            done = subprocess.run(
                argv, env=env, capture_output=True, stdin=subprocess.DEVNULL, check=False
            )
            times[name].append(time.perf_counter() - began)
            codes[name] = done.returncode
    own = statistics.median(times["watchdog status"])
    return {
        name: {
            "median_s": statistics.median(taken),
            "fastest_s": min(taken),
            "over_watchdog_status": statistics.median(taken) / own,
            "exit_code": codes[name],
        }
        for name, taken in times.items()
    }


def show(figures: dict[str, object]) -> None:
    daemon = figures["daemon"]
    assert isinstance(daemon, dict)
    print(
        f"\nDaemon at rest for {daemon['seconds']:.0f} s, {daemon['processes']:.0f} processes on "
        f"the machine, {daemon['tasks']:.0f} tasks watched, {daemon['ticks_per_s']:.2f} looks/s\n"
    )
    print("| | measured | budget |")
    print("|---|---|---|")
    print(
        f"| RSS, highest | {daemon['rss_bytes'] / 1e6:.1f} MB | {BUDGET_RSS_BYTES / 1e6:.0f} MB |"
    )
    print(f"| PSS | {daemon['pss_bytes'] / 1e6:.1f} MB | |")
    print(f"| CPU, of one core | {daemon['cpu_percent']:.2f} % | {BUDGET_CPU_PERCENT} % |")
    per_look_ms = 10 * daemon["cpu_percent"] / daemon["ticks_per_s"]
    print(f"| CPU, for each look | {per_look_ms:.1f} ms | |")
    print(f"| wake-ups a second | {daemon['voluntary_switches_per_s']:.1f} | |")
    print(f"| threads | {daemon['threads']:.0f} | |")
    if daemon["ticks_per_s"] > 1.2:
        print(
            "\nNot at rest: something else on this machine neared a limit, and was looked at more"
        )
        print("often than once a second. The figure for each look is the one to go by.")
    commands = figures["commands"]
    assert isinstance(commands, dict)
    print(f"\nStart to end, median and fastest of {ROUNDS} rounds\n")
    print("| command | median | fastest | over `watchdog status` |")
    print("|---|---|---|---|")
    for name, each in commands.items():
        note = f" (exit code {each['exit_code']})" if each["exit_code"] else ""
        print(
            f"| `{name}`{note} | {1000 * each['median_s']:.0f} ms | "
            f"{1000 * each['fastest_s']:.0f} ms | {each['over_watchdog_status']:.2f}x |"
        )


if __name__ == "__main__":
    main()
