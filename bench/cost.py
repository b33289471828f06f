"""
Measure what watching costs: the daemon at rest and `watchdog status`, compared with other tools.

    nice -n -10 python bench/cost.py [--seconds 60] [--rounds 2] [--sizes 300,1000,5000]
                                     [--python 23] [--still] [--gate] [--json FILE]

For each size the benchmark starts as many idle processes, some of them Python. All tools watch them
at the same time, so that other load affects all tools equally. If permitted, this runs in its own
PID namespace, where no other processes start and end. The benchmark reads each tool's processor
time from outside, over several spans, and prints the medians. With --still /proc/meminfo is a copy
that does not change, for a machine with other load. The number of living processes is counted
before and after, and printed. A start or an end that takes too long ends the run. With the settings
above a run takes 18 to 19 minutes. With `nice` all measured processes have that nice value, and
wait less for others. The last runs have only the daemon and nohang: glances and psutil evict the
processors' caches. Missing tools are skipped and named. The benchmark asserts nothing; people read
the figures. With --gate it measures only the daemon, at 300 and 5,000 processes. The exit code is 1
if it costs more than BUDGET_CPU_MS a minute or holds more than BUDGET_RSS_BYTES.
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

from cost_commands import show_commands, time_commands
from cost_read import cpu, pss, rss, switches, syscalls
from cost_shown import show_slopes, show_world

# the daemon samples new processes more often, and all processes in the first minute
SETTLE_S = 75.0
# part of SETTLE_S: `status --json` is a new Python process that the daemon samples, too
QUESTION_S = 12.0
PATIENCE_S = 60.0  # for the idle processes to start or to end
BUDGET_RSS_BYTES = 24e6
BUDGET_CPU_MS = 90  # per minute
IDLE = "import signal\nsignal.pause()"
CROWD = """
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int many = atoi(argv[1]), begun = 0, told;
    pid_t *pids = calloc(many + 1, sizeof *pids), pid;
    sigset_t end;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    sigprocmask(SIG_BLOCK, &end, NULL);
    while (begun < many && (pid = fork()) >= 0) {
        if (pid == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); setsid(); for (;;) pause(); }
        pids[begun++] = pid;
    }
    sigwait(&end, &told);
    /* Nobody else takes note of their end, and who has ended is listed until somebody does. */
    for (int i = 0; i < begun; i++) kill(pids[i], SIGKILL);
    while (wait(NULL) > 0) ;
    return 0;
}
"""
PSUTIL = """
import psutil, time
while True:
    for process in psutil.process_iter(["pid", "name", "username", "memory_info", "cpu_percent"]):
        pass
    time.sleep(1)
"""
NVITOP = """
import time
from nvitop import ResourceMetricCollector
collector = ResourceMetricCollector(root_pids={1})
with collector(tag="all"):
    while True:
        collector.collect()
        time.sleep(1)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--settle", type=float, default=SETTLE_S)
    parser.add_argument("--sizes", default="300,1000,5000")
    parser.add_argument("--python", type=int, default=23)
    parser.add_argument("--more-python", type=int, default=100, help="for the slope")
    parser.add_argument("--still", action="store_true", help="memory that does not move")
    parser.add_argument("--gate", action="store_true", help="the daemon alone, by its budget")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    apart(args.still)
    sizes = [int(word) for word in args.sizes.split(",")]
    figures: dict[str, object] = {"still": args.still, "worlds": []}
    folder = Path(tempfile.mkdtemp(prefix="watchdog-cost-"))
    try:
        if args.gate:
            sys.exit(gate(folder, args))
        tools = installed(folder)
        worlds = [(size, args.python, tools) for size in sizes]
        own = {name: tools[name] for name in ("watchdog", "nohang") if name in tools}
        worlds.append((sizes[0], args.python, own))
        worlds.append((sizes[0] + args.more_python, args.python + args.more_python, own))
        for size, python, watched_by in worlds:
            world = watch(folder, size, python, watched_by, args)
            figures["worlds"].append(world)  # type: ignore[attr-defined]
            show_world(world)
            sys.stdout.flush()
        show_slopes(figures["worlds"], args.more_python)
        env = environment(folder / "commands")
        daemon = start([*watchdog(), "run"], env, folder)
        try:
            served(env)
            figures["commands"] = time_commands(watchdog(), env)
        finally:
            end([daemon])
        show_commands(figures["commands"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def gate(folder: Path, args: argparse.Namespace) -> int:
    """Return the exit code: 1 if the daemon at rest exceeds its budget."""
    over = False
    for size in (300, 5000):
        world = watch(folder, size, args.python, {"watchdog": [*watchdog(), "run"]}, args)
        show_world(world)
        found = world["tools"]["watchdog"]  # type: ignore[index]
        over |= found["cpu_ms_per_min"] > BUDGET_CPU_MS or found["rss_bytes"] > BUDGET_RSS_BYTES
    print(
        f"\n{'over' if over else 'within'} {BUDGET_CPU_MS} ms and {BUDGET_RSS_BYTES / 1e6:.0f} MB"
    )
    return int(over)


def apart(still: bool) -> None:
    """Restart this program in its own PID namespace, if permitted."""
    if os.environ.get("COST_APART"):
        if still:
            copy = tempfile.NamedTemporaryFile(delete=False)  # noqa: SIM115
            copy.write(Path("/proc/meminfo").read_bytes())
            copy.close()
            subprocess.run(["mount", "--bind", copy.name, "/proc/meminfo"], check=True)
        return
    way = ["unshare", "-pfm", "--mount-proc", "--kill-child"]
    if subprocess.run([*way, "true"], capture_output=True, check=False).returncode:
        print("No process namespace can be made here: others on this machine are seen too.")
        if still:
            sys.exit("--still needs one (run as root).")
        return
    os.environ["COST_APART"] = "1"
    os.execvp(way[0], [*way, sys.executable, *sys.argv])


def installed(folder: Path) -> dict[str, list[str]]:
    """
    Return the command of every available tool; nohang and earlyoom are downloaded, not installed.
    """
    beside = os.path.dirname(sys.executable)
    found = {
        "watchdog": [*watchdog(), "run"],
        "psutil loop": [sys.executable, "-c", PSUTIL],
        "nvitop collector": [sys.executable, "-c", NVITOP],
        "glances": [f"{beside}/glances", "--stdout", "cpu.user,mem.used,load"],
    }
    # Unpack the packages: installing them would start the tools, and these kill processes.
    root = Path(beside).parent / "neighbours/root"  # from packaging/setup.sh test
    if not (root / "usr/sbin/nohang").exists():
        root = folder / "root"
        apt = ["apt-get", "download", "-qq", "nohang", "earlyoom"]
        with suppress(OSError):
            subprocess.run(apt, cwd=folder, capture_output=True, check=False)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(root)], check=False)
    if (root / "usr/sbin/nohang").exists():
        found["nohang"] = [
            "/usr/bin/python3", str(root / "usr/sbin/nohang"),
            "--config", str(root / "etc/nohang/nohang.conf"), "--monitor",
        ]  # fmt: skip
    if (root / "usr/bin/earlyoom").exists():
        found["earlyoom"] = [str(root / "usr/bin/earlyoom"), "-m", "1,1", "-r", "3600", "--dryrun"]
    if not os.path.exists(found["glances"][0]):
        del found["glances"]
    for name in ("nohang", "earlyoom", "glances"):
        if name not in found:
            print(f"{name} is left out: it is not installed, and apt-get cannot fetch it.")
    return found


def watch(
    folder: Path, size: int, python: int, tools: dict[str, list[str]], args: argparse.Namespace
) -> dict[str, object]:
    """Run all tools at once over `size` processes; return the figures of each."""
    env = environment(Path(tempfile.mkdtemp(dir=folder)))
    crowd: list[subprocess.Popen[bytes]] = []
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        crowd = start_crowd(folder, size, python)
        running = {name: start(argv, env, folder) for name, argv in tools.items()}
        served(env)
        time.sleep(max(0.0, args.settle - QUESTION_S))
        ticks = status(env)["daemon"]["samples"]
        time.sleep(QUESTION_S)
        gone = [name for name, each in running.items() if each.poll() is not None]
        for name in gone:
            said = (folder / "tools.log").read_text(errors="replace").strip()[-300:]
            print(f"{name} is left out: it ended by itself ({running[name].returncode}). {said}")
            del running[name]
        spans: dict[str, list[tuple[float, float]]] = {name: [] for name in running}
        alive = count_living()
        for _ in range(args.rounds):
            before = {name: (cpu(p.pid), switches(p.pid)) for name, p in running.items()}
            began = time.monotonic()
            time.sleep(args.seconds)
            per_minute = 60 / (time.monotonic() - began)
            for name, p in running.items():
                spans[name].append(
                    (
                        (cpu(p.pid) - before[name][0]) * per_minute * 1000,
                        (switches(p.pid) - before[name][1]) * per_minute,
                    )
                )
        found: dict[str, dict[str, float | None]] = {}
        for name, p in running.items():
            found[name] = {
                "cpu_ms_per_min": statistics.median(span[0] for span in spans[name]),
                "wakeups_per_min": statistics.median(span[1] for span in spans[name]),
                "rss_bytes": rss(p.pid),
                "pss_bytes": pss(p.pid),
                "syscalls_per_min": None,
            }
        # Trace last, because tracing slows down. Subtract the sample that the status command
        # caused.
        samples = status(env)["daemon"]["samples"] - ticks - 1
        if len(running) > 2:
            for name, calls in syscalls({name: p.pid for name, p in running.items()}).items():
                found[name]["syscalls_per_min"] = calls
        ended = [str(each.args) for each in crowd if each.poll() is not None]
        return {
            "processes": alive,
            "living_at_the_end": count_living(),
            "zombies": count_processes() - count_living(),
            "crowd_ended": ended,
            "python": python,
            "samples_per_min": samples * 60 / args.seconds / args.rounds,
            "tools": found,
        }
    finally:
        end([*running.values(), *crowd])


def start_crowd(folder: Path, size: int, python: int) -> list[subprocess.Popen[bytes]]:
    """Start idle processes until there are `size`; they end with this process."""
    crowd = [
        subprocess.Popen([sys.executable, "-c", IDLE], start_new_session=True)
        for _ in range(python)
    ]
    time.sleep(2)
    program = folder / "crowd"
    if not program.exists():
        subprocess.run(
            ["cc", "-O1", "-o", str(program), "-x", "c", "-"], input=CROWD.encode(), check=True
        )
    missing = max(0, size - count_living() - 1)
    crowd.append(subprocess.Popen([str(program), str(missing)]))
    deadline = time.monotonic() + PATIENCE_S
    while count_living() < size - 1:  # outside a namespace other processes may start and end
        if time.monotonic() > deadline:
            end(crowd)
            sys.exit(f"Only {count_living()} of {size} processes could be started.")
        time.sleep(0.2)
    return crowd


def count_living() -> int:
    """Count the processes without zombies."""
    found = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
                found += state not in "ZXx"
    return found


def count_processes() -> int:
    return sum(name.isdigit() for name in os.listdir("/proc"))


def environment(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    # Leave every feature on, except desktop notifications.
    (folder / "config.toml").write_text("[notify]\ndesktop = false\n")
    return {
        **os.environ,
        "WATCHDOG_RUNTIME_DIR": str(folder / "run"),
        "WATCHDOG_STATE_DIR": str(folder / "state"),
        "WATCHDOG_CONFIG": str(folder / "config.toml"),
    }


def start(argv: list[str], env: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "tools.log").open("ab") as log:
        return subprocess.Popen(argv, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    # In its own namespace this process is init, so it reaps the tools' orphans.
    deadline = time.monotonic() + PATIENCE_S
    while os.getpid() == 1 and count_processes() > 1 and time.monotonic() < deadline:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.2)


def served(env: dict[str, str]) -> None:
    deadline = time.monotonic() + 30
    while not os.path.exists(os.path.join(env["WATCHDOG_RUNTIME_DIR"], "daemon.sock")):
        if time.monotonic() > deadline:
            sys.exit("The daemon did not start.")
        time.sleep(0.05)


def status(env: dict[str, str]) -> dict:
    out = subprocess.run(
        [*watchdog(), "status", "--json"], env=env, capture_output=True, check=False
    ).stdout
    return json.loads(out)


def watchdog() -> list[str]:
    """Return the command installed next to this Python."""
    return [os.path.join(os.path.dirname(sys.executable), "watchdog")]


if __name__ == "__main__":
    main()
