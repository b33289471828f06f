"""
Choose the thresholds of a tier on recorded traces, and cross-validate the choice.

    python bench/forecast_fit.py FOLDER [FOLDER ...] [--tier strict|eager] [--moved 3]

The first folder matters most. The others, and copies of all with a changed limit, only make the
choice more stable. The program chooses five thresholds, each from three values about a sixth apart,
one after another until nothing improves. All other thresholds keep their values. A finer or wider
search would fit the noise of 50 failures. Prints the choice, the in-sample figures and the figures
cross-validated by program: no threshold saw another run of the program that it is judged on. Every
figure comes from the engine itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import multiprocessing
import random

import forecast_score as score

from watchdog_app.core.forecast.evidence import convincing_eta_s, read_claims
from watchdog_app.core.forecast.forecaster import EAGER, STRICT, TrendForecaster

GRID = {
    "young_span_s": (0.88, 1.0, 1.12),
    "span_s": (0.88, 1.0, 1.12),
    "young_evidence": (0.84, 1.0, 1.16),
    "evidence": (0.84, 1.0, 1.16),
    "horizon_s": (0.84, 1.0, 1.2),
}
CENTRE = (1, 1, 1, 1, 1)
FOLDS, ROUNDS = 6, 3
HELD_S = 4.0  # how long a tier stays open after its evidence
FULL = 0.985
LAST_S = 1.5
AWAY = 0.6  # minimum gain for a step away from the centre


def moved(traces, seed):
    """
    Return the same programs with another limit: earlier failures, and smaller margins otherwise.
    """
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


def thresholds(start, point):
    """Return the rules of a tier, its first one at a point of the grid."""
    factors = {n: values[i] for (n, values), i in zip(GRID.items(), point, strict=True)}
    scaled = {n: getattr(start[0], n) * f for n, f in factors.items()}
    return (dataclasses.replace(start[0], **scaled), *start[1:])


class Alarm:
    """The state of one tier at one point of the grid."""

    def __init__(self, ask):
        self.ask = ask
        self.convinced = False
        self.until = -math.inf
        self.open = []


def judge(job):
    """Return {point: figures} of one trace, all points in one pass of the engine."""
    (side, rows), start, points, tier = job
    forecaster = TrendForecaster()
    alarms = [Alarm(thresholds(start, point)) for point in points]
    times = []
    for t, used, limit in rows:
        forecaster.update(t, used, limit)
        times.append(t)
        if forecaster.thought:
            view = forecaster.view()
            claims = read_claims(forecaster.trends(), view, 0.15)
            soon = forecaster.last_chance(view) if tier == "eager" else None
            sure = forecaster.is_full(view) or (soon is not None and soon < LAST_S)
            for alarm in alarms:
                found = convincing_eta_s(claims, view, alarm.ask, alarm.convinced)
                alarm.convinced = found is not None
                if sure or alarm.convinced:
                    alarm.until = t + HELD_S
        for alarm in alarms:
            alarm.open.append(t <= alarm.until)
    unknown = [None] * len(times)
    return {
        point: score.judge(side, times, alarm.open, unknown)
        for point, alarm in zip(points, alarms, strict=True)
    }


class Figures:
    """Figures of every trace at the points of the grid, each computed once."""

    def __init__(self, sets, start, tier, pool):
        self.sets, self.start, self.tier, self.pool = sets, start, tier, pool
        self.known = {}  # point: for each set, the figures of each trace

    def need(self, points):
        new = sorted(set(points) - set(self.known))
        if not new:
            return
        jobs = [(trace, self.start, new, self.tier) for traces in self.sets for trace in traces]
        found = iter(self.pool.map(judge, jobs, chunksize=4))
        for point in new:
            self.known[point] = []
        for traces in self.sets:
            per_trace = [next(found) for _ in traces]
            for point in new:
                self.known[point].append([figures[point] for figures in per_trace])


def worth(m, tier):
    """Return the value of a trace's figures: lead times against false alarms."""
    if not m["fail"]:
        alarm, episode = (2.0, 0.4) if tier == "strict" else (0.9, 0.2)
        return -alarm * m["alarm"] - episode * m["episodes"]
    lead = m["lead"] or 0.0
    total = 0.6 * min(lead, 13.0) / 13.0 + 0.4 * (lead >= 3.0) + (lead >= 10.0)
    total -= 2.0 * (m["premature"] > 0)
    return total + (0.3 * min(lead, 25.0) / 25.0 if tier == "eager" else 0.0)


def choose(figures, weights, folds):
    """Return the best point for each fold; a fold is the set of programs left out."""

    def value(point, left_out):
        total = -AWAY * sum(abs(i - j) for i, j in zip(point, CENTRE, strict=True))
        for weight, found in zip(weights, figures.known[point], strict=True):
            total += weight * sum(
                worth(m, figures.tier) for m in found if program(m) not in left_out
            )
        return total

    at = [CENTRE] * len(folds)
    for _ in range(ROUNDS):
        before = list(at)
        for axis in range(len(GRID)):
            tried = [[(*p[:axis], i, *p[axis + 1 :]) for i in range(3)] for p in at]
            figures.need([point for points in tried for point in points])
            at = [
                max([here, *points], key=lambda p, fold=fold: value(p, fold))
                for here, points, fold in zip(at, tried, folds, strict=True)
            ]
        if at == before:
            break
    return at


def program(m):
    return m["workload"].removesuffix("-1").removesuffix("-2")


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("folders", nargs="+")
    ap.add_argument("--tier", default="strict", choices=["strict", "eager"])
    ap.add_argument("--moved", type=int, default=3)
    a = ap.parse_args()
    sets, weights, names = [], [], []
    for folder in a.folders:
        traces = score.load(folder)
        sets.append(traces)
        weights.append(1.0)
        names.append(folder)
        for k in range(a.moved):
            sets.append(moved(traces, k))
            weights.append(0.3)
            names.append(f"{folder}, limits moved {k}")
    # The horizon of an unknown cost: (5 s to save + 1 s a step) x 3, at the low end of the
    # forecast.
    eager = (dataclasses.replace(EAGER[0], horizon_s=30.0), *EAGER[1:])
    start = STRICT if a.tier == "strict" else eager
    whole = sorted({program(side) for traces in sets for side, _ in traces})
    random.Random(0).shuffle(whole)
    folds = [set()] + [set(whole[k::FOLDS]) for k in range(FOLDS)]
    with multiprocessing.Pool() as pool:
        figures = Figures(sets, start, a.tier, pool)
        figures.need([CENTRE])
        for name, ms in zip(names, figures.known[CENTRE], strict=True):
            print("as it is       ", score.text(name[-24:], score.summary(ms)))
        points = choose(figures, weights, folds)
    for fold, point in zip(["all", *range(FOLDS)], points, strict=True):
        ask = thresholds(start, point)
        print(f"   {fold}:", *(f"{n}={getattr(ask[0], n):.2f}" for n in GRID))
    for j, name in enumerate(names):
        print("in-sample      ", score.text(name[-24:], score.summary(figures.known[points[0]][j])))
    for j, name in enumerate(names):
        held = [
            m
            for fold, point in zip(folds[1:], points[1:], strict=True)
            for m in figures.known[point][j]
            if program(m) in fold
        ]
        print("cross-validated", score.text(name[-24:], score.summary(held)))
        if j:
            continue
        for m in held:
            if m["fail"] and (m["lead"] is None or m["lead"] < 10 or m["premature"]):
                print(
                    "   late or early", m["id"], m["lead"] and round(m["lead"], 1), m["premature"]
                )
            if not m["fail"] and m["alarm"]:
                print("   false", m["id"], round(m["first"], 1), m["episodes"])


if __name__ == "__main__":
    main()
