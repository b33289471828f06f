"""
Small programs with known memory curves, for recorded traces.

    python bench/forecast_workloads.py KIND LIMIT_MB SEED

Run it in a memory group of LIMIT_MB. Kinds that start with "oom_" grow until the kernel kills them.
Kinds that start with "ok_" look similar and end normally. All figures are drawn from SEED, so that
one kind gives many different traces.
"""

from __future__ import annotations

import random
import sys
import time

MB = 1 << 20
HELD: list[bytearray] = []


def grow(megabytes):
    """Allocate this much more, written to so that it is resident."""
    while megabytes > 0:
        part = min(megabytes, 4.0)
        HELD.append(bytearray(b"\1") * int(part * MB))
        megabytes -= part


def shrink(megabytes):
    """Free this much."""
    while megabytes > 0 and HELD:
        megabytes -= len(HELD.pop()) / MB


def used():
    """Return the allocated memory in MB."""
    return sum(map(len, HELD)) / MB


def ramp(rate, until, tick=0.1, jitter=0.3):
    """Grow at `rate` MB/s up to `until` MB."""
    while used() < until:
        grow(max(0.05, rate * tick * random.uniform(1 - jitter, 1 + jitter)))
        time.sleep(tick)


def spike(megabytes, hold_s, fill_s=0.5):
    """Make a temporary copy."""
    copy = []
    for _ in range(10):
        copy.append(bytearray(b"\1") * int(megabytes / 10 * MB))
        time.sleep(fill_s / 10)
    time.sleep(hold_s)


def oom_spiky_leak(m):
    """A leak below validation spikes."""
    grow(0.2 * m)
    rate, size, period = (
        m * random.uniform(0.006, 0.014),
        m * random.uniform(0.1, 0.25),
        random.uniform(4, 9),
    )
    while True:
        ramp(rate, used() + rate * period)
        spike(size * random.uniform(0.6, 1), 0.5)


def oom_accelerate(m):
    """Exponential growth."""
    grow(0.08 * m)
    share = random.uniform(0.03, 0.06)
    while True:
        grow(used() * share * random.uniform(0.5, 1.5))
        time.sleep(1.0)


def oom_stairs(m):
    """Steps with pauses of random length."""
    grow(0.15 * m)
    while True:
        step = m * random.uniform(0.02, 0.1)
        ramp(m * random.uniform(0.03, 0.1), used() + step)
        time.sleep(random.uniform(0.5, 7))


def oom_late_noise(m):
    """Long constant noise, then a leak below it."""
    grow(0.35 * m)
    began, quiet = time.monotonic(), random.uniform(20, 40)
    rate = m * random.uniform(0.008, 0.03)
    while True:
        spike(m * random.uniform(0.0, 0.12), random.uniform(0, 0.4), 0.1)
        if time.monotonic() - began > quiet:
            grow(rate * 0.5)
        time.sleep(0.3)


def oom_slowing(m):
    """Growth that slows but still reaches the limit."""
    power, span, began = random.uniform(0.5, 0.75), random.uniform(55, 90), time.monotonic()
    while True:
        want = 1.02 * m * ((time.monotonic() - began) / span) ** power
        grow(max(0.0, want - used()))
        time.sleep(0.2)


def oom_linear(m):
    """A plain leak from the start, after some loading."""
    ramp(m * random.uniform(0.1, 0.3), m * random.uniform(0.1, 0.4))
    ramp(m * random.uniform(0.008, 0.025), 10 * m)


def oom_copies(m):
    """A table that is copied for each append: the peak is twice the floor."""
    grow(0.05 * m)
    rate = m * random.uniform(0.006, 0.012)
    while True:
        spike(used(), 0.1, 0.3)
        grow(rate * random.uniform(1, 2))
        time.sleep(random.uniform(0.2, 1.5))


def ok_load(m):
    """A dataset loaded at constant speed, then work on it."""
    ramp(m * random.uniform(0.02, 0.06), m * random.uniform(0.5, 0.85))
    for _ in range(40):
        spike(m * 0.03, 0.5)


def ok_two_stages(m):
    """Data loaded, converted, and the original freed."""
    a = m * random.uniform(0.3, 0.42)
    ramp(m * random.uniform(0.03, 0.08), a)
    ramp(m * random.uniform(0.03, 0.08), 2 * a)
    shrink(a)
    for _ in range(30):
        spike(m * 0.05, 0.5)


def ok_sawtooth(m):
    """Garbage collected at random levels."""
    base = m * random.uniform(0.2, 0.4)
    grow(base)
    rate = m * random.uniform(0.02, 0.06)
    began = time.monotonic()
    while time.monotonic() - began < 70:
        ramp(rate, m * random.uniform(0.65, 0.85))
        shrink(used() - base)


def ok_ring(m):
    """A buffer that fills to a fixed size."""
    grow(m * random.uniform(0.1, 0.3))
    ramp(m * random.uniform(0.012, 0.03), m * random.uniform(0.55, 0.85))
    time.sleep(35)


def ok_stairs(m):
    """Steps that end."""
    top = m * random.uniform(0.6, 0.85)
    while used() < top:
        ramp(m * random.uniform(0.03, 0.1), used() + m * random.uniform(0.03, 0.12))
        time.sleep(random.uniform(0.5, 6))
    time.sleep(30)


def ok_spikes(m):
    """Validation of random size every epoch."""
    grow(m * random.uniform(0.2, 0.4))
    for _ in range(9):
        time.sleep(random.uniform(4, 8))
        spike(m * random.uniform(0.2, 0.5), random.uniform(0.5, 3), random.uniform(0.5, 3))


def ok_slowing(m):
    """A cache that gets fewer and fewer new keys."""
    top, tau, began = (
        m * random.uniform(0.6, 0.9),
        random.uniform(10, 25),
        time.monotonic(),
    )
    while (passed := time.monotonic() - began) < 90:
        grow(max(0.0, top * passed / (passed + tau) - used()))
        time.sleep(0.2)


def ok_wander(m):
    """A level that varies within bounds."""
    level = 0.5
    began = time.monotonic()
    while time.monotonic() - began < 80:
        level = min(0.85, max(0.35, level + random.gauss(0, 0.03)))
        grow(max(0.0, level * m - used()))
        shrink(max(0.0, used() - level * m - 4))
        time.sleep(0.5)


KINDS = {k: f for k, f in globals().items() if k.startswith(("oom_", "ok_"))}

if __name__ == "__main__":
    random.seed(f"{sys.argv[1]} {sys.argv[3]}")
    KINDS[sys.argv[1]](float(sys.argv[2]) - 12.0)
