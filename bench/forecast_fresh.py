"""
Further small data science programs for recorded traces, of families that chose no threshold.

    python bench/forecast_fresh.py KIND LIMIT_MB SEED

As forecast_programs.py: in a memory group of LIMIT_MB, the oom_ programs grow until the kernel
kills them, the ok_ programs look alike and end well. They need NumPy, pandas and torch.
"""

from __future__ import annotations

import functools
import multiprocessing as mp
import random
import sys
import time

MB = 1 << 20


def until(seconds):
    """Yield until `seconds` have passed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def array(megabytes):
    """Return random numbers of this size."""
    import numpy as np

    return np.random.default_rng(0).random(max(1, int(megabytes * MB / 8)))


def fill(kept, megabytes, seconds, jitter=0.3, tick=0.15):
    """Append arrays of this size in all over about so many seconds."""
    done, rate = 0.0, megabytes / seconds
    while done < megabytes:
        part = rate * tick * random.uniform(1 - jitter, 1 + jitter)
        kept.append(array(part))
        done += part
        time.sleep(tick)


def words(count):
    """Return a text of this many words."""
    return " ".join(f"w{random.randrange(50000)}" for _ in range(count))


def work(seconds, of):
    """Compute on an array without keeping anything."""
    for _ in until(seconds):
        (of[:200000] * 1.01).sum()
        time.sleep(0.05)


# These end in a kill


def oom_preprocess(m):
    """Preprocessing appends features at a steady rate; there are too many samples."""
    kept = [array(m * random.uniform(0.05, 0.3))]
    work(random.uniform(2, 15), kept[0])
    fill(kept, 2 * m, 2 * random.uniform(40, 110), jitter=0.5)


def oom_load_all(m):
    """Loads files from the first moment on; they do not fit."""
    fill([], 2 * m, 2 * random.uniform(20, 90), jitter=random.uniform(0.1, 0.8))


def oom_tokenize(m):
    """Tokenises a corpus into lists of lists."""
    kept, pace = [], random.uniform(0.02, 0.12)
    while True:
        text = words(int(m * 12))
        kept.append([hash(each) for each in text.split()])
        time.sleep(pace * random.uniform(0.5, 2))


def oom_worker_cache(m):
    """Loader workers cache the samples that they decoded."""
    rate = m / random.uniform(50, 120) / 3
    for _ in range(3):
        mp.Process(target=_caching_worker, args=(rate,), daemon=True).start()
        time.sleep(random.uniform(0.5, 3))
    kept = array(m * 0.1)
    while True:
        work(5, kept)


def _caching_worker(rate):
    fill([], 1e9, 1e9 / rate, jitter=0.6, tick=0.3)


def oom_joins(m):
    """Joins one more table onto a result in every round."""
    import numpy as np
    import pandas as pd

    rows = int(m * 600)
    ids = np.arange(rows)
    result = pd.DataFrame({"id": ids})
    for i in range(100000):
        part = pd.DataFrame({"id": np.random.permutation(ids), f"c{i}": np.random.rand(rows)})
        result = result.merge(part, on="id")
        time.sleep(random.uniform(0.3, 1.2))


def oom_epochs(m):
    """Every epoch keeps its predictions; within an epoch memory rises and falls."""
    kept = [array(m * 0.15)]
    steps, keep = random.randint(20, 60), m * random.uniform(0.02, 0.07)
    while True:
        batch = []
        for _ in range(steps):
            batch.append(array(m * 0.12 / steps))
            time.sleep(0.12)
        kept.append(array(keep))


def oom_checkpoints(m):
    """A steady leak below the spikes of checkpoints."""
    kept, size = [array(m * 0.2)], m * random.uniform(0.08, 0.2)
    period, rate = random.uniform(8, 20), m / random.uniform(60, 120)
    while True:
        fill(kept, rate * period, period)
        copy = array(size)
        time.sleep(random.uniform(0.3, 1.5))
        del copy


def oom_arena(m):
    """An allocator that takes memory in slabs, later and later ones larger."""
    kept, slab = [], m * random.uniform(0.03, 0.07)
    while True:
        kept.append(array(slab))
        slab *= random.uniform(1.0, 1.08)
        work(random.uniform(2.0, 5.5), kept[0])


def oom_memoize(m):
    """A cache without a bound whose misses become rarer."""

    @functools.cache
    def embed(key):
        return array(m * 0.004)

    pool, pace = random.uniform(500, 900), random.uniform(0.02, 0.05)
    while True:
        embed(int(random.triangular(0, pool, 0)))
        time.sleep(pace)


def oom_stop_and_go(m):
    """Grows in pieces between pauses for computing."""
    kept = [array(m * 0.1)]
    while True:
        fill(kept, m * random.uniform(0.05, 0.15), random.uniform(3, 9))
        work(random.uniform(0.5, 8), kept[0])


def oom_quiet_then_leak(m):
    """Trains at one level, then begins to leak."""
    kept = [array(m * random.uniform(0.3, 0.55))]
    work(random.uniform(20, 45), kept[0])
    fill(kept, 2 * m, 2 * random.uniform(25, 80))


def oom_torch_history(m):
    """Keeps losses with their graphs."""
    import torch

    width = random.choice([128, 256])
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(6)])
    kept = []
    pace = random.uniform(0.02, 0.08)
    while True:
        x = torch.randn(random.choice([96, 128]) * int(m / 300), width)
        kept.append(model(x).square().mean())
        time.sleep(pace)


# These end well


def ok_preprocess(m):
    """Preprocessing fills a list at a steady rate, then trains on it."""
    kept = [array(m * random.uniform(0.05, 0.2))]
    work(random.uniform(1, 15), kept[0])
    fill(kept, m * random.uniform(0.3, 0.68), random.uniform(20, 80), jitter=0.5)
    work(40, kept[0])


def ok_load_all(m):
    """Loads files from the first moment on, then trains."""
    kept = []
    fill(
        kept, m * random.uniform(0.5, 0.88), random.uniform(12, 60), jitter=random.uniform(0.1, 0.8)
    )
    work(40, kept[0])


def ok_two_ramps(m):
    """Reads, computes, derives features, drops the raw data and trains."""
    raw, kept = [], []
    fill(raw, m * random.uniform(0.25, 0.4), random.uniform(10, 30))
    work(random.uniform(5, 15), raw[0])
    fill(kept, m * random.uniform(0.25, 0.5), random.uniform(15, 40))
    raw.clear()
    work(30, kept[0])


def ok_tokenize(m):
    """Tokenises, packs the tokens into an array and frees the lists."""
    import numpy as np

    kept, size = [], m * random.uniform(5, 8)
    for _ in range(random.randint(50, 110)):
        kept.append([hash(each) for each in words(int(size)).split()])
        time.sleep(random.uniform(0.1, 0.5))
    packed = np.concatenate([np.array(each) for each in kept])
    kept.clear()
    work(30, packed)


def ok_workers(m):
    """Loader workers that start in turns and reach their working set."""
    size = m * random.uniform(0.12, 0.24)
    workers = []
    for _ in range(3):
        workers.append(mp.Process(target=_bounded_worker, args=(size, random.uniform(10, 40))))
        workers[-1].start()
        time.sleep(random.uniform(0.5, 6))
    for each in workers:
        each.join()


def _bounded_worker(size, seconds):
    kept = []
    fill(kept, size, seconds, jitter=0.6, tick=0.3)
    work(60, kept[0])


def ok_cache_cap(m):
    """A cache that fills at a steady rate up to its bound, then replaces."""
    kept = []
    fill(kept, m * random.uniform(0.45, 0.85), random.uniform(30, 90))
    for _ in until(40):
        kept[random.randrange(len(kept))] = array(m * 0.005)
        time.sleep(0.1)


def ok_cache_levels(m):
    """A cache whose misses become rarer."""
    kept, top, tau = [], m * random.uniform(0.5, 0.85), random.uniform(12, 45)
    held, began = 0.0, time.monotonic()
    for _ in until(110):
        want = top * (1 - 2.718 ** ((began - time.monotonic()) / tau))
        if want - held > 0.5:
            kept.append(array(want - held))
            held = want
        time.sleep(0.15)


def ok_epochs(m):
    """Every epoch loads a shard and frees it."""
    base = array(m * random.uniform(0.1, 0.3))
    for _ in range(6):
        shard = []
        fill(shard, m * random.uniform(0.3, 0.58), random.uniform(8, 18))
        work(2, base)


def ok_checkpoints(m):
    """Trains at one level with the spikes of checkpoints and validations."""
    base = array(m * random.uniform(0.3, 0.5))
    for _ in range(7):
        work(random.uniform(6, 15), base)
        copy = []
        fill(copy, m * random.uniform(0.1, 0.4), random.uniform(0.5, 3))
        time.sleep(random.uniform(0.2, 2))


def ok_arena(m):
    """An allocator that takes memory in slabs until the working set is complete."""
    kept, top = [], m * random.uniform(0.5, 0.85)
    slab = m * random.uniform(0.03, 0.08)
    while slab * len(kept) < top - slab:
        kept.append(array(slab))
        work(random.uniform(1.5, 4.5), kept[0])
    work(40, kept[0])


def ok_joins(m):
    """Joins tables for some rounds, aggregates, and begins again."""
    import numpy as np
    import pandas as pd

    rows = int(m * 500)
    ids = np.arange(rows)
    for _ in range(4):
        result = pd.DataFrame({"id": ids})
        for i in range(random.randint(15, 45)):
            part = pd.DataFrame({"id": ids, f"c{i}": np.random.rand(rows)})
            result = result.merge(part, on="id")
            time.sleep(random.uniform(0.2, 0.7))
        result = result.mean()


def ok_search(m):
    """A search over settings; each trial is larger than the last."""
    for i in range(8):
        kept = []
        fill(kept, m * (0.15 + 0.09 * i), random.uniform(4, 12))
        work(3, kept[0])


def ok_results(m):
    """Collects results at a steady rate until all trials are done."""
    base = array(m * random.uniform(0.2, 0.4))
    kept = []
    fill(kept, m * random.uniform(0.15, 0.45), random.uniform(60, 110), tick=0.4)
    work(10, base)


def ok_torch_warm(m):
    """A training: model, first step, optimizer state, then level with evaluations."""
    import torch

    width = int((m * MB / 4 / 60) ** 0.5)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(8)])
    steps = torch.optim.Adam(model.parameters())
    for i in range(400):
        steps.zero_grad()
        model(torch.randn(64, width)).square().mean().backward()
        steps.step()
        if i % 60 == 50:
            held = [torch.randn(width, width) for _ in range(6)]
            time.sleep(1)
            del held
        time.sleep(0.1)


KINDS = {k: f for k, f in globals().items() if k.startswith(("oom_", "ok_"))}

if __name__ == "__main__":
    random.seed(f"{sys.argv[1]} {sys.argv[3]}")
    KINDS[sys.argv[1]](float(sys.argv[2]) - 40.0)
