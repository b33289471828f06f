"""
Simulate ordinary days: how many alarms does a machine raise that is never in danger?

    python bench/forecast_day.py [--days 5] [--caution normal]

A workstation with 32 GiB has a desktop whose memory varies. Notebooks load datasets at disk speed,
train with warm-up, garbage and validation spikes, and are closed. Builds have bursts. The level
never exceeds 88 % of the limit, so every alarm is false.
"""

from __future__ import annotations

import argparse
import random

from watchdog_app.core.forecast.stages import ResourceMonitor
from watchdog_app.core.model.decisions import Caution
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.settings import StageSettings, WatchSettings

GIB = 1024.0**3
LIMIT = 32 * GIB
MOST = 0.88 * LIMIT
DAY_S = 86400.0


def jobs(draw):
    """
    Return the memory users of a day: (start, end, bytes as a function of seconds since start).
    """
    found = []
    t = 8 * 3600.0
    while t < 20 * 3600.0:
        kind = draw.random()
        if kind < 0.5:
            found.append(notebook(draw, t))
        elif kind < 0.8:
            found.append(build(draw, t))
        else:
            found.append(browser(draw, t))
        t += draw.expovariate(1 / 1500.0)
    return found


def notebook(draw, start):
    size = draw.choice([0.5, 1, 2, 4, 8]) * GIB * draw.uniform(0.6, 1.4)
    rate = draw.uniform(0.05, 0.6) * GIB
    warm = draw.uniform(0.3, 1.5) * GIB
    epoch, spike = draw.uniform(20, 300), draw.uniform(0, 0.4) * size
    garbage, period = draw.uniform(0, 0.15) * size, draw.uniform(3, 40)
    lasts = draw.uniform(300, 7200)
    copy = draw.random() < 0.3

    def level(s):
        loaded = min(size, s * rate)
        total = loaded
        if copy and size / rate < s < size / rate + 4:
            total += loaded * min(1.0, (s - size / rate) / 2)
        s -= size / rate
        if s > 5:
            total += warm * min(1.0, (s - 5) / 12)
            total += garbage * (s % period) / period
            if s % epoch > 0.85 * epoch:
                total += spike
        return total

    return start, start + lasts, level


def build(draw, start):
    peak, lasts = draw.uniform(0.5, 6) * GIB, draw.uniform(20, 400)
    phases = [draw.uniform(0.2, 1) for _ in range(12)]

    def level(s):
        return peak * min(1.0, s / 5) * phases[int(s / lasts * 12) % 12]

    return start, start + lasts, level


def browser(draw, start):
    size, lasts, tau = draw.uniform(0.3, 3) * GIB, draw.uniform(600, 20000), draw.uniform(20, 900)

    def level(s):
        return size * s / (s + tau)

    return start, start + lasts, level


def day(seed, caution):
    """Simulate one day; return notifications, silent checkpoints, samples, and heads-ups."""
    draw = random.Random(seed)
    running = jobs(draw)
    watch = ResourceMonitor(WatchSettings(caution=caution), StageSettings())
    t, wander, samples = 0.0, 5 * GIB, 0
    notices = rescues = heads_ups = 0
    told = saved = seen = False
    watched_s = 0.0  # time at level watch or above
    while t < DAY_S:
        wander = min(9 * GIB, max(3 * GIB, wander + draw.gauss(0, 4e6)))
        used = wander
        for start, end, level in running:
            if start <= t < end and used < MOST:
                used = min(MOST, used + level(t - start))
        a = watch.step(t, used + draw.gauss(0, 3e6), LIMIT)
        notices += a.notify and not told
        rescues += a.rescue and not saved
        heads_ups += a.level >= Level.WATCH and not seen
        told, saved, seen = a.notify, a.rescue, a.level >= Level.WATCH
        samples += 1
        watched_s += watch.next_sample_s if seen else 0.0
        t += watch.next_sample_s
    return notices, rescues, samples, heads_ups, watched_s / 60


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--days", type=int, default=5)
    ap.add_argument("--caution", default="normal")
    a = ap.parse_args()
    found = [day(seed, Caution(a.caution)) for seed in range(a.days)]
    for seed, (notices, rescues, samples, heads_ups, minutes) in enumerate(found):
        print(
            f"day {seed}: notices {notices}, silent checkpoints {rescues}, looks {samples}, "
            f"heads-ups {heads_ups}, {minutes:.1f} min"
        )
    n = len(found)
    print(
        f"a day on average: notices {sum(f[0] for f in found) / n:.2f}, "
        f"silent checkpoints {sum(f[1] for f in found) / n:.2f}, "
        f"heads-ups {sum(f[3] for f in found) / n:.2f}, {sum(f[4] for f in found) / n:.1f} min"
    )


if __name__ == "__main__":
    main()
