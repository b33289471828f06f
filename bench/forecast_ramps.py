"""
Programs that fill memory steadily: half of them stop below the limit, at various levels.

    python bench/forecast_ramps.py KIND LIMIT_MB SEED

As forecast_usual.py: the oom_ programs end in a kill, the ok_ programs end well. They need NumPy
and torch. They chose no rule and no threshold.
"""

from __future__ import annotations

import bisect
import collections
import itertools
import multiprocessing as mp
import os
import queue
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from forecast_fresh import MB, until, words
from forecast_usual import array, think, train


def decoded(kept, megabytes, seconds, tile_mb):
    """Append tiles until so many megabytes are held, in all in about so many seconds."""
    for _ in range(int(megabytes / tile_mb)):
        kept.append(array(tile_mb * random.uniform(0.8, 1.2)))
        time.sleep(seconds * tile_mb / megabytes * random.uniform(0.5, 1.5))


def touched(megabytes, seconds):
    """Write an array that is allocated already, page by page."""
    import numpy as np

    whole = np.empty(int(megabytes * MB / 8))
    parts = np.array_split(whole, max(4, int(seconds / 0.2)))
    for part in parts:
        part[:] = 1.5
        time.sleep(seconds / len(parts))
    return whole


def copied_slowly(rows, seconds):
    """Read objects that a parent created: counting the references copies their pages."""
    part = max(1, int(len(rows) / seconds * 0.2))
    for i in range(0, len(rows), part):
        list(rows[i : i + part])
        time.sleep(0.2)
    time.sleep(120)


def objects(megabytes):
    """Return small objects of about this size in all."""
    return [(i, float(i)) for i in range(int(megabytes * 8500))]


def forked(megabytes, count, seconds):
    """Start workers that copy the parent's objects page by page; return them."""
    rows = objects(megabytes)
    random.shuffle(rows)
    workers = []
    for _ in range(count):
        workers.append(mp.Process(target=copied_slowly, args=(rows, seconds), daemon=True))
        workers[-1].start()
    return workers


def grams(counts, text, size):
    """Count the runs of so many words."""
    text = text.split()
    for i in range(len(text) - size):
        counts[" ".join(text[i : i + size])] += 1


# These end in a kill


def oom_tiles(m):
    """Decodes the tiles of a map into a list; there are too many."""
    decoded([], 2 * m, 2 * random.uniform(35, 110), m * random.uniform(0.004, 0.012))


def oom_touched(m):
    """Fills an array that is larger than the memory, after some training."""
    kept = [array(m * random.uniform(0.1, 0.4)), train(random.uniform(2, 25))]
    kept.append(touched(2 * m, 2 * random.uniform(40, 110)))


def oom_forked(m):
    """Workers copy the parent's objects, because they count references to them."""
    forked(m * random.uniform(0.22, 0.28), 5, random.uniform(45, 100))
    time.sleep(200)


def oom_grams(m):
    """Counts runs of words; nearly all of them are new."""
    counts, pace = collections.Counter(), random.uniform(0.1, 0.3)
    while True:
        grams(counts, words(int(m * random.uniform(8, 16))), 3)
        time.sleep(pace)


def oom_models_by_user(m):
    """Loads one more model when a user asks for it, and keeps it."""
    kept, share = [], random.uniform(0.03, 0.08)
    while True:
        for _ in range(6):
            kept.append(array(m * share / 6))
            time.sleep(0.1)
        time.sleep(min(15.0, random.expovariate(1 / 4.0)))


def oom_history(m):
    """A training keeps the activations of its last layer for a plot, and evaluates."""
    kept, model, rate = [array(m * 0.15)], None, m / random.uniform(70, 150)
    for i in itertools.count(1):
        model = train(0.5, model)
        kept.append(array(rate * 0.5))
        if i % 25 == 0:
            held = [array(m * 0.02) for _ in range(4)]
            time.sleep(0.6)
            del held


def oom_beams(m):
    """A search whose frontier becomes wider in every round."""
    kept, size = [], m * random.uniform(0.0005, 0.0015)
    while True:
        kept.append(array(size))
        size *= random.uniform(1.005, 1.02)
        time.sleep(0.2)


def oom_futures(m):
    """A pool of threads whose results are never collected."""
    part = m * random.uniform(0.004, 0.01)

    def one():
        time.sleep(random.uniform(0.3, 2.0))
        return array(part * random.uniform(0.5, 1.5))

    with ThreadPoolExecutor(4) as pool:
        held = [pool.submit(one) for _ in range(3000)]
        for each in held:
            each.result()


def oom_edges(m):
    """Inserts the edges of a graph into sorted lists, in files of different size."""
    near = collections.defaultdict(list)
    while True:
        for _ in range(int(m * random.uniform(50, 400))):
            bisect.insort(near[random.randrange(3000)], random.random())
        time.sleep(random.uniform(0.05, 0.3))


def oom_rollouts(m):
    """Stores the frames of every episode; episodes become longer as the agent learns."""
    kept, length = [array(m * random.uniform(0.05, 0.2))], 8.0
    while True:
        for _ in range(int(length * random.uniform(0.5, 1.5))):
            kept.append(array(m * 0.002))
            time.sleep(0.1)
        train(random.uniform(1, 4))
        length *= 1.04


# These end well


def ok_tiles(m):
    """Decodes the tiles of a map into a list, then trains on them."""
    kept = []
    share = random.uniform(0.5, 0.93)
    decoded(kept, m * share, random.uniform(25, 80), m * random.uniform(0.004, 0.012))
    train(40)
    kept.clear()


def ok_touched(m):
    """Fills an array that is allocated already, after some training, and reads it."""
    kept, share = [array(m * random.uniform(0.05, 0.25))], random.uniform(0.35, 0.68)
    train(random.uniform(2, 25))
    kept.append(touched(m * share, random.uniform(25, 80)))
    train(40)
    kept.clear()


def ok_forked(m):
    """Workers copy the parent's objects until each has a copy of all."""
    workers = forked(m * random.uniform(0.11, 0.16), 4, random.uniform(20, 60))
    train(100)
    for each in workers:
        each.terminate()


def ok_grams_pruned(m):
    """Counts runs of words, and drops the rare ones when there are too many."""
    counts, most = collections.Counter(), int(m * random.uniform(1500, 3300))
    for _ in until(random.uniform(90, 130)):
        grams(counts, words(int(m * 6)), 3)
        if len(counts) > most:
            counts = collections.Counter(dict(counts.most_common(most // 4)))
        time.sleep(random.uniform(0.1, 0.3))


def ok_models_on_request(m):
    """Loads each of its models when it is first asked for, then serves them."""
    count, share = random.randint(4, 9), random.uniform(0.5, 0.9)
    kept, asked, model = [], set(), None
    for _ in until(random.uniform(110, 140)):
        one = int(random.triangular(0, count, 0))
        if one not in asked:
            asked.add(one)
            for _ in range(8):
                kept.append(array(m * share / count / 8))
                time.sleep(0.15)
        model = train(random.uniform(0.5, 4), model)


def ok_unfreezing(m):
    """Unfreezes one more layer after each epoch: gradients and the optimizer's state grow."""
    layers, share = random.randint(5, 10), random.uniform(0.4, 0.75)
    kept, model = [array(m * 0.15)], None
    seconds = random.uniform(4, 9)
    for _ in range(layers):
        for _ in range(3):
            kept.append(array(m * share / layers / 3))
            time.sleep(0.1)
        model = train(seconds, model)
    train(40, model)


def ok_window(m):
    """Keeps the last minutes of a stream, and a running mean of them."""
    seconds, share = random.uniform(25, 75), random.uniform(0.4, 0.85)
    base, window = array(m * 0.05), collections.deque()
    began = time.monotonic()
    for now in iter(time.monotonic, None):
        if now - began > seconds + 45:
            break
        window.append((now, array(m * share / seconds * 0.2 * random.uniform(0.6, 1.4))))
        while window[0][0] < now - seconds:
            window.popleft()
        time.sleep(0.2)
    base.sum()


def ok_folds(m):
    """Cross-validation: each fold keeps its model and its predictions."""
    folds, share = random.randint(4, 6), random.uniform(0.35, 0.7)
    base, kept = array(m * random.uniform(0.1, 0.2)), []
    for _ in range(folds):
        copy = array(m * 0.08)
        train(random.uniform(8, 16))
        for _ in range(5):
            kept.append(array(m * share / folds / 5))
            time.sleep(0.3)
        del copy
    train(15)
    base.sum()


def ok_prefetch(m):
    """A reader that is faster than the training fills a bounded queue of large samples."""
    work = queue.Queue(random.randint(60, 160))
    size, pace = m * random.uniform(0.45, 0.85) / work.maxsize, random.uniform(0.15, 0.3)

    def read():
        while True:
            work.put(array(size * random.uniform(0.7, 1.3)))
            time.sleep(pace)

    threading.Thread(target=read, daemon=True).start()
    model = None
    for _ in until(random.uniform(100, 130)):
        work.get().sum()
        model = train(1.2, model)


def ok_sorted_runs(m):
    """Fills a buffer with rows, sorts it, writes it, and begins again."""
    share, seconds = random.uniform(0.35, 0.85), random.uniform(8, 25)
    for _ in until(90):
        rows = []
        decoded(rows, m * share, seconds * random.uniform(0.7, 1.3), m * 0.01)
        think(1.5)
        rows.clear()
        think(1.0)


KINDS = {k: f for k, f in globals().items() if k.startswith(("oom_", "ok_"))}

if __name__ == "__main__":
    import zlib

    random.seed(zlib.crc32(f"{sys.argv[1]} {sys.argv[3]}".encode()))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    KINDS[sys.argv[1]](float(sys.argv[2]) - 40.0)
