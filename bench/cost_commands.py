"""Wall time of commands from start to end: `watchdog status` compared with others."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = 7


def time_commands(watchdog: list[str], env: dict[str, str]) -> dict[str, dict[str, float | str]]:
    """Return the wall time of each command from start to end; skip missing commands."""
    # Compile to a cache, as pip does at installation; the source tree stays clean.
    env = {name: value for name, value in env.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="cost-")
    try:
        return _time(watchdog, env)
    finally:
        shutil.rmtree(env["PYTHONPYCACHEPREFIX"], ignore_errors=True)


def _time(watchdog: list[str], env: dict[str, str]) -> dict[str, dict[str, float | str]]:
    folder = os.path.dirname(sys.executable)
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "watchdog status": [*watchdog, "status"],
        "watchdog status --json": [*watchdog, "status", "--json"],
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
    for number in range(ROUNDS + 1):
        for name, argv in commands.items():
            began = time.perf_counter()
            done = subprocess.run(
                argv, env=env, capture_output=True, stdin=subprocess.DEVNULL, check=False
            )
            if number:  # the first round may compile
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


def show_commands(commands: object) -> None:
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
