"""
Run one of the forecast's programs in its own memory group and record its memory.

    python bench/forecast_record.py FOLDER PROGRAMS.py KIND LIMIT_MB SEED [--python PYTHON]

PROGRAMS.py is forecast_programs.py, forecast_more_failing.py and the like; PYTHON has the libraries
that KIND needs. It writes FOLDER/KIND-SEED.csv.gz and .json, which forecast_score.py and
forecast_interval.py read. Needs a memory group (root, or systemd).
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import subprocess
import sys
import time

from watchdog_app.guard.backends import create

HZ = 10


def record(path, group, program, limit, for_s):
    """Write what the group uses, ten times a second, and how the program ended."""
    began, now, killed_s = time.monotonic(), 0.0, None
    with gzip.open(f"{path}.csv.gz", "wt", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("t", "used", "limit"))
        while program.poll() is None and now < for_s and killed_s is None:
            table.writerow((round(now, 3), group.usage().held_bytes, limit))
            time.sleep(1 / HZ)
            now = time.monotonic() - began
            if group.oom_kills():
                killed_s = round(now, 3)
    outcome = "oom" if killed_s is not None else "running" if program.poll() is None else "ok"
    with open(f"{path}.json", "w", encoding="utf-8") as file:
        json.dump({"outcome": outcome, "oom_time_s": killed_s, "end_time_s": round(now, 3)}, file)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    for name in ("folder", "programs", "kind", "limit_mb", "seed"):
        ap.add_argument(name)
    ap.add_argument("--python", default=sys.executable)
    ap.add_argument("--for", dest="for_s", type=float, default=160, help="seconds at most")
    a = ap.parse_args()
    os.makedirs(a.folder, exist_ok=True)
    path = os.path.join(a.folder, f"{a.kind}-{a.seed}")
    group = create(f"forecast-{os.getpid()}", int(a.limit_mb) << 20)
    command = [a.python, a.programs, a.kind, a.limit_mb, a.seed]
    program = None
    try:
        program = subprocess.Popen(
            group.command(command), stdout=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(0.3)  # until the shell has executed the program
        record(path, group, program, int(a.limit_mb) << 20, a.for_s)
    finally:
        group.close()
        if program is not None:
            program.wait()


if __name__ == "__main__":
    main()
