"""
Play leaks into a limit, sampled as often as the engine requests: does each lead to a rescue?

    python bench/forecast_leaks.py

A warm-up to a plateau, then growth in training steps; only growth that takes 5 s or more from half
full to full. Prints the shortest time between the rescue stage and the end.
"""

from __future__ import annotations

import itertools
import random

from watchdog_app.core.forecast.stages import ResourceMonitor
from watchdog_app.core.model.decisions import SaveCost
from watchdog_app.core.model.settings import StageSettings, WatchSettings

MIB = 1024.0**2


def lead(draw, limit, rate, plateau):
    """Return the seconds between the first rescue and the end; None: no rescue."""
    watch = ResourceMonitor(WatchSettings(), StageSettings())
    warm = draw.uniform(3, 9)
    quiet, step = warm + draw.uniform(1, 20), draw.uniform(0.02, 0.3)
    costs = SaveCost(draw.uniform(0.1, 0.8), step)
    t = draw.random()
    while True:
        used = plateau * limit * min(1.0, t / warm) ** 0.7
        if t > quiet:
            used += rate * step * int((t - quiet) / step)
        if used >= limit:
            return None
        a = watch.step(t, used * MIB + draw.gauss(0, 2e6), limit * MIB, costs)
        if a.rescue and t > quiet:
            return (limit - used) / rate
        t += watch.next_sample_s


def main():
    runs = missed = 0
    shortest = float("inf")
    cases = itertools.product(range(12), (800, 1200, 2000), (5, 20, 100, 300), (0.25, 0.4, 0.55))
    for seed, limit, rate, plateau in cases:
        if 0.5 * limit / rate < 5:
            continue
        runs += 1
        found = lead(random.Random(f"{seed} {limit} {rate} {plateau}"), limit, rate, plateau)
        missed += found is None
        shortest = min(shortest, found if found is not None else shortest)
    print(f"{runs} runs, {missed} missed, the latest rescue {shortest:.1f} s before the end")


if __name__ == "__main__":
    main()
