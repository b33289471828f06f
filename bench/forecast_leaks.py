"""
Play leaks into a limit, sampled as often as the engine requests: does each lead to a rescue?

    python bench/forecast_leaks.py
    python bench/forecast_leaks.py --ramps

A warm-up to a plateau, then growth in training steps; only growth that takes 5 s or more from half
full to full. Prints the shortest time between the rescue stage and the end.

With --ramps: growth by steps that ends with a loop, below the limit or above it. The agent reports
the number of steps or not; its reports come once a second. Prints how many ramps that fit were
notified of, and how long before the end those were that do not fit.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
from dataclasses import replace
from pathlib import Path

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


def ramps():
    """Print the effect of a known number of steps on ramps that end."""
    sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests" / each)
                    for each in ("", "core")]  # fmt: skip
    from simulation import MB, Machine, Program

    class Training(Machine):
        total = None  # the number of steps that the agent reports

        def _agent(self, program):
            done = min(int(int(program.ran_s) / program.step_s), self.total or 0)
            view = super()._agent(program)
            return replace(view, phase="train", steps_left=self.total and self.total - done)

    def notified_s(seed, end_mb, seconds, known):
        draw = random.Random(f"{seed} {end_mb} {seconds}")
        base, warm, step = draw.uniform(100, 300), draw.uniform(2, 8), draw.uniform(0.02, 0.4)
        tooth, period = draw.uniform(0, 15), draw.uniform(2, 9)

        def grows(t):
            level = base * min(1.0, t / warm) + (end_mb - base) * min(1.0, t / seconds)
            return (level + tooth * (t % period) / period * (t < seconds)) * MB

        machine = Training(Program(1, "train.py", grows, step, save_s=0.1, group="g"),
                           groups={"g": 1000.0})  # fmt: skip
        machine.total = int(seconds / step) if known else None
        machine.run(seconds + 30)
        times = [each.at_mono_s for each in machine.log if each.kind.value == "notify"]
        full_s = (1000 - base) / (end_mb - base) * seconds
        return full_s - times[0] if times else None

    cases = list(itertools.product(range(2), (60, 180)))
    for known in (False, True):
        fit = [notified_s(seed, end, seconds, known) is not None
               for seed, seconds in cases for end in (600, 700, 800, 850)]  # fmt: skip
        leads = [notified_s(seed, end, seconds, known)
                 for seed, seconds in cases for end in (1200, 1500, 2500)]  # fmt: skip
        leads = sorted(each or 0.0 for each in leads)
        print(
            f"steps {'known' if known else 'unknown'}: {sum(fit)} of {len(fit)} ramps that fit are "
            f"notified of; the {len(leads)} that do not {statistics.median(leads):.0f} s before "
            f"the end (10 to 90 %: {leads[len(leads) // 10]:.0f} to {leads[-len(leads) // 10]:.0f})"
        )


def main():
    if "--ramps" in sys.argv:
        ramps()
        return
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
