"""
The table of docs/measurements.md on programs in the manner of public examples.

    python bench/programs.py [PROGRAM...]

Each program of `tests/programs` runs to its end without the agent, then under `watchdog exec
--limit` with a leak from half of its steps on, and then again with the lines for it. For the
overhead it also runs healthy, with and without `exec` in turn; the ratio is of the processor time
after a quarter of its steps.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support import corpus  # noqa: E402

from watchdog_app.agent.found import resume_lines  # noqa: E402
from watchdog_app.rescue.checkpoint import inventory  # noqa: E402
from watchdog_app.rescue.checkpoint.reader import LoadedRescue  # noqa: E402

PAIRS = 3


def measure(name: str, folder: Path) -> list[str]:
    """One row: program, saved, exact, lines, at step, lost, overhead, what a resume lacks."""
    corpus.copy(folder, name)
    program = folder / f"{name}.py"
    plain = corpus.run(folder, name, "plain")
    assert plain.returncode == 0, plain.stderr
    expected = corpus.bits(folder)
    events = int((folder / "events.txt").read_text())
    killed = corpus.run_to_limit(folder, name, events // 2)
    (folder / "killed.txt").write_text(killed.stderr)
    saved = inventory.rescues_in(str(folder / "rescues" / program.name))
    if not saved:
        said = [line for line in killed.stderr.splitlines() if "not saved" in line]
        return [name, "no", "-", "-", "-", "-", "-", (said or ["it said nothing"])[0][:90]]
    with LoadedRescue(saved[-1].path) as rescue:
        found, step = resume_lines.read_record(rescue.meta), rescue.step
    lines = 0
    if found is not None:
        edited = corpus.write_lines(folder, name)
        lines = sum(not line.startswith("#") for line in edited.lines())
    again = corpus.run(folder, name, "again")
    (folder / "again.txt").write_text(again.stderr)
    resumed = again.returncode == 0 and "resuming from" in again.stderr
    exact = "yes" if resumed and corpus.bits(folder) == expected else "no"
    lacks = [line for line in again.stderr.splitlines() if "not bring back" in line]
    why = "" if exact == "yes" else (lacks or again.stderr.splitlines()[-1:] or [""])[-1][-90:]
    lost = int((folder / "steps.txt").read_text()) - step
    corpus.copy(folder, name)
    ratio = overhead(folder, name, events)
    return [name, "yes", exact, str(lines), str(step), str(lost), f"{ratio:.1%}", why]


def overhead(folder: Path, name: str, events: int) -> float:
    """By how much the processor time of healthy steps grows under `exec`, as a share."""
    without, under = [], []
    for _ in range(PAIRS):
        corpus.run(folder, name, "plain", events)
        without.append(float((folder / "cpu.txt").read_text()))
        corpus.run_to_limit(folder, name, events, role="plain")
        under.append(float((folder / "cpu.txt").read_text()))
    return min(under) / min(without) - 1


def main() -> None:
    """Print the table, one row after another."""
    names = sys.argv[1:] or sorted(path.stem for path in corpus.PROGRAMS.glob("*.py"))
    print("| program | saved | exact | lines | at step | lost | overhead | what a resume lacks |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=os.environ.get("BENCH_FOLDER")))
        try:
            row = measure(name, folder)
        except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
            row = [name, *"??????", str(error)[-90:]]
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
