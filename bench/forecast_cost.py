"""
Measure the cost of one watched resource, in microseconds a sample and bytes.

    python bench/forecast_cost.py

Each case alternates with a loop of a hundred float additions, for five rounds; the fastest round of
each counts. Compare the ratio of the two, not the time, between machines or on a shared machine.
"""

from __future__ import annotations

import random
import time
import tracemalloc

from watchdog_app.core.forecast.stages import ResourceMonitor
from watchdog_app.core.model.settings import StageSettings, WatchSettings

LIMIT = 16.0 * 1024**3
ROUNDS = 5


def baseline(repeats=2000):
    """Return the seconds for a hundred float additions."""
    began = time.process_time()
    for _ in range(repeats):
        total = 0.0
        for i in range(100):
            total += i
    return (time.process_time() - began) / repeats


def played(series):
    """Return the seconds per sample."""
    watch = ResourceMonitor(WatchSettings(), StageSettings())
    began = time.process_time()
    for t, used in series:
        watch.step(t, used, LIMIT)
    return (time.process_time() - began) / len(series)


def cost(name, hz, level, samples=10000):
    series = [(i / hz, level(i / hz)) for i in range(samples)]
    rounds = [(played(series), baseline()) for _ in range(ROUNDS)]
    spent, loop = (min(column) for column in zip(*rounds, strict=True))
    print(f"{name:32s} {1e6 * spent:6.1f} us a sample, {spent / loop:5.1f} loops")


def main():
    draw = random.Random(0)
    print(f"a loop of 100 additions takes {1e6 * min(baseline() for _ in range(ROUNDS)):.2f} us")
    cost("at rest, 1 Hz, flat", 1, lambda _: 0.4 * LIMIT)
    cost("at rest, 1 Hz, noise of 0.1 %", 1, lambda _: LIMIT * (0.4 + draw.gauss(0, 1e-3)))
    cost("at rest, 1 Hz, noise of 1 %", 1, lambda _: LIMIT * (0.4 + draw.gauss(0, 1e-2)))
    cost("watched, 10 Hz, leak", 10, lambda t: LIMIT * min(0.97, 0.2 + t / 1500))
    cost("watched, 10 Hz, noisy leak", 10, lambda t: LIMIT * (0.2 + t / 1500 + draw.gauss(0, 5e-3)))
    cost("watched, 10 Hz, sawtooth", 10, lambda t: LIMIT * (0.3 + 0.02 * (t % 20) + t / 4500))
    tracemalloc.start()
    watch = ResourceMonitor(WatchSettings(), StageSettings())
    for i in range(20000):
        watch.step(i / 10, LIMIT * (0.4 + draw.gauss(0, 0.05)), LIMIT)
    print(f"memory: {tracemalloc.get_traced_memory()[0] / 1024:.0f} KiB after 20000 samples")


if __name__ == "__main__":
    main()
