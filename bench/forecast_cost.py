"""
What one ceiling under watch costs, in microseconds a sample and bytes.

    python bench/forecast_cost.py
"""

from __future__ import annotations

import random
import time
import tracemalloc

from watchdog_app.core.settings import StageSettings, WatchSettings
from watchdog_app.core.watch import CeilingWatch

LIMIT = 16.0 * 1024**3


def cost(name, hz, level, samples=20000):
    watch = CeilingWatch(WatchSettings(), StageSettings())
    series = [(i / hz, level(i / hz)) for i in range(samples)]
    began = time.process_time()
    for t, used in series:
        watch.step(t, used, LIMIT)
    spent = time.process_time() - began
    print(f"{name:32s} {1e6 * spent / samples:6.1f} us a sample")


def main():
    draw = random.Random(0)
    cost("at rest, 1 Hz, flat", 1, lambda _: 0.4 * LIMIT)
    cost("at rest, 1 Hz, noise of 0.1 %", 1, lambda _: LIMIT * (0.4 + draw.gauss(0, 1e-3)))
    cost("at rest, 1 Hz, noise of 1 %", 1, lambda _: LIMIT * (0.4 + draw.gauss(0, 1e-2)))
    cost("watched, 10 Hz, leak", 10, lambda t: LIMIT * min(0.97, 0.2 + t / 3000))
    cost("watched, 10 Hz, noisy leak", 10, lambda t: LIMIT * (0.2 + t / 3000 + draw.gauss(0, 5e-3)))
    cost("watched, 10 Hz, sawtooth", 10, lambda t: LIMIT * (0.3 + 0.02 * (t % 20) + t / 9000))
    tracemalloc.start()
    watch = CeilingWatch(WatchSettings(), StageSettings())
    for i in range(20000):
        watch.step(i / 10, LIMIT * (0.4 + draw.gauss(0, 0.05)), LIMIT)
    print(f"memory: {tracemalloc.get_traced_memory()[0] / 1024:.0f} KiB after 20000 samples")


if __name__ == "__main__":
    main()
