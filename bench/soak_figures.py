"""
Figures of a soak: rows of one second each, the verdict, and a plot.

Uses robust statistics, because a busy machine has outliers: the Theil-Sen slope (the median of the
slopes of all pairs; Sen 1968) over medians of ten seconds.
"""

from __future__ import annotations

import os
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

# fraction of the soak: caches and histories fill; the longest history, of four hours, very slowly
WARM_UP = 0.25
BIN_S = 10.0
MOST_BINS = 400
SLOPE_BYTES_PER_H = 2e6  # a larger slope is a leak, in a soak of at least LONG_S
LONG_S = 1200.0  # a shorter soak uses SHORT_GROWTH_BYTES
SHORT_GROWTH_BYTES = 6e6
LEFT_DESCRIPTORS = 4  # more descriptors after the churn than before: an idle worker, a spare handle
SPARE_THREADS = 1  # a helper that is working at that moment
LAZY_THREADS = 5  # they start when first needed and stay: in a short soak at any time
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Row:
    """One second of the soak."""

    t_s: float
    rss_bytes: int
    descriptors: int
    threads: int
    cpu_s: float
    tasks: int
    agents: int
    incidents: int
    ticks: int
    missed: int
    waited_s: float  # sampling thread: runnable, but without a CPU
    stolen_s: float  # all CPUs: stolen by the hypervisor
    latest_s: float
    interval_s: float
    answer_s: float  # time to answer `status`
    journal_bytes: int
    errors: int


def read(pid: int, t_s: float, status: dict[str, Any], answer_s: float, *, journal: Path) -> Row:
    """Return a row of the daemon's state now, from /proc and from its status."""
    folder = Path(f"/proc/{pid}")
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    daemon = status["daemon"]
    return Row(
        t_s=t_s,
        rss_bytes=int((folder / "statm").read_text().split()[1]) * _PAGE,
        descriptors=len(os.listdir(folder / "fd")),
        threads=len(os.listdir(folder / "task")),
        cpu_s=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        tasks=len(status["tasks"]),
        agents=sum(task["agent"] is not None for task in status["tasks"]),
        incidents=len(status["incidents"]),
        ticks=daemon["samples"],
        missed=daemon["missed_samples"],
        waited_s=int((folder / "task" / str(pid) / "schedstat").read_text().split()[1]) / 1e9,
        stolen_s=int(_first_line("/proc/stat").split()[8]) / os.sysconf("SC_CLK_TCK"),
        latest_s=daemon["max_lag_s"],
        interval_s=daemon["interval_s"],
        answer_s=answer_s,
        journal_bytes=sum(p.stat().st_size for p in journal.parent.glob(journal.name + "*")),
        errors=len(status["problems"]),
    )


def _first_line(path: str) -> str:
    with open(path) as file:
        return file.readline()


def slope_per_s(points: Sequence[tuple[float, float]]) -> float:
    """Return the Theil-Sen slope; 0 for fewer than two points."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if b[0] > a[0]]
    return statistics.median(slopes) if slopes else 0.0


def _binned(rows: Sequence[Row]) -> list[tuple[float, float]]:
    width_s = max(BIN_S, (rows[-1].t_s - rows[0].t_s) / MOST_BINS) if rows else BIN_S
    bins: dict[int, list[Row]] = {}
    for row in rows:
        bins.setdefault(int(row.t_s / width_s), []).append(row)
    return [
        (statistics.median(r.t_s for r in each), statistics.median(r.rss_bytes for r in each))
        for each in bins.values()
    ]


def verdict(rows: Sequence[Row], before: Row, after: Row) -> dict[str, Any]:
    """
    Return the figures of a soak, and a list of faults.

    Args:
        rows: rows during the churn.
        before: row shortly before the churn.
        after: row after everything has ended and the daemon has taken a few samples.
    """
    begin, end = rows[0].t_s, rows[-1].t_s
    steady = [row for row in rows if row.t_s >= begin + WARM_UP * (end - begin)]
    third = [row.rss_bytes for row in steady[: max(1, len(steady) // 3)]]
    last = [row.rss_bytes for row in steady[-max(1, len(steady) // 3) :]]
    slope = slope_per_s(_binned(steady)) * 3600
    growth = statistics.median(last) - statistics.median(third)
    fds = [row.descriptors for row in steady]
    seconds = end - begin
    early = max(row.threads for row in rows[: max(1, int(len(rows) * WARM_UP))])
    early = max(early, before.threads + LAZY_THREADS)
    found: dict[str, Any] = {
        "seconds": seconds,
        "looks": rows[-1].ticks - rows[0].ticks,
        "missed_looks": rows[-1].missed - before.missed,
        "waited_s": rows[-1].waited_s - before.waited_s,
        "stolen_s": rows[-1].stolen_s - before.stolen_s,
        "latest_s": max(row.latest_s for row in rows),
        "rss_first_bytes": before.rss_bytes,
        "rss_median_bytes": statistics.median(row.rss_bytes for row in steady),
        "rss_highest_bytes": max(row.rss_bytes for row in rows),
        "rss_slope_bytes_per_h": slope,
        "rss_growth_bytes": growth,
        "descriptors": [min(fds), max(fds)],
        "descriptors_before_after": [before.descriptors, after.descriptors],
        "threads": [before.threads, max(row.threads for row in rows), after.threads],
        "cpu_percent": 100 * (rows[-1].cpu_s - rows[0].cpu_s) / seconds if seconds else 0.0,
        "answer_median_s": statistics.median(row.answer_s for row in rows),
        "answer_slowest_s": max(row.answer_s for row in rows),
        "tasks_most": max(row.tasks for row in rows),
        "agents_most": max(row.agents for row in rows),
        "journal_most_bytes": max(row.journal_bytes for row in rows),
    }
    wrong = []
    if seconds >= LONG_S and slope > SLOPE_BYTES_PER_H:
        wrong.append(f"RSS grows by {slope / 1e6:.1f} MB an hour")
    if seconds < LONG_S and growth > SHORT_GROWTH_BYTES:
        wrong.append(f"RSS grew by {growth / 1e6:.1f} MB")
    if after.descriptors > before.descriptors + LEFT_DESCRIPTORS:
        wrong.append(f"{after.descriptors - before.descriptors} descriptors were left open")
    if after.threads > early + SPARE_THREADS:
        wrong.append(f"{after.threads - early} threads were left")
    found["wrong"] = wrong
    return found


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows as JSON types."""
    return [asdict(row) for row in rows]


def draw(rows: Sequence[Row], found: dict[str, Any], load: str, path: Path) -> None:
    """Plot memory, descriptors and threads, tasks, sample rate, and missed samples."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    minutes = [row.t_s / 60 for row in rows]
    figure, axes = plt.subplots(5, 1, figsize=(9, 11), sharex=True, constrained_layout=True)
    memory, handles, crowd, rate, late = axes
    memory.plot(minutes, [row.rss_bytes / 1e6 for row in rows], color="#1f6f8b", label="RSS, MB")
    slope = found["rss_slope_bytes_per_h"] / 1e6
    figure.suptitle(
        f"{found['seconds'] / 60:.0f} minutes of churn: RSS {slope:+.2f} MB an hour after the "
        f"first quarter;\n{found['missed_looks']} of {found['looks']} samples missed",
        fontsize=11,
    )
    handles.plot(minutes, [row.descriptors for row in rows], color="#1f6f8b", label="descriptors")
    handles.plot(minutes, [row.threads for row in rows], color="#e09f3e", label="threads")
    crowd.plot(minutes, [row.tasks for row in rows], color="#1f6f8b", label="tasks watched")
    crowd.plot(minutes, [row.agents for row in rows], color="#e09f3e", label="agents")
    crowd.plot(minutes, [row.incidents for row in rows], color="#b23a48", label="open incidents")
    pairs = [(a, b, max(1e-9, b.t_s - a.t_s)) for a, b in pairwise(rows)]
    per_s = [(b.ticks - a.ticks) / seconds for a, b, seconds in pairs]
    rate.plot(minutes[1:], per_s, color="#1f6f8b", linewidth=0.6, label="looks a second")
    waited = [100 * (b.waited_s - a.waited_s) / seconds for a, b, seconds in pairs]
    late.plot(minutes[1:], waited, color="#e09f3e", linewidth=0.6, label="no processor, % of time")
    late.plot(minutes, [row.missed for row in rows], color="#b23a48", label="looks missed, in all")
    late.set_xlabel("minutes")
    for axis in axes:
        axis.set_ylim(0, None)
        axis.margins(x=0.01)
        above = {"loc": "lower left", "bbox_to_anchor": (0, 0.98)}
        axis.legend(fontsize=9, ncols=3, frameon=False, borderaxespad=0, **above)
        axis.spines[["top", "right"]].set_visible(False)
    figure.text(0.01, -0.01, textwrap.fill(load, 150), fontsize=8, va="top")
    figure.savefig(path, dpi=110, bbox_inches="tight")
