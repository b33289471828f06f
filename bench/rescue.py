"""
Measure rescues: leaks and jumps in real trainings, with a guard and without.

    python bench/rescue.py [--runs 3] [--trainings keras,torch-found] [--rows 5,jump-data]
                           [--ways without,guard] [--step-ms 50] [--state-mb 20] [--throughput]
                           [--json FILE]

Each run is a training (tests/e2e/programs). Its limit leaves room for 6 s of its leak, at least 40
MB. Without a guard the limit is an ordinary memory group, with a daemon that must not pause. With a
guard it is `watchdog exec --limit` with the defaults, without a daemon. A jump is one array of
three times the limit. Afterwards the checksums of every rescue are compared, and a new run resumes
from the newest one, as a user would. Its next 50 steps pass two ends of an epoch. Their losses must
be identical, bit for bit, to those of an uninterrupted run without an agent. The benchmark ends a
stopped program, because no user decides.

Columns, each without a guard and with one
  rescued  runs whose rescue resumed with identical losses, of all runs
  killed   runs in which the kernel killed a process
  s        guard: seconds from the limit, or from a refused jump, to the rescue (0: saved
           before it); without: from the rescue to the last step; median (maximum)
  lost     steps between the rescue and the last written one, median (maximum)

Each complete line of the Markdown table is printed at once; progress goes to stderr. `--json` is
rewritten after each run. Ctrl-C prints the unfinished line and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rescue_throughput
from rescue_rows import KINDS, ROWS, USUAL, Kind, Row, chosen
from rescue_trainings import Length, Place, Reference, reference
from rescue_ways import WAYS, Outcome, undisturbed, within, without

_RUN: dict[str, Callable[[Place, Row, Reference], Outcome]] = {
    "without": without,
    "guard": within,
}
Cells = dict[tuple[str, str, str], list[Outcome]]  # kind, row, way


def options() -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="of each cell, default %(default)s")
    kinds, rows = (",".join(each.name for each in every) for every in (KINDS, ROWS))
    parser.add_argument(
        "--trainings", default=USUAL, metavar="NAMES", help=f"of {kinds}; default %(default)s"
    )
    parser.add_argument(
        "--rows", default=rows, metavar="NAMES", help="default, all there are: %(default)s"
    )
    parser.add_argument("--ways", default=",".join(WAYS), help="default %(default)s")
    parser.add_argument("--step-ms", type=float, default=50.0, help="shortest step")
    parser.add_argument("--state-mb", type=float, default=20.0, help="weights and slots")
    parser.add_argument("--throughput", action="store_true", help="under a guard and outside, too")
    parser.add_argument("--json", metavar="FILE", help="each run by itself")
    found = parser.parse_args()
    try:
        found.kinds = chosen(KINDS, found.trainings)
        found.rows = chosen(ROWS, found.rows)
    except ValueError as error:
        parser.error(str(error))
    found.ways = found.ways.split(",")
    if (
        not set(found.ways) <= set(WAYS)
        or found.runs < 1
        or min(found.step_ms, found.state_mb) <= 0
    ):
        parser.error(f"ways are {','.join(WAYS)}; runs, --step-ms and --state-mb are above 0")
    return found


def measure(asked: argparse.Namespace, cells: Cells, shown: set[tuple[str, str]]) -> None:
    """Run everything; fill `cells` after each run, and print each complete line of the table."""
    print(head(asked), flush=True)
    length = Length.over(asked.rows, asked.step_ms / 1000, asked.state_mb)
    plan = [
        (kind, row, way)
        for kind in asked.kinds
        for row in asked.rows
        for way in asked.ways
        if way == "guard" or not row.again
    ]
    references: dict[tuple[str, bool], Reference] = {}
    for number, (kind, row, way) in enumerate(plan):
        which = (kind.program, row.generated)
        if which not in references:
            progress(f"{kind.program}, nobody interrupts it")
            with tempfile.TemporaryDirectory(prefix="bench-rescue-") as folder:
                references[which] = reference(Path(folder), kind, length, row.generated)
        for run in range(asked.runs):
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="bench-rescue-") as folder:
                place = Place(Path(folder), kind, length, row.generated)
                outcome = _RUN[way](place, row, references[which])
            cells.setdefault((kind.name, row.name, way), []).append(outcome)
            keep(asked, cells, [])
            progress(
                f"{number * asked.runs + run + 1}/{len(plan) * asked.runs} {kind.shown}, "
                f"{row.shown}, {way}: {describe(outcome)} ({time.monotonic() - began:.0f} s)"
            )
        if number + 1 == len(plan) or plan[number + 1][:2] != (kind, row):
            print(line(asked, cells, kind, row), flush=True)
            shown.add((kind.name, row.name))


def describe(outcome: Outcome) -> str:
    """Describe one run."""
    words = ["rescued" if outcome.rescued else f"NOT RESCUED: {outcome.trouble.strip()}"]
    words += ["killed"] * outcome.killed + ["held"] * outcome.stopped
    if outcome.lost is not None:
        words.append(f"{outcome.lost} of {outcome.steps} steps lost")
    if outcome.seconds is not None:
        words.append(f"{outcome.seconds:.2f} s")
    return ", ".join(words)


def progress(text: str) -> None:
    """Print progress on standard error; standard output has only the table."""
    print(text, file=sys.stderr, flush=True)


def head(asked: argparse.Namespace) -> str:
    """Return the table's head, in Markdown."""
    columns = [
        f"{way}: {each}" for way in asked.ways for each in ("rescued", "killed", "s", "lost")
    ]
    return (
        f"| training | what happens | {' | '.join(columns)} |\n" + "|---" * (2 + len(columns)) + "|"
    )


def line(asked: argparse.Namespace, cells: Cells, kind: Kind, row: Row) -> str:
    """Return the line of one training and row, with all ways."""
    found = [cell(cells.get((kind.name, row.name, way), [])) for way in asked.ways]
    return f"| {kind.shown} | {row.shown} | {' | '.join(found)} |"


def cell(outcomes: list[Outcome]) -> str:
    """Return the four columns of one way of a line."""
    if not outcomes:
        return "- | - | - | -"
    rescued = f"{sum(each.rescued for each in outcomes)} of {len(outcomes)}"
    seconds = [each.seconds for each in outcomes if each.seconds is not None]
    lost = [each.lost for each in outcomes if each.lost is not None]
    columns = [rescued, str(sum(each.killed for each in outcomes))]
    columns.append(f"{statistics.median(seconds):.2f} ({max(seconds):.2f})" if seconds else "-")
    columns.append(f"{statistics.median(lost):.0f} ({max(lost)})" if lost else "-")
    return " | ".join(columns)


def keep(asked: argparse.Namespace, cells: Cells, ratios: list[dict[str, Any]]) -> None:
    """Write all results so far to the JSON file, atomically."""
    if not asked.json:
        return
    runs = [
        {"training": kind, "row": row, "way": way, "runs": [asdict(each) for each in found]}
        for (kind, row, way), found in cells.items()
    ]
    everything = {"runs": runs, "throughput": ratios, "load": os.getloadavg()[0]}
    new = Path(f"{asked.json}.new")
    new.write_text(json.dumps(everything, indent=1))
    new.replace(asked.json)


def stop(*_: Any) -> None:
    """Handle SIGTERM like Ctrl-C, so that everything started is cleaned up."""
    raise KeyboardInterrupt


def main() -> int:
    """Print the tables; return 1 if a run under a guard was not rescued, 130 if stopped."""
    asked = options()
    signal.signal(signal.SIGTERM, stop)
    cells: Cells = {}
    lines: set[tuple[str, str]] = set()
    ratios: list[dict[str, Any]] = []
    loads = [os.getloadavg()[0]]
    code = 0
    try:
        measure(asked, cells, lines)
        for kind in asked.kinds if asked.throughput else ():
            ratios.append(rescue_throughput.ratios(kind, max(3, asked.runs), 400))
    except KeyboardInterrupt:
        code = 130
    with undisturbed():
        loads.append(os.getloadavg()[0])
        for kind in asked.kinds:  # print the unfinished line
            for row in asked.rows:
                begun = any((kind.name, row.name, way) in cells for way in asked.ways)
                if begun and (kind.name, row.name) not in lines:
                    print(line(asked, cells, kind, row), "(stopped)")
        print(f"\nsteps of {asked.step_ms:g} ms or more, state of {asked.state_mb:g} MB")
        print(f"load {loads[0]:.1f} to {loads[1]:.1f}")
        for found in ratios:
            print("guard/outside:", rescue_throughput.shown(found))
        sys.stdout.flush()
        keep(asked, cells, ratios)
    bad = any(each.killed or not each.rescued for (_, _, way), found in cells.items()
              if way == "guard" for each in found)  # fmt: skip
    return code or int(bad)


if __name__ == "__main__":
    sys.exit(main())
