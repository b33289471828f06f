"""Throughput of a training under a guard, compared with the same one outside, for `rescue.py`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rescue_rows import Kind
from rescue_trainings import STEPS, WATCHDOG, Length, Place

from watchdog_app.demo.story import read_losses

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "e2e" / "programs"))

from manners import WARM_STEPS

_DEADLINE_S = 300.0


def ratios(kind: Kind, pairs: int, steps: int) -> dict[str, Any]:
    """
    Run the same training inside and outside alternately, `pairs` times each.

    Returns:
        For `processor` (CPU time of all its threads) and `wall`: the ratio inside / outside of each
        pair, over the steps after the warm-up.
    """
    found: dict[str, Any] = {"kind": kind.name, "steps": steps, "processor": [], "wall": []}
    for number in range(pairs):
        inside, outside = (
            _spent(kind, steps, "guard" == way)
            for way in (("guard", "without") if number % 2 else ("without", "guard"))
        )
        if not number % 2:
            inside, outside = outside, inside
        found["processor"].append(inside[0] / outside[0])
        found["wall"].append(inside[1] / outside[1])
    return found


def shown(found: dict[str, Any]) -> str:
    """Format the ratios in one line."""
    text = [
        f"{name} {statistics.median(found[name]):.3f} "
        f"({min(found[name]):.3f} to {max(found[name]):.3f})"
        for name in ("processor", "wall")
    ]
    pairs = len(found["wall"])
    return f"{found['kind']}: {', '.join(text)}, {pairs} pairs of {found['steps']} steps"


def _spent(kind: Kind, steps: int, guarded: bool) -> tuple[float, float]:
    """Return CPU seconds and wall seconds of the steps after the warm-up."""
    with tempfile.TemporaryDirectory(prefix="bench-rescue-", ignore_cleanup_errors=True) as folder:
        place = Place(Path(folder), kind, Length(0.0, steps // STEPS + 2), False)
        how = ["--limit", "6G"] if guarded else ["--no-guard"]
        subprocess.run(
            [*WATCHDOG, "exec", *how, "--", *place.program], check=True, cwd=folder,
            env=place.environment(*kind.words, "--until", str(steps), step_s=0),
            capture_output=True, stdin=subprocess.DEVNULL, timeout=_DEADLINE_S,
        )  # fmt: skip
        losses = read_losses(str(place.out))
        _emptied(place.folder / "run" / "guard")
        wall_s = losses[steps].unix_s - losses[WARM_STEPS].unix_s
        return float(Path(f"{place.out}.spent").read_text()), wall_s


def _emptied(folder: Path) -> None:
    """Wait for the supervisor: it outlives its program briefly, and writes into this folder."""
    end = time.monotonic() + _DEADLINE_S
    while time.monotonic() < end and folder.is_dir() and any(folder.iterdir()):
        time.sleep(0.02)
