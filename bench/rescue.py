"""
The rescue in figures: leaks and jumps, real trainings, outside of an airbag and in one.

    python bench/rescue.py [--runs 3] [--trainings keras,torch-found] [--rows 5,jump-data]
                           [--ways without,airbag] [--step-ms 50] [--state-mb 20] [--throughput]
                           [--json FILE]

Each run is a training (tests/e2e/programs) that may hold what it needs and 6 s of its leak, 40 MB
at least. Without an airbag that is an ordinary memory group, beside a daemon that may not pause;
with one it is `watchdog exec --limit` with the defaults, and no daemon. A jump is one array of
three times the limit. Then every rescue is compared with its checksums, and the newest is gone on
from, as a user would: the losses of the next 50 steps, over two ends of an epoch, must be those of
a run that nobody interrupted and that had no agent, bit for bit. What stands still is told to end,
for want of a user.

Columns, each without an airbag and with one
  rescued  runs whose rescue went on with identical losses, of all runs
  killed   runs in which the kernel killed anybody
  s        airbag: seconds from the limit, or from a jump that was refused, to the rescue (0: it
           was there before); without: from the rescue to the last step; median and longest
  lost     steps between the rescue and the last that was written down, median and most

Ctrl-C shows what there is so far, and leaves nothing behind.
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
from rescue_rows import KINDS, ROWS, USUAL, Row, chosen
from rescue_trainings import Length, Place, Reference, reference
from rescue_ways import WAYS, Outcome, undisturbed, within, without

_RUN: dict[str, Callable[[Place, Row, Reference], Outcome]] = {
    "without": without,
    "airbag": within,
}
Cells = dict[tuple[str, str, str], list[Outcome]]  # kind, row, way


def options() -> argparse.Namespace:
    """What was asked for."""
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
    parser.add_argument("--throughput", action="store_true", help="in an airbag and outside, too")
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


def measure(asked: argparse.Namespace, cells: Cells) -> None:
    """Every run; `cells` is filled as they end."""
    length = Length.over(asked.rows, asked.step_ms / 1000, asked.state_mb)
    plan = [
        (kind, row, way)
        for kind in asked.kinds
        for row in asked.rows
        for way in asked.ways
        if way == "airbag" or not row.again
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
            progress(
                f"{number * asked.runs + run + 1}/{len(plan) * asked.runs} {kind.shown}, "
                f"{row.shown}, {way}: {told(outcome)} ({time.monotonic() - began:.0f} s)"
            )


def told(outcome: Outcome) -> str:
    """One run in words."""
    words = ["rescued" if outcome.rescued else f"NOT RESCUED: {outcome.trouble.strip()}"]
    words += ["killed"] * outcome.killed + ["held"] * outcome.held
    if outcome.lost is not None:
        words.append(f"{outcome.lost} of {outcome.steps} steps lost")
    if outcome.seconds is not None:
        words.append(f"{outcome.seconds:.2f} s")
    return ", ".join(words)


def progress(text: str) -> None:
    """A line for whoever waits; the table has a stream of its own."""
    print(text, file=sys.stderr, flush=True)


def table(asked: argparse.Namespace, cells: Cells) -> str:
    """One line a training and row, the ways side by side."""
    head = f"{'rescued':>8}{'killed':>7}{'s':>6}{'most':>6}{'lost':>6}{'most':>6}"
    lines = ["".join(f"{way:>{54 if not at else 42}}" for at, way in enumerate(asked.ways)),
             f"{'':50}" + " | ".join([head] * len(asked.ways))]  # fmt: skip
    for kind in asked.kinds:
        for row in asked.rows:
            found = [cells.get((kind.name, row.name, way), []) for way in asked.ways]
            if any(found):
                columns = " | ".join(cell(outcomes) for outcomes in found)
                lines.append(f"{kind.shown:25}{row.shown:25}{columns}")
    return "\n".join(lines)


def cell(outcomes: list[Outcome]) -> str:
    """One way of one line."""
    if not outcomes:
        return f"{'-':>8}{'-':>7}{'-':>6}{'-':>6}{'-':>6}{'-':>6}"
    rescued = f"{sum(each.rescued for each in outcomes)}/{len(outcomes)}"
    text = f"{rescued:>8}{sum(each.killed for each in outcomes):7d}"
    seconds = [each.seconds for each in outcomes if each.seconds is not None]
    lost = [each.lost for each in outcomes if each.lost is not None]
    text += f"{statistics.median(seconds):6.2f}{max(seconds):6.2f}" if seconds else f"{'-':>6}" * 2
    return text + (f"{statistics.median(lost):6.0f}{max(lost):6d}" if lost else f"{'-':>6}" * 2)


def stop(*_: Any) -> None:
    """As Ctrl-C: all that was started is put away."""
    raise KeyboardInterrupt


def main() -> int:
    """Print the tables; 1 if anything in an airbag was not rescued, 130 if it was stopped."""
    asked = options()
    signal.signal(signal.SIGTERM, stop)
    cells: Cells = {}
    ratios: list[dict[str, Any]] = []
    loads = [os.getloadavg()[0]]
    code = 0
    try:
        measure(asked, cells)
        for kind in asked.kinds if asked.throughput else ():
            ratios.append(rescue_throughput.ratios(kind, max(3, asked.runs), 400))
    except KeyboardInterrupt:
        code = 130
    with undisturbed():
        loads.append(os.getloadavg()[0])
        print(table(asked, cells))
        print(f"steps of {asked.step_ms:g} ms or more, state of {asked.state_mb:g} MB")
        print(f"load {loads[0]:.1f} to {loads[1]:.1f}")
        for found in ratios:
            print("airbag/outside:", rescue_throughput.shown(found))
        if asked.json:
            runs = [{"training": kind, "row": row, "way": way, "runs": [asdict(o) for o in found]}
                    for (kind, row, way), found in cells.items()]  # fmt: skip
            everything = {"runs": runs, "throughput": ratios, "load": loads}
            Path(asked.json).write_text(json.dumps(everything, indent=1))
    bad = any(each.killed or not each.rescued for (_, _, way), found in cells.items()
              if way == "airbag" for each in found)  # fmt: skip
    return code or int(bad)


if __name__ == "__main__":
    sys.exit(main())
