"""
Run one of the forecast's programs in its own memory group and record its memory.

    python bench/forecast_record.py FOLDER PROGRAMS.py KIND LIMIT_MB SEED [--python PYTHON]

PROGRAMS.py is forecast_programs.py, forecast_more_failing.py and the like; PYTHON has the libraries
that KIND needs. `watchdog record` writes FOLDER/KIND-SEED.csv.gz and .json, which forecast_score.py
and forecast_interval.py read. Needs a memory group (root, or systemd).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from watchdog_app.guard.backends import create


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    for name in ("folder", "programs", "kind", "limit_mb", "seed"):
        ap.add_argument(name)
    ap.add_argument("--python", default=sys.executable)
    ap.add_argument("--for", dest="for_s", default="160s", help="ends it after so long")
    a = ap.parse_args()
    os.makedirs(a.folder, exist_ok=True)
    path = os.path.join(a.folder, f"{a.kind}-{a.seed}.csv.gz")
    group = create(f"forecast-{os.getpid()}", int(a.limit_mb) << 20)
    command = [a.python, a.programs, a.kind, a.limit_mb, a.seed]
    program = None
    try:
        program = subprocess.Popen(
            group.command(command), stdout=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(0.3)  # until the shell has executed the program
        record = [sys.executable, "-m", "watchdog_app", "record", str(program.pid), "-o", path]
        subprocess.run([*record, "--force", "--for", a.for_s], check=True)
    finally:
        group.close()
        if program is not None:
            program.wait()


if __name__ == "__main__":
    main()
