"""
Measure what the hook of `agent enable` and `exec` costs a program without a framework.

    python bench/agent_hook.py [--starts 40]

Each start is a fresh interpreter with compiled files in the page cache. It switches the hook on,
then imports argparse, and times both, so that both see the same load of the machine. Then it times
the hook for each module that is imported later.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

START = """
import json, sys, time
try:
    import no_such_module  # the folders of sys.path are known from here on
except ImportError:
    a = time.perf_counter()
from watchdog_app.agent import hook
hook.switch_on()
b = time.perf_counter()
import argparse
c = time.perf_counter()
for _ in range(10000):
    hook._finder.find_spec("json", None, None)
d = time.perf_counter()
print(json.dumps([b - a, c - b, (d - c) / 10000, "numpy" in sys.modules]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n")[0])
    parser.add_argument("--starts", type=int, default=40)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        rows = []
        for _ in range(args.starts + 1):
            done = subprocess.run(
                [sys.executable, "-c", START], env=env, capture_output=True, check=True
            )
            rows.append(json.loads(done.stdout))
    hook, other, each, _ = (statistics.median(column) for column in zip(*rows[1:], strict=True))
    print(f"switching the hook on     {hook * 1e3:.2f} ms, budget 1 ms")
    print(f"importing argparse        {other * 1e3:.2f} ms: the hook is {hook / other:.0%} of it")
    print(f"each module after that    {each * 1e6:.2f} µs")
    print(f"numpy imported for it     {'yes' if any(row[3] for row in rows) else 'no'}")


if __name__ == "__main__":
    main()
