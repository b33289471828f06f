"""
Programs of families that neither chose a threshold nor a rule: allocators, epochs, workers.

    python bench/forecast_unseen.py KIND LIMIT_MB SEED

As forecast_usual.py: the oom_ programs end in a kill, the ok_ programs end well. They need NumPy,
pandas and torch.
"""

from __future__ import annotations

import gc
import itertools
import mmap
import multiprocessing as mp
import os
import random
import sys
import tempfile
import time

from forecast_fresh import MB, until
from forecast_usual import array, table, think, train


class Node:
    """An object in a reference cycle, which only the garbage collector frees."""

    def __init__(self, payload):
        self.payload, self.me = payload, self


class CachingAllocator:
    """Blocks that are kept for reuse, as the allocators of frameworks keep GPU memory."""

    def __init__(self, smallest_mb):
        self.free, self.smallest = [], smallest_mb

    def take(self, megabytes):
        """Return the smallest free block that is large enough, or a new one."""
        fitting = [each for each in self.free if each.nbytes >= megabytes * MB]
        if fitting:
            block = min(fitting, key=lambda each: each.nbytes)
            self.free = [each for each in self.free if each is not block]
            return block
        return array(max(self.smallest, megabytes))

    def give(self, block):
        """Keep a block for the next request."""
        self.free.append(block)


def stepped(allocator, sizes, held_s):
    """Take blocks of these sizes, wait, and give them back."""
    blocks = [allocator.take(size) for size in sizes]
    time.sleep(held_s)
    for each in blocks:
        allocator.give(each)


def rows(megabytes):
    """Return a list of dicts of about this size."""
    return [{"user": i, "score": i * 1.5, "tag": f"t{i}"} for i in range(int(megabytes * 3000))]


# These end in a kill


def oom_fragments(m):
    """A caching allocator whose requests become slightly larger, so that few blocks are reused."""
    allocator, size = CachingAllocator(m * 0.002), m * random.uniform(0.004, 0.008)
    while True:
        stepped(allocator, [size * random.uniform(0.7, 1.0) for _ in range(4)], 0.2)
        size *= random.uniform(1.003, 1.012)
        think(0.3)


def oom_warm_leak(m):
    """A long warm-up at rising levels, then a training that keeps the outputs of every step."""
    import torch

    kept = [array(m * random.uniform(0.05, 0.1)) for _ in range(random.randint(1, 3))]
    model = train(random.uniform(10, 25))
    step = m / random.uniform(60, 140) * 0.25
    for i in itertools.count():
        kept.append(model(torch.randn(64, 256)).detach())
        kept.append(array(step * random.uniform(0.8, 1.2)))
        time.sleep(0.25)
        if i % 60 == 59:
            scratch = array(m * random.uniform(0.02, 0.08))
            time.sleep(1.5)
            del scratch


def oom_epoch_leak(m):
    """Each epoch keeps something more; within an epoch the level is flat."""
    kept, model = [array(m * random.uniform(0.15, 0.3))], None
    seconds, share = random.uniform(4, 9), random.uniform(0.05, 0.1)
    while True:
        model = train(seconds, model)
        for _ in range(4):
            kept.append(array(m * share / 4 * random.uniform(0.9, 1.1)))
            time.sleep(0.15)


def oom_groupby_kept(m):
    """Spikes of grouped tables; the grouped results are kept."""
    base, kept = table(m * random.uniform(0.12, 0.2)), []
    share = random.uniform(0.008, 0.018)
    while True:
        spike = base.assign(z=base.x0 * base.x1).sort_values("key")
        time.sleep(0.3)
        kept.append(spike.iloc[: int(m * share * MB / 96)].copy())
        del spike
        think(1.0)


def oom_gc_rest(m):
    """A saw-tooth of collected cycles over a rest that a list still references."""
    kept, size = [], m * random.uniform(0.003, 0.008)
    gc.disable()
    for i in itertools.count(1):
        node = Node(array(size * random.uniform(0.6, 1.4)))
        if random.random() < 0.25:
            kept.append(node)
        del node
        if i % 30 == 0:
            gc.collect()
        time.sleep(0.1)


def oom_shared_file(m):
    """Writes features into a growing file of shared memory."""
    pace = m / random.uniform(50, 130)
    with tempfile.TemporaryFile(dir="/dev/shm") as f:
        while True:
            f.write(array(pace * 0.2 * random.uniform(0.5, 1.5)).tobytes())
            time.sleep(0.2)


def oom_worker_starts(m):
    """One more worker every few seconds, each with a data set of its own; they do not fit."""
    share, gap = random.uniform(0.06, 0.12), random.uniform(4, 9)
    for i in itertools.count():
        mp.Process(target=_load_and_work, args=(m * share, gap * 0.7, i), daemon=True).start()
        think(gap)


def _load_and_work(megabytes, load_s, seed):
    random.seed(seed)
    kept = []
    for _ in range(20):
        kept.append(array(megabytes / 20))
        time.sleep(load_s / 20)
    time.sleep(600)


def oom_long_inputs(m):
    """A training on inputs sorted by length: what a step needs grows with the square."""
    base, length = array(m * 0.1), random.uniform(0.1, 0.2)
    while True:
        activations = array(m * length * length)
        time.sleep(0.3)
        del activations
        time.sleep(0.05)
        length += random.uniform(0.002, 0.006)
    base.sum()


def oom_partitions(m):
    """Bursts of partitions that stay in memory, with pauses for the next query."""
    kept, share = [], random.uniform(0.012, 0.025)
    while True:
        for _ in range(random.randint(2, 6)):
            raw = array(m * share * 1.5)
            kept.append(raw[: len(raw) // 2].copy())
            time.sleep(0.25)
            del raw
        think(random.uniform(1, 5))


def oom_read_rows(m):
    """Reads rows as dicts from the first second on; the file has too many."""
    kept, seconds = [], random.uniform(35, 110)
    while True:
        kept.append(rows(m / seconds * 0.25))
        time.sleep(0.25)


def oom_snapshots(m):
    """Keeps a copy of the model for an average, each time that the loss is better."""
    kept, model, gap = [array(m * 0.2)], None, random.uniform(0.8, 2.0)
    while True:
        model = train(gap, model)
        kept.append(array(m * random.uniform(0.01, 0.03)))
        gap *= 1.02


# These end well


def ok_allocator_levels(m):
    """A caching allocator that has seen every shape after a while."""
    allocator, base = CachingAllocator(m * 0.01), array(m * random.uniform(0.05, 0.2))
    largest = random.uniform(0.04, 0.07)
    for _ in until(random.uniform(90, 130)):
        stepped(allocator, [m * random.triangular(0.005, largest, 0.01) for _ in range(4)], 0.2)
        time.sleep(0.2)
    base.sum()


def ok_groupby_spikes(m):
    """Grouping and sorting of one table: spikes of different heights."""
    base = table(m * random.uniform(0.15, 0.3))
    for _ in until(random.uniform(90, 130)):
        part = base.sample(frac=random.uniform(0.3, 1.0))
        part.groupby("key").agg(["mean", "std"])
        think(0.6)
        del part
        think(random.uniform(0.5, 4.0))


def ok_gc_teeth(m):
    """Cycles that only the garbage collector frees, over a level that stays."""
    base, size = array(m * random.uniform(0.2, 0.4)), m * random.uniform(0.003, 0.008)
    gc.disable()
    held = 0.0
    for _ in until(random.uniform(90, 130)):
        Node(array(size))
        held += size
        if held > m * random.uniform(0.15, 0.5):
            gc.collect()
            held = 0.0
        time.sleep(0.12)
    base.sum()


def ok_mapped_file(m):
    """Reads a mapped file of the size of the limit: the page cache fills and is taken back."""
    base = array(m * random.uniform(0.1, 0.3))
    with tempfile.NamedTemporaryFile() as f:
        for _ in range(40):
            f.write(array(m / 40).tobytes())
            time.sleep(0.1)
        f.flush()
        with mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as whole:
            place = 0
            for _ in until(random.uniform(70, 110)):
                sum(whole[place : place + MB : 4096])
                place = (place + MB) % (len(whole) - MB)
                time.sleep(0.05)
    base.sum()


def ok_evaluations(m):
    """Every epoch ends with an evaluation that collects predictions and frees them."""
    base, model = array(m * random.uniform(0.1, 0.3)), None
    seconds, share = random.uniform(5, 10), random.uniform(0.15, 0.4)
    for _ in range(9):
        model = train(seconds, model)
        held = []
        for _ in range(25):
            held.append(array(m * share / 25))
            time.sleep(0.15)
        del held
    base.sum()


def ok_worker_starts(m):
    """Workers that start one after another, each with a data set of its own; they fit."""
    count, total, gap = random.randint(4, 8), random.uniform(0.5, 0.8), random.uniform(4, 9)
    workers = []
    for i in range(count):
        workers.append(mp.Process(target=_load_and_work, args=(m * total / count, gap * 0.7, i)))
        workers[-1].start()
        think(gap)
    train(50)
    for each in workers:
        each.terminate()


def ok_compile_caches(m):
    """A training whose first minutes fill caches, ever more slowly; then it is level."""
    kept, model, part = [array(m * random.uniform(0.1, 0.3))], None, m * random.uniform(0.01, 0.02)
    for _ in until(random.uniform(110, 140)):
        model = train(0.4, model)
        kept.append(array(part))
        part *= 0.96


def ok_lengths_by_chance(m):
    """Batches of random length; rare ones are long."""
    base, model = array(m * random.uniform(0.1, 0.3)), train(3.0)
    for _ in until(random.uniform(90, 130)):
        batch = array(m * min(0.45, 0.03 * random.paretovariate(1.5)))
        time.sleep(0.25)
        del batch
    base.sum()
    del model


def ok_read_rows(m):
    """Reads rows as dicts from the first second on, makes a table of them, and trains."""
    import pandas as pd

    kept, seconds = [], random.uniform(15, 60)
    for _ in until(seconds):
        kept += rows(m * random.uniform(0.3, 0.5) / seconds * 0.25)
        time.sleep(0.2)
    frame = pd.DataFrame(kept)
    kept.clear()
    train(50)
    frame.mean(numeric_only=True)


def ok_snapshot_ring(m):
    """The last copies of a model for an average; an older one is removed for each new one."""
    count, share = random.randint(6, 14), random.uniform(0.15, 0.45)
    kept, model = [array(m * random.uniform(0.02, 0.1))], None
    for i in range(3 * count):
        model = train(random.uniform(1.5, 4.0), model)
        kept.append(array(m * share / count))
        if i >= count:
            del kept[1]


def ok_day_partitions(m):
    """Features of one day after another: partitions come in bursts, and go at its end."""
    base = array(m * random.uniform(0.05, 0.2))
    for _ in range(random.randint(4, 6)):
        kept, share = [], random.uniform(0.2, 0.6)
        for _ in range(6):
            for _ in range(random.randint(2, 4)):
                kept.append(array(m * share / 18))
                time.sleep(0.2)
            think(2.0)
        think(3.0)
        kept.clear()
        think(4.0)
    base.sum()


def ok_growing_batches(m):
    """A training that doubles its batch every now and then, as the schedule says."""
    kept, model, size = [array(m * random.uniform(0.1, 0.2))], None, m * random.uniform(0.02, 0.05)
    for _ in range(4):
        kept.append(array(size))
        model = train(random.uniform(18, 28), model)
        size *= 2
    kept.clear()


def ok_two_models(m):
    """Two models loaded layer by layer, a comparison, then only one of them."""
    models = []
    for _ in range(2):
        layers = []
        for _ in range(random.randint(15, 40)):
            layers.append(array(m * random.uniform(0.25, 0.4) / 28))
            time.sleep(random.uniform(0.2, 0.6))
        models.append(layers)
        think(6.0)
    train(20)
    del models[0]
    train(25)


KINDS = {k: f for k, f in globals().items() if k.startswith(("oom_", "ok_"))}

if __name__ == "__main__":
    import zlib

    random.seed(zlib.crc32(f"{sys.argv[1]} {sys.argv[3]}".encode()))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    KINDS[sys.argv[1]](float(sys.argv[2]) - 40.0)
