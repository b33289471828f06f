"""
Fit the thresholds of the two tiers on recorded traces, and say how well they carry over.

    python bench/forecast_fit.py FOLDER [FOLDER ...] [--tier strict|eager] [--tries 250] [--moved 3]

The first folder is the one that counts; the others, and copies of all with the
limit moved, only steady the fit. Prints the thresholds, the in-sample figures
and those cross-validated by program (no threshold saw another run of the
program that it is judged on). Needs numpy.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random

import forecast_score as score
import numpy as np

from watchdog_app.core.forecast.claims import Reading
from watchdog_app.core.forecast.evidence import room_left
from watchdog_app.core.forecast.trend import EAGER, STRICT, TrendForecaster

COLUMNS = [
    "t",
    "trace",
    "peaks",
    "line",
    "span",
    "evidence",
    "eta",
    "recent",
    "agreement",
    "misfit",
    "latest",
    "age",
    "visits",
    "visited_ago",
    "novelty",
    "full",
    "last",
]

# Few are fitted, the rest stay as reasoned: with 50 failures more would fit their noise.
STEPS = {
    "span_s": 3.0,
    "late_span_s": 2.0,
    "evidence": 0.3,
    "late_evidence": 0.2,
    "horizon_s": 3.0,
    "agreement": 0.06,
    "peaks_misfit": 0.04,
    "fast_evidence": 0.2,
}
CLIMBS = 3
HELD_S = 6.0  # as long as a tier stays open after its evidence


def moved(traces, seed):
    """The same programs under another limit: nearer to the peak of those that end well, earlier."""
    draw = random.Random(seed)
    copies = []
    for side, rows in traces:
        new, limit = dict(side), rows[0][2]
        if side["outcome"] == "ok":
            peak = max(used for _, used, _ in rows) / limit
            other = limit if peak < 0.3 else limit * peak / draw.uniform(0.55, 0.93)
            copies.append((new, [(t, used, other) for t, used, _ in rows]))
            continue
        other = limit * draw.uniform(0.72, 1.0)
        kept = []
        for t, used, _ in rows:
            if used >= 0.999 * other:
                new["oom_time_s"] = t
                break
            kept.append((t, used, other))
        copies.append((new, kept) if len(kept) > 50 else (side, rows))
    return copies


class Claims:
    """Every claim of every trace, as columns."""

    def __init__(self, traces):
        self.traces = traces
        rows = []
        self.thoughts = []
        for i, (_, samples) in enumerate(traces):
            forecaster = TrendForecaster()
            thoughts = []
            for t, used, limit in samples:
                forecaster.update(t, used, limit)
                if not forecaster.thought:
                    continue
                thoughts.append(t)
                self._collect(rows, i, forecaster)
            self.thoughts.append(np.array(thoughts))
        table = np.array(rows)
        self.c = {name: table[:, k] for k, name in enumerate(COLUMNS)}
        owner = self.c["trace"].astype(int)
        self.first = np.searchsorted(owner, np.arange(len(traces)))
        self.end = np.searchsorted(owner, np.arange(len(traces)), "right")
        self.times = [np.array([t for t, _, _ in samples]) for _, samples in traces]

    @staticmethod
    def _collect(rows, i, forecaster):
        view = forecaster.view()
        for claim in forecaster.claims():
            w = forecaster.weigh(claim)
            if w.evidence < 0.7 or w.eta_s > 300:
                continue
            level = view.limit - room_left(claim, view)
            v = view.swings.visits(level - 0.005 * view.limit, claim.start_t)
            rows.append(
                (
                    view.t,
                    i,
                    claim.reading is Reading.PEAKS,
                    claim.reading is Reading.LINE,
                    w.span_s,
                    w.evidence,
                    w.eta_s,
                    claim.recent,
                    claim.agreement,
                    claim.misfit,
                    w.latest,
                    claim.start_t - view.start_t,
                    v.times,
                    math.inf if v.latest_t is None else view.t - v.latest_t,
                    math.inf if v.highest is None else (level - v.highest) / view.limit,
                    0,
                    0,
                )
            )
        full = view.used >= 0.985 * view.limit
        soon = forecaster.last_chance()
        last = soon is not None and soon < 2.6
        if full or last:
            rows.append((view.t, i, *[0.0] * (len(COLUMNS) - 4), full, last))

    def convinced(self, a, tier):
        """The mask of claims that pass; the same rules as evidence.convincing."""
        c = self.c
        peaks = c["peaks"] > 0
        ok = (c["recent"] >= a.recent_low) & (c["recent"] <= a.recent_high)
        ok &= np.where(peaks, c["agreement"] >= a.peaks_agreement, c["agreement"] >= a.agreement)
        ok &= np.where(peaks, c["misfit"] <= a.peaks_misfit, True)
        ok &= c["latest"] >= a.latest
        ok &= (c["visits"] < 2) & (c["visited_ago"] >= 60)
        needed = np.where(c["age"] < a.young_s, a.span_s, a.late_span_s)
        wanted = np.where(c["age"] < a.young_s, a.evidence, a.late_evidence)
        sustained = (c["span"] >= needed) & (c["evidence"] >= wanted) & (c["eta"] <= a.horizon_s)
        long = (c["span"] >= a.long_span_s) & (c["evidence"] >= a.long_evidence)
        long &= c["eta"] <= a.long_share * c["span"]
        fast = ~peaks & (c["span"] >= a.fast_span_s) & (c["evidence"] >= a.fast_evidence)
        fast &= (c["eta"] <= a.fast_horizon_s) & (c["age"] >= a.fast_age_s)
        fast &= c["novelty"] >= a.fast_novelty
        over = ~peaks & (c["span"] >= 3) & (c["evidence"] >= a.overwhelming)
        ok &= sustained | long | fast | over
        return ok | (c["full"] > 0) | ((c["last"] > 0) & (tier == "eager"))

    def judged(self, mask, only):
        """Figures of the traces numbered in `only`."""
        out = []
        for i in only:
            side, _ = self.traces[i]
            part = slice(self.first[i], self.end[i])
            at = np.unique(self.c["t"][part][mask[part]])
            times = self.times[i]
            alarms = np.zeros(len(times), bool)
            if len(at):
                k = np.searchsorted(at, times, "right") - 1
                alarms = (k >= 0) & (times - at[np.maximum(k, 0)] <= HELD_S)
            out.append(fast_judge(side, times, alarms))
        return out


def fast_judge(side, times, alarms):
    """As score.judge, on arrays, without the forecast's error."""
    on = times[alarms]
    found = []
    if len(on):
        cut = np.flatnonzero(np.diff(on) >= score.GAP_S)
        found = list(zip(on[np.r_[0, cut + 1]], on[np.r_[cut, len(on) - 1]], strict=True))
    m = {
        "id": side["id"],
        "fail": side["outcome"] != "ok",
        "episodes": len(found),
        "dur": times[-1] - times[0],
    }
    if not m["fail"]:
        m["alarm"], m["first"] = bool(found), found[0][0] if found else None
        return m
    end = side["oom_time_s"]
    true = [e for e in found if end - e[1] < score.GAP_S or end - e[0] <= score.NEAR_S]
    m["lead"] = end - true[0][0] if true else None
    m["premature"] = len(found) - len(true)
    return m


def worth(ms, tier):
    """What a set of figures is worth: leads against false alarms."""
    total = 0.0
    alarm, episode = (2.0, 0.4) if tier == "strict" else (0.9, 0.2)
    for m in ms:
        if m["fail"]:
            lead = m["lead"] or 0.0
            total += 0.6 * min(lead, 13) / 13 + 0.4 * (lead >= 3) + (lead >= 10)
            total -= 2.0 * (m["premature"] > 0)
            if tier == "eager":
                total += 0.3 * min(lead, 25) / 25
        else:
            total -= alarm * m["alarm"] + episode * m["episodes"]
    return total


def climb(  # noqa: PLR0917
    sets, weights, only, tier, start, tries, seed
):
    """Thresholds of the greatest worth near `start`: a random walk that only climbs."""
    draw = np.random.default_rng(seed)

    def value(a):
        return sum(
            w
            * worth(s.judged(s.convinced(a, tier), [i for i in only[k] if i < len(s.traces)]), tier)
            for k, (s, w) in enumerate(zip(sets, weights, strict=True))
        ) - 1.0 * sum(
            ((getattr(a, n) - getattr(start, n)) / step) ** 2 for n, step in STEPS.items()
        )

    best, at = value(start), start
    names = list(STEPS)
    for i in range(tries):
        change = {
            n: max(0.0, getattr(at, n) + draw.normal() * STEPS[n] * (1.2 if i < tries / 2 else 0.5))
            for n in draw.choice(names, draw.integers(1, 4), replace=False)
        }
        other = dataclasses.replace(at, **change)
        v = value(other)
        if v > best:
            best, at = v, other
    return at


def search(sets, weights, only, tier, start, tries):  # noqa: PLR0917
    """The mean of several climbs: the middle of what does well, not its sharpest point."""
    found = [climb(sets, weights, only, tier, start, tries, seed) for seed in range(CLIMBS)]
    return dataclasses.replace(
        start, **{n: sum(getattr(a, n) for a in found) / len(found) for n in STEPS}
    )


def program(side):
    return side["workload"].removesuffix("-1").removesuffix("-2")


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("folders", nargs="+")
    ap.add_argument("--tier", default="strict", choices=["strict", "eager"])
    ap.add_argument("--tries", type=int, default=250)
    ap.add_argument("--moved", type=int, default=3)
    ap.add_argument("--folds", type=int, default=6)
    a = ap.parse_args()
    corpora = [score.load(f) for f in a.folders]
    sets, weights, names = [], [], []
    for folder, traces in zip(a.folders, corpora, strict=True):
        sets.append(Claims(traces))
        weights.append(1.0)
        names.append(folder)
        for k in range(a.moved):
            sets.append(Claims(moved(traces, k)))
            weights.append(0.3)
            names.append(f"{folder}, limits moved {k}")
    programs = [[program(side) for side, _ in s.traces] for s in sets]
    # What an unknown cost allows: (5 s to save + 1 s a step) x 3, at the low end of the forecast.
    start = STRICT if a.tier == "strict" else dataclasses.replace(EAGER, horizon_s=30.0)
    everything = [list(range(len(s.traces))) for s in sets]
    for s, n in zip(sets, names, strict=True):
        ms = s.judged(s.convinced(start, a.tier), range(len(s.traces)))
        print("as it is       ", score.text(n[-24:], score.summary(ms)))
    fitted = search(sets, weights, everything, a.tier, start, a.tries)
    for n in STEPS:
        print(f"    {n}={getattr(fitted, n):.2f}", end="")
    print()
    for s, n in zip(sets, names, strict=True):
        ms = s.judged(s.convinced(fitted, a.tier), range(len(s.traces)))
        print("in-sample      ", score.text(n[-24:], score.summary(ms)))
    whole = sorted({p for ps in programs for p in ps})
    random.Random(0).shuffle(whole)
    held = [[] for _ in sets]
    for k in range(a.folds):
        left_out = set(whole[k :: a.folds])
        train = [[i for i, p in enumerate(ps) if p not in left_out] for ps in programs]
        at = search(sets, weights, train, a.tier, start, a.tries)
        for j, s in enumerate(sets):
            test = [i for i, p in enumerate(programs[j]) if p in left_out]
            held[j].extend(s.judged(s.convinced(at, a.tier), test))
    for n, ms in zip(names, held, strict=True):
        print("cross-validated", score.text(n[-24:], score.summary(ms)))
    for m in held[0]:
        if m["fail"] and (m["lead"] is None or m["lead"] < 10 or m["premature"]):
            print("   late or early", m["id"], m["lead"] and round(m["lead"], 1), m["premature"])
        if not m["fail"] and m["alarm"]:
            print("   false", m["id"], round(m["first"], 1), m["episodes"])


if __name__ == "__main__":
    main()
