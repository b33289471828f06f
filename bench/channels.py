"""
Measure what the channels cost a daemon at rest: all off, and all on, in the same run.

    nice -n -10 python bench/channels.py [--seconds 60] [--rounds 3] [--python 20] [--before FOLDER]

On are ntfy with answers, Apprise and the textfile. The ntfy server is real, or is said to be
missing. All daemons watch the same idle processes at the same time, in a PID namespace of their
own and with a /proc/meminfo that does not move. --before is a checkout to compare with. Helpers
are processes of their own and are not counted; their number is printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cost import IDLE, SETTLE_S, apart
from cost_read import cpu, rss

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
OFF = "[actions]\ncheckpoint = false\npause = false\n[notify]\ndesktop = false\n"
ON = """[notify.ntfy]
url = "{url}"
topic = "alerts"
token = "{token}"
answers = true
[notify.apprise]
urls = ["json://127.0.0.1:9/"]
[metrics]
textfile = "{folder}/watchdog.prom"
"""


def main() -> None:
    from support.ntfy import Ntfy

    parser = argparse.ArgumentParser(description="Measure what channels cost at rest.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", type=int, default=20)
    parser.add_argument("--before", type=Path)
    args = parser.parse_args()
    apart(still=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        server = Ntfy(folder / "ntfy")
        idle = [subprocess.Popen([sys.executable, "-c", IDLE]) for _ in range(args.python)]
        for kind in ("before", "off", "on"):
            (folder / kind).mkdir(mode=0o700)
        on = ON.format(url=server.url, token=server.token, folder=folder / "on")
        ways = {"off": (ROOT, OFF), "on": (ROOT, OFF + on)}
        if args.before is not None:
            ways = {"before": (args.before, OFF), **ways}
        found: dict[str, list[tuple[float, float, float]]] = {each: [] for each in ways}
        for number in range(args.rounds):
            print(f"round {number + 1}", flush=True)
            for kind, figures in measure(folder, ways, args.seconds).items():
                found[kind].append(figures)
        for kind, rows in found.items():
            private, resident, spent = (statistics.median(each) for each in zip(*rows, strict=True))
            spread = max(row[0] for row in rows) - min(row[0] for row in rows)
            print(
                f"{kind:7} private {private / 1e6:.2f} MB (spread {spread / 1e6:.2f}), "
                f"RSS {resident / 1e6:.2f} MB, {spent * 1000:.0f} ms a minute"
            )
        server.stop()
        for each in idle:
            each.kill()
            each.wait()


def measure(
    folder: Path, ways: dict[str, tuple[Path, str]], seconds: float
) -> dict[str, tuple[float, float, float]]:
    """Private and resident bytes, and seconds of processor time a minute, of each daemon."""
    daemons = {}
    for kind, (code, config) in ways.items():
        own = folder / kind
        (own / "config.toml").write_text(config)
        env = {
            **os.environ,
            "PYTHONPATH": str(code),
            "WATCHDOG_RUNTIME_DIR": str(own / "run"),
            "WATCHDOG_STATE_DIR": str(own / "state"),
            "WATCHDOG_CONFIG": str(own / "config.toml"),
        }
        words = [sys.executable, "-m", "watchdog_app", "run"]
        daemons[kind] = subprocess.Popen(words, env=env, cwd=own, stderr=subprocess.DEVNULL)
    time.sleep(SETTLE_S)
    before = {kind: cpu(each.pid) for kind, each in daemons.items()}
    time.sleep(seconds)
    found = {}
    for kind, each in daemons.items():
        spent = (cpu(each.pid) - before[kind]) * 60 / seconds
        found[kind] = (private(each.pid), float(rss(each.pid)), spent)
        children = Path(f"/proc/{each.pid}/task/{each.pid}/children").read_text().split()
        print(f"  {kind}: {len(children)} helpers", [round(f / 1e6, 2) for f in found[kind][:2]])
    for each in daemons.values():
        each.terminate()
        each.wait()
    return found


def private(pid: int) -> float:
    """Bytes that only this process holds."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024.0 for line in lines if line.startswith("Private_"))


if __name__ == "__main__":
    main()
