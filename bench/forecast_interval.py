"""
Calibrate the forecast's interval, and plot its reliability.

    python bench/forecast_interval.py FOLDER [FOLDER ...] [--draw docs/images]

Fits quantiles of true / predicted time with the pinball loss; each trace has the same weight. The
inputs are the disagreement of the time scales and the age of the growth. Cross-validated by
program. Uses only failing traces, from 60 s to 1 s before the end. Needs numpy and scipy; plots
need matplotlib.
"""

from __future__ import annotations

import argparse
import math
import os
from itertools import pairwise

import forecast_score as score
import numpy as np
from scipy.optimize import minimize

from watchdog_app.core.forecast.evidence import interval_widening, room_left
from watchdog_app.core.forecast.forecaster import TrendForecaster

NEAREST_S, FURTHEST_S = 1.0, 60.0


def collect(corpora):
    """
    Return rows of (trace, true, eta, low, high, sooner, later, youth, widening), and programs.
    """
    rows, programs = [], []
    number = 0
    for traces in corpora:
        for side, samples in traces:
            if side["outcome"] == "ok":
                continue
            number += 1
            forecaster = TrendForecaster()
            for t, used, limit in samples:
                forecaster.update(t, used, limit)
                left = side["oom_time_s"] - t
                found = forecaster.assess().forecast
                if not forecaster.thought or found is None:
                    continue
                if not NEAREST_S <= left <= FURTHEST_S or found.eta_s < 0.3:
                    continue
                trends, view = forecaster.trends(), forecaster.view()
                ends = [
                    c.time_to(room_left(c, view))
                    for c in trends
                    if c.agreement >= 0.6 and c.recent >= 0.3
                ]
                ends.append(found.eta_s)
                span = forecaster.assess().span_s
                rows.append(
                    (
                        number,
                        left,
                        found.eta_s,
                        found.low_s,
                        found.high_s,
                        min(2.0, math.log(found.eta_s / max(0.3, min(ends)))),
                        min(2.0, math.log(max(ends) / found.eta_s)),
                        1.0 / (1.0 + span / 8.0),
                        interval_widening(forecaster.choose(trends), view),
                    )
                )
                programs.append(side["workload"].removesuffix("-1").removesuffix("-2"))
    return np.array(rows), np.array(programs)


def fit(table, weights, quantile, sooner):
    """Fit one end of the interval; return its inputs, its sign and its three coefficients."""
    y = np.log(table[:, 1] / table[:, 2])
    x = np.stack([np.ones(len(table)), table[:, 5 if sooner else 6], table[:, 7]], 1)
    sign = -1 if sooner else 1
    y -= sign * table[:, 8]  # the widening of both ends is not fitted
    weights = weights / weights.sum()

    def loss(b):
        d = y - sign * (x @ b)
        return np.sum(weights * (quantile * d + 0.03 * np.logaddexp(0, -d / 0.03)))

    found = minimize(loss, [0.1, 0.5, 0.2], bounds=[(0.02, 2)] * 3, method="L-BFGS-B")
    return x, sign, found.x


def coverage(inside, traces):
    return float(np.mean([inside[traces == k].mean() for k in np.unique(traces)]))


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("folders", nargs="+")
    ap.add_argument("--draw", metavar="FOLDER")
    a = ap.parse_args()
    table, programs = collect([score.load(f) for f in a.folders])
    owner = table[:, 0]
    count = dict(zip(*np.unique(owner, return_counts=True), strict=True))
    weights = np.array([1.0 / count[k] for k in owner])
    y = np.log(table[:, 1] / table[:, 2])
    inside = (table[:, 1] >= table[:, 3]) & (table[:, 1] <= table[:, 4])
    print(f"as it is: {coverage(inside, owner):.1%} of the true times lie inside, traces alike")
    for low, high in ((0.1, 0.9), (0.12, 0.88)):
        ends = [fit(table, weights, low, True), fit(table, weights, high, False)]
        print(f"{low} to {high}:", *(np.round(b, 2) for _, _, b in ends))
        names = sorted(set(programs))
        np.random.default_rng(0).shuffle(names)
        held = np.zeros(len(table), bool)
        for k in range(8):
            test = np.isin(programs, names[k::8])
            _, _, b = fit(table[~test], weights[~test], low, True)
            _, _, b_high = fit(table[~test], weights[~test], high, False)
            at = np.stack([np.ones(len(table)), table[:, 5], table[:, 7]], 1)
            at_high = np.stack([np.ones(len(table)), table[:, 6], table[:, 7]], 1)
            given = table[:, 8]
            held[test] = ((y >= -(at @ b) - given) & (y <= at_high @ b_high + given))[test]
        print(f"   cross-validated: {coverage(held, owner):.1%}")
    if a.draw:
        draw(table, inside, weights, a.draw)


def draw(table, inside, weights, folder):
    """Plot predicted against true times, and the reliability diagram."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    _, true, eta, low, high = table[:, :5].T
    pick = np.random.default_rng(0).permutation(len(table))[:2500]
    figure, axes = plt.subplots(figsize=(5, 4.6), layout="constrained")
    axes.scatter(true[pick], np.clip(eta[pick], 0.5, 200), s=4, alpha=0.25, color="#00798c", lw=0)
    ends = np.array([1, 60])
    axes.plot(ends, ends, "k--", lw=0.8)
    axes.fill_between(ends, ends / 2, ends * 2, color="black", alpha=0.06, lw=0)
    axes.set(xscale="log", yscale="log", xlim=(1, 60), ylim=(0.5, 200))
    axes.set(xlabel="true seconds to the end", ylabel="foretold (median)")
    axes.set_title("Every failing trace, its last minute", fontsize=10)
    figure.savefig(os.path.join(folder, "forecast-predicted-actual.png"), dpi=90)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    # The interval has three quantiles; interpolate the logarithm linearly between them.
    marks = np.array([0.02, 0.1, 0.5, 0.9, 0.98])
    below = []
    for share in (-1.8, -1, 0, 1, 1.8):
        spread = np.where(share < 0, np.log(eta / np.maximum(low, 0.05)), np.log(high / eta))
        at = np.log(eta) + share * spread
        below.append(np.sum(weights * (np.log(true) <= at)) / weights.sum())
    left.plot([0, 1], [0, 1], "k--", lw=0.8)
    left.plot(marks[1:4], below[1:4], "o-", color="#00798c")
    left.set(xlabel="quantile foretold", ylabel="share that came sooner", xlim=(0, 1), ylim=(0, 1))
    left.set_title("Reliability", fontsize=10)
    edges = [1, 3, 6, 12, 25, 60]
    shares = [
        np.average(inside[m], weights=weights[m])
        for lo, hi in pairwise(edges)
        if (m := (true >= lo) & (true < hi)).any()
    ]
    names = [f"{lo}-{hi}" for lo, hi in pairwise(edges)]
    right.bar(names, shares, color="#00798c", alpha=0.7)
    right.axhspan(0.75, 0.85, color="black", alpha=0.1, lw=0)
    right.set(xlabel="true seconds to the end", ylabel="inside the 80 % interval", ylim=(0, 1))
    right.set_title("Coverage by distance", fontsize=10)
    figure.savefig(os.path.join(folder, "forecast-reliability.png"), dpi=90)


if __name__ == "__main__":
    main()
